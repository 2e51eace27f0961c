"""A platform as `gnomon serve` has it, with Bodies that serve batch after batch, and the times of its events.

The benchmark's process is the gateway: platform, event loop and batch channels are those of a server, only the batches come from
the benchmark. With two CPUs, the first Body has one for itself and its Shadow the other, which everything else shares.

`reclaim_figures` measures the reserved core of a full node (AsyFunc, section 3.4). Of two cores one is a Body's and the other is
reserved for Shadows. In turn: a Shadow is decided on and gets it; the Shadow is ended, and a Body gets the core; the Body is
ended, and the core is reserved again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import gnomon
from benchmarks.report import Figure
from benchmarks.shadow.instances import RELATIVE_DIFFERENCE, WrongAnswerError
from benchmarks.shadow.models import StoredModel, at_quantile, in_mode, repository, samples_of
from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_core.interfaces import BatchChannel, InstanceRequest, ModelRepository, Platform
from gnomon_core.pairs import Pair
from gnomon_core.wire import Frame, Kind, Member
from gnomon_platforms.local.pairs import LocalShadow
from gnomon_platforms.local.platform import LocalPlatform
from tests.platform_testing import NothingBuilt

TIMEOUT_S = 60.0
VERSION, EPOCH = 1, 1
OK = 200
WARM_UPS = 3
"""Batches that a Body answers before it counts as serving."""


class EventTimes:
    """A `PlatformListener` that records when each event came."""

    def __init__(self) -> None:
        self.ready: dict[str, tuple[float, BatchChannel]] = {}
        self.gone: dict[str, tuple[float, str]] = {}
        self.paired: dict[str, float] = {}
        """The time at which a Body was first told to work with a Shadow, by the Shadow's id."""
        self._changed = asyncio.Event()

    def instance_ready(self, instance: Instance, channel: BatchChannel) -> None:
        self.ready[instance.id] = time.perf_counter(), channel
        self._changed.set()

    def instance_gone(self, instance_id: str, reason: str) -> None:
        self.gone[instance_id] = time.perf_counter(), reason
        self._changed.set()

    def pair_changed(self, body: Instance) -> None:
        if body.partner is not None:
            self.paired.setdefault(body.partner, time.perf_counter())
        self._changed.set()

    def shadow_found(self, shadow: Instance) -> None:
        """Never called: no earlier coordinator has left a Shadow."""

    def log_line(self, function: FunctionKey, instance_id: str, text: str) -> None:
        print(f"  {function} {instance_id}: {text}", flush=True)

    async def until(self, condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
        """Return when the condition holds, which is checked after each event.

        Raises:
            TimeoutError: it took too long.

        """
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@dataclass(frozen=True, slots=True)
class Batch:
    """An answer that was right: when it was asked for and complete, and how its hand-overs went."""

    began_s: float
    ended_s: float
    hand_overs: Sequence[dict[str, Any]]

    @property
    def shared(self) -> bool:
        """True if the batch has the Shadow's rows."""
        return bool(self.hand_overs) and all(hand_over["outcome"] == "answered" for hand_over in self.hand_overs)


@dataclass
class Serving:
    """A Body that answers batches of the same samples, each answer compared with the Body's first, alone."""

    instance: Instance
    channel: BatchChannel
    head: bytes
    members: list[Member] = field(default_factory=list)
    expected: Tensor | None = None
    served: list[Batch] = field(default_factory=list)
    asked: int = 0
    _pump: asyncio.Task[None] | None = None

    def take(self, x: Tensor) -> None:
        """Ask for these samples from now on; the next answer is what others are compared with."""
        self.members = [Member(0, 1, b"", row.numpy().tobytes()) for row in x]
        self.expected = None

    async def ask(self) -> Batch:
        """Send one batch and return its results.

        Raises:
            WrongAnswerError: it was lost, or not the unsplit model's answer.

        """
        self.asked += 1
        answered: asyncio.Future[Frame | None] = asyncio.get_running_loop().create_future()
        began_s = time.perf_counter()
        self.channel.run(Frame(Kind.BATCH, self.asked, EPOCH, 0.0, self.head, self.members), answered.set_result)
        frame = await answered
        ended_s = time.perf_counter()
        if frame is None or any(member.code != OK for member in frame.members):
            raise WrongAnswerError("a batch was lost" if frame is None else bytes(frame.members[0].body[:300]))
        rows = torch.stack([torch.frombuffer(bytearray(member.body), dtype=torch.float32) for member in frame.members])
        if self.expected is None:
            self.expected = rows
        elif not (rows - self.expected).abs().max() <= RELATIVE_DIFFERENCE * self.expected.abs().max():
            raise WrongAnswerError(f"batch {self.asked} is answered otherwise than alone")
        return Batch(began_s, ended_s, frame.head_json().get("pair", []))

    def begin(self, pause_s: float = 0.0) -> None:
        """Ask batch after batch from now on."""
        self._pump = asyncio.get_running_loop().create_task(self._serve(pause_s))

    async def end(self) -> None:
        """Let the batch that is asked for be the last."""
        pump, self._pump = self._pump, None
        if pump is not None:
            await pump

    def failed(self) -> BaseException | None:
        """The exception by which the node has stopped serving; None while it serves."""
        return self._pump.exception() if self._pump is not None and self._pump.done() else None

    async def _serve(self, pause_s: float) -> None:
        while self._pump is not None:
            self.served.append(await self.ask())
            if pause_s:
                await asyncio.sleep(pause_s)


@dataclass
class Place:
    """A started platform of any kind, and its events. A Body may take `timeout_s` to start."""

    platform: Platform
    events: EventTimes
    timeout_s: float = field(default=TIMEOUT_S, kw_only=True)

    async def body(self, spec: FunctionSpec) -> tuple[Instance, float]:
        """A ready Body, and how long it took from the decision."""
        began_s = time.perf_counter()
        instance = await self.platform.create(InstanceRequest(spec, VERSION, 1, None, {}))
        await self.events.until(lambda: instance.id in self.events.ready or instance.id in self.events.gone, self.timeout_s)
        if instance.id in self.events.gone:
            raise RuntimeError(f"no Body: {self.events.gone[instance.id][1]}")
        return instance, self.events.ready[instance.id][0] - began_s

    async def serving(self, spec: FunctionSpec, model: StoredModel, batch: int) -> Serving:
        """A ready Body that has answered a few batches of this size alone."""
        instance, _ = await self.body(spec)
        made = self.asked_of(instance, model, batch)
        for _ in range(WARM_UPS):
            await made.ask()
        return made

    def asked_of(self, instance: Instance, model: StoredModel, batch: int) -> Serving:
        """A ready Body that has answered nothing yet, to be asked for batches of this size."""
        head = json.dumps({"kind": "tensors", "inputs": [tensor.to_json() for tensor in model.signature.inputs]}).encode()
        made = Serving(instance, self.events.ready[instance.id][1], head)
        made.take(samples_of(model, batch))
        return made

    async def paired(self, shadow_id: str) -> None:
        """Return when a Shadow works with its Body.

        Raises:
            RuntimeError: the Shadow has ended instead.

        """
        await self.events.until(lambda: shadow_id in self.events.paired or shadow_id in self.events.gone)
        if shadow_id in self.events.gone:
            raise RuntimeError(f"no Shadow: {self.events.gone[shadow_id][1]}")

    async def end(self, instance_id: str) -> None:
        """Stop an instance and return when it has gone."""
        await self.platform.destroy(instance_id)
        await self.events.until(lambda: instance_id in self.events.gone, self.timeout_s)


@dataclass
class Node(Place):
    """A started platform of this machine."""

    platform: LocalPlatform

    async def function(self, model: StoredModel, name: str, **annotations: str) -> FunctionSpec:
        """A function that serves a model; its zygote is warm when this returns."""
        spec = read_deployment(deployment_of(model, name, **annotations))
        self.platform.check(spec)
        await self.platform.prepare(spec)
        return spec

    def record_of(self, shadow_id: str) -> LocalShadow | None:
        """The platform's record of a Shadow; None once the Shadow has ended."""
        return self.platform._pairs.shadows.get(shadow_id)  # noqa: SLF001 - stamps and process ids are nobody else's business

    def supervisor(self) -> int:
        """The process below which everything of this platform is."""
        supervisor = self.platform._supervisor  # noqa: SLF001 - as above
        assert supervisor is not None
        return supervisor.pid


def deployment_of(model: StoredModel, name: str, **annotations: str) -> dict[str, Any]:
    """A function that serves a model, as a user deploys it."""
    given = {"gnomon/model": model.reference, "gnomon/max-batch": "8"}
    given |= {f"gnomon/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return {"service": name, "image": "gnomon/body", "annotations": given}


@contextlib.asynccontextmanager
async def started(
    *, cores: int, pool: int = 1, reserved_cores: float = 0.0, models: ModelRepository | None = None
) -> AsyncIterator[Node]:
    """A platform for the length of a block. More `cores` than CPUs share them."""
    torch.set_num_threads(1)
    with gnomon.temporary() as folder:
        events = EventTimes()
        platform = LocalPlatform(
            Path(folder), models or repository(), NothingBuilt(), cores=cores, pool=pool, reserved_cores=reserved_cores
        )
        await platform.start(events)
        try:
            yield Node(platform, events)
        finally:
            await platform.stop()


BATCH = 2


@dataclass(frozen=True, slots=True)
class Turn:
    """Milliseconds of one turn: until the Shadow works, from its end until the Body is ready, until the core is free again."""

    shadow_ms: float
    body_ms: float
    free_ms: float


async def reclaim_figures(model: StoredModel, pair: Pair, count: int) -> list[Figure]:
    """Measure `count` turns on a node of two cores, one of them reserved."""
    async with started(cores=2, reserved_cores=1.0) as node:
        spec = await node.function(model, "full")
        serving = await node.serving(spec, model, BATCH)
        turns = []
        for _ in range(count):
            shadow_ms = await _shadow(node, serving.instance.id, pair)
            began_s = time.perf_counter()
            body, _ = await node.body(spec)
            body_ms = _ms_since(began_s)
            began_s = time.perf_counter()
            await node.end(body.id)
            turns.append(Turn(shadow_ms, body_ms, _ms_since(began_s)))
    return _figures(turns)


async def _shadow(node: Node, body_id: str, pair: Pair) -> float:
    """A Shadow that works, and has gone when this returns."""
    began_s = time.perf_counter()
    shadow = await node.platform.create_shadow(body_id, pair)
    await node.paired(shadow.id)
    took_ms = _ms_since(began_s)
    await node.end(shadow.id)
    return took_ms


def _ms_since(began_s: float) -> float:
    return 1e3 * (time.perf_counter() - began_s)


def _figures(turns: Sequence[Turn]) -> list[Figure]:
    found = [
        at_quantile("full node: a Shadow in the reserve, working", [turn.shadow_ms for turn in turns], "ms"),
        at_quantile("full node: a Body in the reserve that the Shadow left", [turn.body_ms for turn in turns], "ms"),
        at_quantile("full node: the reserve again after the Body's end", [turn.free_ms for turn in turns], "ms"),
    ]
    return in_mode(found)
