"""A node without Kubernetes: the agent, the pool's container and pods' Bodies as processes of this machine.

What Kubernetes would do is played: the kubelet's calls (`kubelet`), a restarted container is a process that is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gnomon_coordinator.node import volumes
from gnomon_coordinator.node.pod_sockets import SOCKET
from gnomon_core.wire import Frame, Kind, Member, decode, encode
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.coordinator_node.kubelet import Kubelet, Pod
from tests.waiting import eventually

TOKEN, BATCHES = "of-the-controller", "of-the-gateway"
BODY = Path(__file__).parents[3] / "functions" / "body"
SHAPE = (4, 12, 12)
SPLIT = [0, 1, 1, 2, 2, 3, 3, 4]
"""How many samples of a batch are the Shadow's: of one none, of eight four."""
PATIENT = [[10_000.0] * 8]
"""The Shadow may take its time for the one run that all blocks are: this machine may be busy with other things."""


def put_model(repository: DirectoryRepository) -> None:
    """Four convolutions and a classifier: five layer blocks that answer in well under a millisecond."""
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.ReLU())]
    module = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 3)).eval()
    repository.put("line", "1", capture(module, (torch.randn(2, *SHAPE),), Description("line", "1")))


class Started:
    """A process whose log says where it listens."""

    def __init__(self, folder: Path, name: str, command: list[str], **environment: str) -> None:
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as file:
            self._begin = file.tell()
            variables = {"PATH": os.environ["PATH"], **environment}
            self.process = subprocess.Popen(
                [sys.executable, *command], env=variables, stdout=file, stderr=subprocess.STDOUT, cwd=folder
            )

    @property
    def said(self) -> str:
        return self.log.read_bytes()[self._begin :].decode()

    def port(self, pattern: str) -> int:
        """The port after this in its log."""

        def look() -> int:
            assert self.process.poll() is None, self.said
            found = re.search(pattern + r"(\d+)", self.said)
            return int(found[1]) if found else 0

        return eventually(look)

    def kill(self, number: int = signal.SIGKILL) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(30)


class Body(Started):
    """A pod's Body, as its image runs it."""

    def __init__(
        self, folder: Path, uid: str, socket: Path, models: Path, head: bytes, *, at: str = "127.0.0.1:0", **variables: str
    ) -> None:
        self.uid, self.head = uid, head
        self.numbers = 0
        self.host = at.partition(":")[0]
        usual = {
            "GNOMON_HANDLER_FOLDER": str(BODY), "GNOMON_MODEL": "line@1", "GNOMON_MODELS": str(models), "GNOMON_CORES": "1",
            "GNOMON_BATCH_TOKEN": BATCHES, "GNOMON_COORDINATION": str(socket),
        }  # fmt: skip
        super().__init__(
            folder, f"body-{uid}",
            ["-m", "gunicorn", "--config", "python:gnomon_runtime.gunicorn_config", "--bind", at,
             "gnomon_runtime.http_app:create_app()"],
            **{**usual, **variables},
        )  # fmt: skip
        self.address = self.port(rf"Listening at: http://{re.escape(self.host)}:")
        eventually(self._ready)

    def _ready(self) -> bool:
        try:
            with closing(http.client.HTTPConnection(self.host, self.address, timeout=20)) as connection:
                connection.request("GET", "/_/ready")
                return connection.getresponse().status == 200
        except OSError:
            assert self.process.poll() is None, self.said
            return False

    def ask(self, given: torch.Tensor) -> tuple[list[bytes], int]:
        """The raw answers to a batch, and how many hand-overs it had."""
        self.numbers += 1
        members = [Member(0, 1, b"", sample.numpy().tobytes()) for sample in given]
        frame = encode(Frame(Kind.BATCH, self.numbers, 1, 20.0, self.head, members))
        with closing(http.client.HTTPConnection(self.host, self.address, timeout=30)) as connection:
            connection.request("POST", "/gnomon/batch", frame, {"Authorization": f"Bearer {BATCHES}"})
            answer = connection.getresponse()
            data = answer.read()
        assert answer.status == 200, data
        result = decode(data)
        assert all(member.code == 200 for member in result.members), [bytes(member.body) for member in result.members]
        return [bytes(member.body) for member in result.members], len(result.head_json().get("pair", []))


