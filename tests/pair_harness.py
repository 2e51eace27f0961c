"""Real Bodies and Shadows without a platform, for tests and measurements: the caller plays gateway and coordinator.

Nursery       a supervisor with one zygote that has torch loaded, from which instances are forked
Child         one instance: its coordination socket, its batch channel, its log
Model, Task   the files of a captured model, and the blocks and split of a pair
ServedShadow  a Shadow as its image serves it, on a port of this machine or of a network namespace
load, join, change, order_remote   what a coordinator tells instances
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gnomon_core
import gnomon_runtime
from gnomon_core import packets, shared_memory
from gnomon_core.blocks import Layers
from gnomon_core.coordination import EMPTY_KIND, SHADOW_KIND
from gnomon_core.engines import GRAPH_FILES, PROGRAM
from gnomon_core.launch import Launch, Order, Sandbox
from gnomon_core.packaging import FOR_LIBRARIES
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_core.wire import Frame, FrameReader, Kind, Member, encode

FUNCTION, BODY, MAX_BATCH = "f.fn", "f-1", 8
OK = 200
HANDLER = Path(str(gnomon_runtime.__file__)).parents[2] / "shadow"
"""The Shadow function, in the source tree."""
TOKEN = "a-token-of-the-shadow"
START_S = 60.0
TIMEOUT_S = 100.0
PACKAGES = {package.__name__: str(Path(str(package.__file__)).parent) for package in (gnomon_core, gnomon_runtime)}
ENVIRONMENT = {"PATH": "/usr/bin:/bin", **FOR_LIBRARIES}


@dataclass
class Child:
    """An instance. `orders` is the coordinator's end of its coordination socket, `channel` the gateway's of its batch channel."""

    id: str
    nursery: Nursery
    orders: socket.socket
    channel: socket.socket
    log: Path
    pid: int = 0
    frames: FrameReader = field(default_factory=FrameReader)
    waiting: list[Frame] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    batches: int = 0
    input_name: str = "x"
    hello: Mapping[str, Any] = field(default_factory=dict)

    def order(self, do: str, descriptors: Sequence[int] = (), details: Mapping[str, Any] | None = None, epoch: int = 1) -> None:
        packets.send(self.orders, {"do": do, "epoch": epoch, **(details or {})}, descriptors)

    def say(self, *wanted: str) -> dict[str, Any]:
        """The next message of one of these kinds; earlier ones are kept in `skipped`."""
        self.orders.settimeout(TIMEOUT_S)
        while True:
            message, _ = packets.receive(self.orders)
            if message["say"] in wanted:
                return message
            self.skipped.append(message)

    def frame(self) -> Frame:
        self.channel.settimeout(TIMEOUT_S)
        while not self.waiting:
            data = self.channel.recv(1 << 20)
            if not data:
                raise ConnectionError(self.log.read_text(encoding="utf-8"))
            self.waiting += self.frames.feed(data)
        return self.waiting.pop(0)

    def send(self, x: Tensor, budget_s: float = 0.0) -> None:
        """A batch of one member for each sample."""
        self.batches += 1
        spec = TensorSpec(self.input_name, "FP32", tuple(x.shape[1:]))
        head = json.dumps({"kind": "tensors", "inputs": [spec.to_json()]}).encode()
        members = [Member(0, 1, b"", sample.numpy().tobytes()) for sample in x]
        self.channel.sendall(encode(Frame(Kind.BATCH, self.batches, 1, budget_s, head, members)))

    def result(self) -> tuple[Tensor, list[dict[str, Any]]]:
        """The outputs of a batch, and how its hand-overs went."""
        answer = self.frame()
        if answer.batch_id != self.batches or any(member.code != OK for member in answer.members):
            raise RuntimeError(
                f"{answer.kind} of batch {answer.batch_id}: {[bytes(member.body[:300]) for member in answer.members]}"
            )
        rows = [torch.frombuffer(bytearray(member.body), dtype=torch.float32) for member in answer.members]
        return torch.stack(rows), answer.head_json().get("pair", [])

    def ask(self, x: Tensor, budget_s: float = 0.0) -> tuple[Tensor, list[dict[str, Any]]]:
        self.send(x, budget_s)
        return self.result()

    def expect(self, wanted: str) -> None:
        """Wait for a message of one kind. Raises RuntimeError with the reason if the instance failed."""
        said = self.say(wanted, "failed")
        if said["say"] != wanted:
            raise RuntimeError(f"{self.id}: {said['reason']}")

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        self.nursery.gone(self.id)

    def descriptors(self) -> list[str]:
        return sorted(str(entry.readlink()) for entry in Path(f"/proc/{self.pid}/fd").iterdir())

    def mappings(self) -> int:
        return len(Path(f"/proc/{self.pid}/maps").read_text(encoding="utf-8").splitlines())


class Nursery:
    """A supervisor with one zygote, which has torch loaded, and the instances that are forked from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[dict[str, Any]] = []
        self.children: dict[str, Child] = {}
        self._made = 0
        self._socket, theirs = packets.socket_pair()
        self._socket.settimeout(TIMEOUT_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-m", "gnomon_runtime.supervisor", str(theirs.fileno())],
                env=ENVIRONMENT,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        script = str(Path(PACKAGES["gnomon_runtime"], "bootstrap.py"))
        preload = ["numpy", "torch", *(f"gnomon_runtime.{name}" for name in ("body", "pair.shadow_side", "pair.rehearsal"))]
        order = json.dumps({"packages": PACKAGES, "preload": preload})
        command = [sys.executable, "-I", "-u", script, order]
        self._send({"do": "zygote", "id": "torch", "start": 1, "command": command, "environment": ENVIRONMENT})
        if problems := self.event("warm")["problems"]:
            raise RuntimeError(f"the zygote could not import all: {problems}")

    def close(self) -> None:
        self._socket.close()
        self._process.wait(TIMEOUT_S)
        for child in self.children.values():
            child.orders.close()
            child.channel.close()

    def born(self, launch: Launch, *, cpus: tuple[int, ...] = (), sandbox: Sandbox | None = None) -> Child:
        """A new instance, with its order, a channel, a log and a coordination socket."""
        self._made += 1
        name = f"{launch.kind}-{self._made}"
        log = self.folder / f"{name}.log"
        channel, its_channel = socket.socketpair()
        orders, its_orders = packets.socket_pair()
        order = packets.sealed_file("order", Order(launch, sandbox or Sandbox(), cpus=cpus).to_json().encode())
        with its_channel, its_orders, log.open("wb") as file:
            descriptors = [order, its_channel.fileno(), file.fileno(), its_orders.fileno()]
            self._send({"do": "create", "id": name, "zygote": "torch", "join": []}, descriptors)
        os.close(order)
        child = self.children[name] = Child(name, self, orders, channel, log)
        child.pid = self.event("forked", name)["pid"]
        return child

    def body(self, model: Model, *, cpus: tuple[int, ...] = (), sandbox: Sandbox | None = None, **options: Any) -> Child:
        """A Body that is ready."""
        launch = Launch("model", FUNCTION, BODY, max_batch=MAX_BATCH, options={**model.options(), **options})
        child = self.born(launch, cpus=cpus, sandbox=sandbox or model.sandbox())
        child.hello = child.frame().head_json()
        child.input_name = model.signature.inputs[0].name
        return child

    def empty(self) -> Child:
        """A pool container that is ready."""
        child = self.born(Launch(EMPTY_KIND, "", "pool-1"))
        child.order("hello")
        child.expect("empty")
        return child

    def event(self, kind: str, instance: str = "") -> dict[str, Any]:
        while True:
            for event in self.events:
                if event["event"] == kind and event.get("id", "") == instance:
                    self.events.remove(event)
                    return event
            self.events.append(packets.receive(self._socket)[0])

    def gone(self, instance: str) -> dict[str, Any]:
        """Wait until an instance has ended; returns how."""
        return self.event("gone", instance)

    def _send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        packets.send(self._socket, message, descriptors)


@dataclass(frozen=True)
class Model:
    """A captured model's files, and the engine that runs it; a graph's files have the names that the converters give them."""

    folder: Path
    engine: str = field(default=PROGRAM, kw_only=True)

    @property
    def layers(self) -> Layers:
        return Layers.from_json(json.loads((self.folder / "layers.json").read_bytes()))

    @property
    def signature(self) -> ModelSignature:
        return ModelSignature.from_json(json.loads((self.folder / "program.json").read_bytes())["signature"])

    def options(self) -> dict[str, Any]:
        names = {"program": "program.json", "weights": "weights.safetensors", "layers": "layers.json"}
        options: dict[str, Any] = {option: str(self.folder / name) for option, name in names.items()}
        if self.engine != PROGRAM:
            options |= {"engine": self.engine, "graph": {file: str(self.folder / file) for file in GRAPH_FILES[self.engine]}}
        return options

    def sandbox(self) -> Sandbox:
        """A sandbox in which the files can be read."""
        options = self.options()
        graph = options.pop("graph", {}).values()
        return Sandbox(readable=(*(path for name, path in options.items() if name != "engine"), *graph))


@dataclass(frozen=True)
class Task:
    """A pair's task: its blocks, the samples of each batch, and their predicted duration."""

    model: Model
    blocks: Sequence[int]
    split: Sequence[int] = ()
    expected_ms: Sequence[Sequence[float]] = ()


@dataclass
class Buffers:
    """The shared memory that a coordinator makes for a pair."""

    body: list[int]
    shadow: list[int]

    @staticmethod
    def make(there: int, back: int) -> Buffers:
        first, second = packets.socket_pair()
        to, back_again = shared_memory.make("to shadow", there), shared_memory.make("from shadow", back)
        return Buffers(
            [first.detach(), to, shared_memory.reader(back_again)], [second.detach(), shared_memory.reader(to), back_again]
        )

    def close(self) -> None:
        for descriptor in {*self.body, *self.shadow}:
            os.close(descriptor)


def load(
    child: Child,
    task: Task,
    *,
    mode: str = "shared",
    cores: int = 1,
    cpus: tuple[int, ...] = (),
    sandbox: Sandbox | None = None,
) -> dict[str, Any]:
    """Make a pool container a Shadow; returns its answer, `registered` or `failed`."""
    options: Mapping[str, Any] = {**task.model.options(), "body": BODY, "weight_mode": mode}
    launch = Launch(SHADOW_KIND, FUNCTION, child.id, cores=cores, max_batch=MAX_BATCH, options=options)
    order = packets.sealed_file("order", Order(launch, sandbox or task.model.sandbox(), cpus=cpus).to_json().encode())
    details: dict[str, Any] = {"shadow": child.id, "cores": cores, "cpus": list(cpus), **options}
    with child.log.open("ab") as log:
        child.order("load", [order, log.fileno()], details | {"blocks": list(task.blocks), "split": list(task.split)})
    os.close(order)
    return child.say("registered", "failed")


def join(body: Child, shadow: Child, task: Task, *, sizes: tuple[int, int] | None = None) -> None:
    """Make them a pair."""
    buffers = Buffers.make(*(sizes or shared_memory.buffer_sizes(task.model.layers, MAX_BATCH)))
    try:
        shadow.order("join", buffers.shadow, {"shadow": shadow.id, "body": BODY, **_pair_document(task)})
        shadow.expect("paired")
        tell_body(body, shadow.id, task, buffers)
    finally:
        buffers.close()


def tell_body(body: Child, shadow: str, task: Task, buffers: Buffers) -> None:
    """Tell the Body of its pair with a Shadow."""
    expected_ms = [list(row) for row in task.expected_ms]
    body.order("pair", buffers.body, {"shadow": shadow, "shadow_cores": 1, "expected_ms": expected_ms, **_pair_document(task)})
    body.expect("paired")


def change(body: Child, shadow: Child, old: Task, new: Task) -> None:
    """Give a pair other blocks as the coordinator does: the Shadow holds both until the Body uses the new ones."""
    union = sorted({*old.blocks, *new.blocks})
    shadow.order("change", (), {"blocks": union, "split": list(new.split)})
    shadow.expect("changed")
    expected_ms = [list(row) for row in new.expected_ms]
    body.order("change", (), {"shadow": shadow.id, "expected_ms": expected_ms, **_pair_document(new)})
    body.expect("changed")
    shadow.order("change", (), _pair_document(new))
    shadow.expect("changed")


def _pair_document(task: Task) -> dict[str, Any]:
    return {"blocks": list(task.blocks), "split": list(task.split)}


@dataclass(frozen=True)
class Pod:
    """The environment of a Shadow's instance: a model of a repository on disk, and its address."""

    repository: Path
    reference: str
    blocks: Sequence[int]
    host: str = "127.0.0.1"
    namespace: str = ""
    cpus: tuple[int, ...] = ()
    cores: int = 1

    def variables(self, port: int) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "OMP_NUM_THREADS": "1",
            "GNOMON_PORT": str(port),
            "GNOMON_BATCH_TOKEN": TOKEN,
            "GNOMON_HANDLER_FOLDER": str(HANDLER),
            "GNOMON_MODELS": str(self.repository),
            "GNOMON_MODEL": self.reference,
            "GNOMON_BLOCKS": ",".join(map(str, self.blocks)),
            "GNOMON_CORES": str(self.cores),
            "GNOMON_MAX_BATCH": str(MAX_BATCH),
            "GNOMON_QUIET_S": "0.1",
        }


