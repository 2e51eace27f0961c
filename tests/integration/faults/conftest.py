"""A gateway for nearly all of these tests, functions that tell what they execute, and the processes behind them."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.integration.faults.history import HANDLER, Callers, History, Ledger
from tests.integration.serve.conftest import Serving

IMAGE = "ada/ledger:1"


def kill(*pids: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def freeze(pid: int) -> None:
    """Stop a process, and return when it has stopped: it is alive, holds its sockets and does nothing."""
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)


def go_on(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


class Faulty(Serving):
    """`gnomon serve` with functions of one handler, whose executions a ledger keeps."""

    ledger: Ledger

    def build(self, archive: bytes) -> None:
        secret = (self.state / "payload-secret").read_text().strip().encode()
        signature = hmac.new(secret, archive, hashlib.sha256).hexdigest()
        answer = self.call("POST", "/build", archive, X_Build_Signature=f"sha256={signature}")
        assert answer.status == 200, answer.data

    def serve(
        self,
        name: str,
        *,
        method: str = "POST",
        instances: int = 1,
        most: int | None = None,
        env: dict[str, str] | None = None,
        cpu: str | None = None,
        **settings: Any,
    ) -> Any:
        """Deploy the handler with so many instances at least. Settings are annotations without their prefix, `_` for `-`.

        Instances that request `cpu` keep it while they are idle.
        """
        annotations = {f"gnomon/{key.replace('_', '-')}": str(value) for key, value in settings.items()}
        annotations.setdefault("gnomon/autoscaler", "fixed")
        document = {
            "service": name,
            "image": IMAGE,
            "envVars": {"LEDGER": str(self.ledger.port), **(env or {})},
            "labels": {"com.openfaas.scale.min": str(instances)}
            | ({} if most is None else {"com.openfaas.scale.max": str(most)}),
            "annotations": annotations,
        } | ({} if cpu is None else {"requests": {"cpu": cpu}})
        return self.call(method, "/system/functions", document)

    def scale(self, name: str, replicas: int) -> None:
        answer = self.call("POST", f"/system/scale-function/{name}", {"serviceName": name, "replicas": replicas})
        assert answer.status == 202, answer.data

    def ready(self, name: str) -> int:
        return int(self.status(name).get("availableReplicas") or 0)

    def metric(self, line: str) -> float:
        """The value of the series that is written so; 0 where there is none."""
        for text in self.call("GET", "/metrics").data.decode().splitlines():
            if text.startswith(line + " "):
                return float(text.rpartition(" ")[2])
        return 0.0

    def in_flight(self, name: str) -> float:
        return self.metric(f'gateway_invocation_function_invocation_inflight{{function_name="{name}.openfaas-fn"}}')

    def late(self, name: str) -> float:
        return self.metric(f'gnomon_late_answers_total{{function_name="{name}.openfaas-fn"}}')

    def log(self, name: str) -> str:
        lines = self.call("GET", f"/system/logs?name={name}&follow=false").data.decode().splitlines()
        return "\n".join(json.loads(line)["text"] for line in lines)

    def decisions(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", f"/gnomon/functions/{name}/decisions").json()
        return found

    def pids(self, name: str) -> list[int]:
        """The processes of a function's instances: the kernel keeps fifteen letters of their name."""
        return self._named(f"gnomon {name}.openfaas-fn"[:15])

    def supervisor(self) -> int:
        [pid] = self._named("gnomon super")
        return pid

    def children(self) -> list[int]:
        """The gateway's only child is the supervisor, also before it bears its name."""
        assert self.process is not None
        pid = self.process.pid
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def zygotes(self) -> list[int]:
        return self._named("gnomon zygote")

    def _named(self, name: str) -> list[int]:
        found = []
        for pid in self.instances():
            try:
                text = Path(f"/proc/{pid}/comm").read_text().strip()
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if text == name and stat != "Z":
                found.append(pid)
        return found


@pytest.fixture(scope="module")
def one_for_all(tmp_path_factory: pytest.TempPathFactory, build_archive: Callable[..., bytes]) -> Iterator[Faulty]:
    yield from serving(tmp_path_factory.mktemp("faults") / "state", build_archive)


@pytest.fixture
def lone(tmp_path: Path, build_archive: Callable[..., bytes]) -> Iterator[Faulty]:
    """A gateway of the test's own, for those that end it."""
    yield from serving(tmp_path / "state", build_archive)


@pytest.fixture
def faulty(one_for_all: Faulty) -> Iterator[Faulty]:
    """The one gateway with an empty history and, at the end, no function."""
    one_for_all.ledger.history = History()
    yield one_for_all
    one_for_all.remove_functions()


@pytest.fixture
async def callers(request: pytest.FixtureRequest) -> AsyncIterator[Callers]:
    own = next((name for name in ("lone", "misled") if name in request.fixturenames), "faulty")
    gateway: Faulty = request.getfixturevalue(own)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout()) as session:
        yield Callers(session, gateway.url, gateway.ledger.history)


def serving(state: Path, build_archive: Callable[..., bytes], *options: str) -> Iterator[Faulty]:
    """A gateway on this state folder, with the handler built, until the test has ended."""
    gateway = Faulty(state)
    gateway.ledger = Ledger()
    gateway.start(*options)
    gateway.build(build_archive(HANDLER, image=IMAGE))
    yield gateway
    assert gateway.process is not None
    if gateway.process.poll() is None:
        gateway.stop()
    elif gateway.process.stdout is not None:
        gateway.process.stdout.close()
    gateway.client.clear()
    gateway.ledger.close()