class Node:
    """The processes of one node. `kubelet` is played."""

    def __init__(
        self, folder: Path, kubelet: Path | None = None, name: str = "node-a", *, begin: bool = True, at: str = "127.0.0.1:0"
    ) -> None:
        """`kubelet` is a real one's folder; without it the kubelet is played. `begin` starts agent and pool here."""
        self.folder, self.name, self._at = folder, name, at
        self.host = at.partition(":")[0]
        self.where = kubelet or folder / "kubelet"
        self.pods, self.models = self.where / "pods", folder / "models"
        self.pods.mkdir(parents=True, exist_ok=True)
        repository = DirectoryRepository(self.models)
        put_model(repository)
        entry = repository.get("line@1")
        assert entry.layers is not None
        paths = {"program": entry.program, "weights": entry.weights, "layers": entry.layers}
        self.files = {name: str(path.relative_to(self.models)) for name, path in paths.items()}
        self.head = json.dumps({"kind": "tensors", "inputs": [tensor.to_json() for tensor in entry.signature.inputs]}).encode()
        self.blocks = list(range(len(json.loads(entry.layers.read_bytes())["blocks"])))
        """All of the model: each row is computed by one of the two from its beginning to its end."""
        (folder / "token").write_text(TOKEN)
        self.started: list[Started] = []
        self.kubelets: list[Kubelet] = []
        self.uids: dict[str, str] = {}
        """The pod of each instance that a platform knows, by the instance's id."""
        self._idle: list[Body] = []
        self._lent: list[Body] = []
        self.epoch = 1
        if begin:
            self.begin_pool()
            self.begin_agent()

    def begin_pool(self) -> None:
        """The pool's container is started, or started again."""
        socket = str(self.folder / "pool.sock")
        self.pool = Started(self.folder, "pool", ["-I", "-m", "gnomon_runtime.pool_host", socket])
        self.started.append(self.pool)

    def end_pool(self) -> None:
        """End the pool as a container ends: with all of its processes."""
        pid = self.pool.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self.pool.kill()
        for child in children:
            os.kill(int(child), signal.SIGKILL)

    def begin_agent(self) -> None:
        """So is the agent's."""
        where = {"pool": "pool.sock", "models": "models", "token-file": "token"}
        options = [word for name, path in where.items() for word in (f"--{name}", str(self.folder / path))]
        port = self._at.partition(":")[2]
        options += ["--kubelet", str(self.where), "--node", self.name, "--host", self.host, "--port", port]
        if port == "0":
            options += ["--pair-port", "0"]
        self.agent = Started(self.folder, "agent", ["-I", "-m", "gnomon_coordinator.node", *options])
        self.started.append(self.agent)
        self.port = self.agent.port(rf"listening on {re.escape(self.host)}:")
        self.kubelet = Kubelet(self.where / "plugins_registry" / f"{volumes.NAME}-reg.sock")
        self.kubelets.append(self.kubelet)

    def ask(self, method: str, path: str, document: Mapping[str, Any] | None = None, token: str = TOKEN) -> tuple[int, Any]:
        """Send a request as the platform does."""
        with closing(http.client.HTTPConnection(self.host, self.port, timeout=90)) as connection:
            body = None if document is None else json.dumps(document)
            connection.request(method, path, body, {"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            document = json.loads(answer.read())
            return answer.status, document.get("error", document)

    def state(self) -> dict[str, Any]:
        status, state = self.ask("GET", "/v1/state")
        assert status == 200, state
        return dict(state)

    def warm(self) -> None:
        """Return when the pool can make Shadows."""
        eventually(lambda: self.state()["pool"]["ready"], "the pool is not ready", 120.0)

    def batch(self, samples: int = 4) -> torch.Tensor:
        """A batch with the same samples each time."""
        return torch.randn(samples, *SHAPE, generator=torch.Generator().manual_seed(samples))

    def pod(self, uid: str) -> Pod:
        """A pod with its volume."""
        pod = Pod(self.pods, uid, f"line-{uid}", context={volumes.FUNCTION_KEY: "line"})
        self.kubelet.publish(pod)
        return pod

    def body(self, uid: str, **variables: str) -> Body:
        """A pod whose Body has come."""
        body = Body(self.folder, uid, self.pod(uid).target / SOCKET, self.models, self.head, **variables)
        self.started.append(body)
        self.has_come(uid)
        return body

    def shared_body(self) -> Body:
        """A Body that works alone and that no other test uses. A new one takes seconds of CPU: it imports torch."""
        body = self._idle.pop() if self._idle else self.body(f"uid-{len(self.started)}")
        self._lent.append(body)
        return body

    def end_bodies(self) -> None:
        """End a test's Bodies, but for shared ones that still work alone. Their pods stay, and nobody waits for them."""
        self._idle += [body for body in self._lent if self._works_alone(body)]
        self._lent.clear()
        for started in self.started:
            if isinstance(started, Body) and started not in self._idle and started.process.poll() is None:
                started.process.send_signal(signal.SIGTERM)

    def _works_alone(self, body: Body) -> bool:
        """True if its node knows the Body and no Shadow of it, and it answers without one."""
        if body.process.poll() is not None or self.agent.process.poll() is not None:
            return False
        state = self.state()
        known, paired = ({row["pod_uid"] for row in state[kind]} for kind in ("bodies", "shadows"))
        return body.uid in known - paired and body.ask(self.batch())[1] == 0

    def has_come(self, uid: str) -> None:
        eventually(lambda: uid in [row["pod_uid"] for row in self.state()["bodies"]], f"{uid} has not come")

    def request_shadow(
        self, shadow: str, pod_uid: str, blocks: list[int], split: list[int], changes: Mapping[str, Any] | None = None
    ) -> tuple[int, Any]:
        """The platform's request for a Shadow, with these changes."""
        about = {"epoch": self.epoch, "pod_uid": pod_uid, "function": "line.openfaas-fn", "weight_mode": "shared", "max_batch": 8}
        what = {"cores": 1, "blocks": blocks, "split": split, "expected_ms": PATIENT}
        return self.ask("PUT", f"/v1/shadows/{shadow}", {**about, **self.files, **what, **(changes or {})})

    def shadow(self, name: str) -> dict[str, Any]:
        rows = [row for row in self.state()["shadows"] if row["id"] == name]
        return dict(rows[0]) if rows else {}

    def paired(self, name: str) -> dict[str, Any]:
        """The Shadow's row once it works with its Body."""

        def look() -> bool:
            row = self.shadow(name)
            assert row.get("state") != "gone", (row, self.agent.said, self.pool.said)
            return bool(row.get("paired"))

        eventually(look, f"{name} is no pair")
        return self.shadow(name)

    def pair(self, shadow: str, pod_uid: str) -> dict[str, Any]:
        """A Shadow for all blocks of a pod's Body; its row once both work together."""
        status, row = self.request_shadow(shadow, pod_uid, self.blocks, SPLIT)
        assert status == 200, row
        return self.paired(shadow)

    def end(self, shadow: str) -> str:
        """Let a Shadow end; why it has gone."""
        status, row = self.ask("DELETE", f"/v1/shadows/{shadow}?epoch={self.epoch}")
        assert status == 200, row
        return self.ended(shadow)

    def ended(self, shadow: str) -> str:
        """Why a Shadow has gone. The platform has seen it, so that it is forgotten."""
        eventually(lambda: self.shadow(shadow).get("state") == "gone", f"{shadow} lives")
        reason = str(self.shadow(shadow)["reason"])
        assert self.ask("DELETE", f"/v1/shadows/{shadow}?epoch={self.epoch}")[0] == 200
        assert self.shadow(shadow) == {}
        return reason

    def close(self) -> None:
        for kubelet in self.kubelets:
            kubelet.close()
        for started in reversed(self.started):
            if started.process.poll() is None:
                started.process.send_signal(signal.SIGTERM)
        for started in self.started:
            try:
                started.process.wait(60)
            except subprocess.TimeoutExpired:
                # Killed, its own children see that they have no parent, and end.
                started.kill()


@dataclass(frozen=True)
class Known:
    """A Body's answers by itself: to a batch, and to its rows and those of its Shadow one after the other.

    A kernel may give a row other last bits in a batch of another size, and a pair computes two smaller ones.
    """

    given: torch.Tensor
    whole: list[bytes]
    parts: list[bytes]

    @staticmethod
    def of(node: Node, body: Body, samples: int = 4) -> Known:
        given = node.batch(samples)
        kept = samples - SPLIT[samples - 1]
        (whole, none), (first, _) = body.ask(given), body.ask(given[:kept])
        assert none == 0
        return Known(given, whole, first + (body.ask(given[kept:])[0] if kept < samples else []))

    def together(self, body: Body) -> bool:
        """True if the pair's answer is right, to the bit."""
        answers, hand_overs = body.ask(self.given)
        return answers == self.parts and hand_overs == 1

    def alone(self, body: Body) -> bool:
        """True if the answer of the Body without its Shadow is right, to the bit."""
        return body.ask(self.given) == (self.whole, 0)

    def answered(self, body: Body) -> bool:
        """True if the answer is right, whether the Body has a Shadow just now or loses it meanwhile."""
        return body.ask(self.given)[0] in (self.whole, self.parts)


@contextlib.asynccontextmanager
async def asked_all_the_time(body: Body, known: Known) -> AsyncIterator[None]:
    """Batches, one after the other: each answer is right to the bit, and was computed by both."""
    over = threading.Event()

    def ask() -> list[bool]:
        found = []
        while not over.is_set() or not found:
            found.append(known.together(body))
        return found

    asking = asyncio.create_task(asyncio.to_thread(ask))
    try:
        yield
    finally:
        over.set()
        found = await asking
    assert all(found), found
