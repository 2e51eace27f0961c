"""Measures the time that the local platform takes to start an instance of a model.

A separate platform is started in an empty folder, with the model's repository. Bodies are made one after the other, each ready
when it has loaded its weights, mapped, and answered a first batch; then Shadows beside the last of them, each ready when it has
registered with the pages of its blocks resident.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from gnomon_core.blocks import Layers
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_core.interfaces import BatchChannel, InstanceRequest, ModelEntry, ModelRepository
from gnomon_core.pairs import Pair
from gnomon_platforms.images import BuiltHandler
from gnomon_platforms.local.platform import LocalPlatform
from gnomon_profiler.measuring.assembly import ReadyTimes

REPEATS = 9
PAUSE_S = 0.2
"""Between starts, in which the zygote forks the next child ahead and the pool is filled again."""
START_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.0005
SHADOWS_SHARE = 1 / 3
"""The largest share of the model's weights in the Shadows that are started."""


class _StartListener:
    """A platform's listener: futures for instances that become ready or end."""

    def __init__(self) -> None:
        self._ready: dict[str, asyncio.Future[float]] = {}
        self._gone: dict[str, asyncio.Future[str]] = {}

    def ready(self, instance_id: str) -> asyncio.Future[float]:
        """A future of the time at which the instance is ready."""
        return self._ready.setdefault(instance_id, asyncio.get_running_loop().create_future())

    def gone(self, instance_id: str) -> asyncio.Future[str]:
        """A future of the reason why the instance has ended."""
        return self._gone.setdefault(instance_id, asyncio.get_running_loop().create_future())

    def instance_ready(self, instance: Instance, channel: BatchChannel) -> None:
        del channel
        self.ready(instance.id).set_result(time.perf_counter())

    def instance_gone(self, instance_id: str, reason: str) -> None:
        self.gone(instance_id).set_result(reason)

    def pair_changed(self, body: Instance) -> None:
        """Do nothing: no batches are sent to pairs."""

    def shadow_found(self, shadow: Instance) -> None:
        """Do nothing: a new platform finds no earlier Shadows."""

    def log_line(self, function: FunctionKey, instance_id: str, text: str) -> None:
        """Do nothing: log lines are ignored."""


class _NothingBuilt:
    """An image resolver without any built image."""

    def resolve(self, image: str) -> BuiltHandler | None:
        del image
        return None


class _InstanceStarts:
    """Starts instances of one function on a platform, one at a time."""

    def __init__(self, platform: LocalPlatform, listener: _StartListener, spec: FunctionSpec) -> None:
        self._platform = platform
        self._listener = listener
        self._spec = spec

    async def body(self) -> tuple[Instance, float]:
        """Start a Body. Returns it with the seconds from the decision until it was ready."""
        await asyncio.sleep(PAUSE_S)
        started_s = time.perf_counter()
        instance = await self._platform.create(InstanceRequest(self._spec, 1, 1, None, {}))
        ready, gone = self._listener.ready(instance.id), self._listener.gone(instance.id)
        await asyncio.wait((ready, gone), timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            raise _not_started(gone)
        return instance, ready.result() - started_s

    async def shadow(self, body: Instance, pair: Pair) -> float:
        """Seconds from the decision for a Shadow until it has registered. The Shadow is ended before this returns."""
        await asyncio.sleep(PAUSE_S)
        started_s = time.perf_counter()
        shadow = await self._platform.create_shadow(body.id, pair)
        gone = self._listener.gone(shadow.id)
        while not self._is_ready(shadow):
            if gone.done() or time.perf_counter() > started_s + START_TIMEOUT_S:
                raise _not_started(gone)
            await asyncio.sleep(POLL_INTERVAL_S)
        took_s = time.perf_counter() - started_s
        await self.end(shadow)
        return took_s

    async def end(self, instance: Instance) -> None:
        """Stop an instance and wait for its end."""
        await self._platform.destroy(instance.id)
        await self._listener.gone(instance.id)

    def _is_ready(self, expected: Instance) -> bool:
        instances = self._platform.instances(expected.function)
        return any(instance.id == expected.id and instance.state is InstanceState.READY for instance in instances)


def measure_starts(repository: ModelRepository, entry: ModelEntry) -> ReadyTimes:
    """Median seconds from decisions until instances are ready.

    Raises:
        GnomonError: an instance or the platform could not be started.

    """
    assert entry.layers is not None, "a profile is measured of a model with blocks"
    layers = Layers.from_json(json.loads(entry.layers.read_bytes()))
    blocks = shadow_blocks(layers)
    with tempfile.TemporaryDirectory(prefix="gnomon-starts-") as folder:
        platform = LocalPlatform(Path(folder), repository, _NothingBuilt(), cores=max(2, os.cpu_count() or 1))
        bodies_s, shadows_s = asyncio.run(_start_all(platform, entry, Pair(1, blocks, (0, 1))))
    how = f"the local platform, {REPEATS} starts of each; a Shadow of {layers.parameter_bytes(blocks) / 1e6:.1f} MB from the pool"
    if not shadows_s:
        return ReadyTimes(statistics.median(bodies_s), how.partition(" of each")[0])
    return ReadyTimes(statistics.median(bodies_s), how, statistics.median(shadows_s), layers.parameter_bytes(blocks))


def shadow_blocks(layers: Layers) -> tuple[int, ...]:
    """The lightest blocks that can be split, up to a third of the weights together."""
    able = [number for number, block in enumerate(layers.blocks) if block.splittable]
    chosen: list[int] = []
    for number in sorted(able, key=lambda number: layers.blocks[number].parameter_bytes):
        if layers.parameter_bytes([*chosen, number]) <= SHADOWS_SHARE * layers.parameter_bytes():
            chosen.append(number)
    return tuple(sorted(chosen))


async def _start_all(platform: LocalPlatform, entry: ModelEntry, pair: Pair) -> tuple[list[float], list[float]]:
    listener = _StartListener()
    annotations = {"gnomon/model": f"{entry.name}@{entry.version}"}
    spec = read_deployment({"service": "profiled", "image": "gnomon/body", "annotations": annotations})
    starts = _InstanceStarts(platform, listener, spec)
    await platform.start(listener)
    try:
        platform.check(spec)
        await platform.prepare(spec)
        bodies_s, shadows_s = [], []
        for _ in range(REPEATS):
            body, took_s = await starts.body()
            bodies_s.append(took_s)
            await starts.end(body)
        if pair.blocks:
            body, _ = await starts.body()
            shadows_s = [await starts.shadow(body, pair) for _ in range(REPEATS)]
    finally:
        await platform.stop()
    return bodies_s, shadows_s


def _not_started(gone: asyncio.Future[str]) -> GnomonError:
    reason = gone.result() if gone.done() else f"not ready after {START_TIMEOUT_S:g} s"
    return GnomonError(500, "start_failed", f"An instance could not be started: {reason}", "Try again.")