class ServedShadow:
    """A Shadow that serves, ready when constructed. Its Body needs `url` and TOKEN."""

    def __init__(self, folder: Path, pod: Pod) -> None:
        port = _free_port()
        self.url = f"http://{pod.host}:{port}"
        self.log = folder / f"shadow-{port}.log"
        self._inside = ["ip", "netns", "exec", pod.namespace] if pod.namespace else []
        command = [
            *self._inside, sys.executable, "-m", "gunicorn", "--config", "python:gnomon_runtime.gunicorn_config",
            "--bind", f"{pod.host}:{port}", "gnomon_runtime.http_app:create_app()",
        ]  # fmt: skip
        before = os.sched_getaffinity(0)
        with self.log.open("wb") as log:
            # A process inherits the CPU affinity of its parent.
            os.sched_setaffinity(0, pod.cpus or before)
            try:
                self._process = subprocess.Popen(command, env=pod.variables(port), cwd=folder, stdout=log, stderr=log)
            finally:
                os.sched_setaffinity(0, before)
        self._await(pod.host, port)

    @property
    def worker(self) -> int:
        """The process that computes."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text(encoding="ascii").split()
        return int(children[0])

    def signal(self, number: int) -> None:
        os.kill(self.worker, number)

    def end(self) -> int:
        """End the instance by SIGTERM, as a platform does; returns its exit status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(START_S)

    def kill(self) -> None:
        """Kill the server and its worker."""
        for pid in (self._process.pid, self.worker):
            os.kill(pid, signal.SIGKILL)
        self._process.wait(START_S)

    def _await(self, host: str, port: int) -> None:
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s and self._process.poll() is None:
            try:
                with closing(http.client.HTTPConnection(host, port, timeout=5)) as connection:
                    connection.request("GET", "/_/ready")
                    if connection.getresponse().status == OK:
                        return
            except OSError:
                time.sleep(0.05)
        self._process.kill()
        self._process.wait(START_S)
        raise RuntimeError(self.log.read_text(encoding="utf-8"))


def order_remote(body: Child, shadow: str, task: Task, url: str, token: str = TOKEN) -> None:
    """Tell a Body to pair with the Shadow at a URL; the Body answers "paired" or "unpaired" later."""
    what = {"blocks": list(task.blocks), "split": list(task.split), "shadow_cores": 1}
    expected_ms = [list(row) for row in task.expected_ms]
    body.order("pair", (), {"shadow": shadow, "url": url, "token": token, "expected_ms": expected_ms, **what})


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
