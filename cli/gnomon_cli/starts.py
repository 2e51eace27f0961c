"""How long the platform of this machine takes to start an instance of a model: asked of the platform itself.

A platform of our own is started in an empty folder, with the model's repository. Bodies are made one after the other; each is
ready when it has loaded its weights, mapped, and answered a first batch.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionKey, read_deployment
from gnomon_core.seam_values import InstanceRequest, ModelEntry
from gnomon_core.seams import BatchChannel, ModelRepository
from gnomon_platforms.local.images import BuiltHandler
from gnomon_platforms.local.platform import LocalPlatform
from gnomon_profiler.measuring.assembly import ReadyTimes

REPEATS = 9
PAUSE_S = 0.2
"""Between starts, in which the zygote forks the next child ahead."""
PATIENCE_S = 60.0


class _Told:
    """A platform's listener: a future for each instance that is waited for."""

    def __init__(self) -> None:
        self._ready: dict[str, asyncio.Future[float]] = {}
        self._gone: dict[str, asyncio.Future[str]] = {}

    def ready(self, instance_id: str) -> asyncio.Future[float]:
        """When the instance was ready."""
        return self._ready.setdefault(instance_id, asyncio.get_running_loop().create_future())

    def gone(self, instance_id: str) -> asyncio.Future[str]:
        """Why it has gone."""
        return self._gone.setdefault(instance_id, asyncio.get_running_loop().create_future())

    def instance_ready(self, instance: Instance, channel: BatchChannel) -> None:
        del channel
        self.ready(instance.id).set_result(time.perf_counter())

    def instance_gone(self, instance_id: str, reason: str) -> None:
        self.gone(instance_id).set_result(reason)

    def pair_changed(self, body: Instance) -> None:
        """Nobody here is paired."""

    def log_line(self, function: FunctionKey, instance_id: str, text: str) -> None:
        """What an instance says is not asked for."""


class _NothingBuilt:
    """No function here has an image of its own."""

    def resolve(self, image: str) -> BuiltHandler | None:
        del image
        return None


def measure_starts(repository: ModelRepository, entry: ModelEntry) -> ReadyTimes:
    """The median time from a decision to a Body that is ready.

    Raises:
        GnomonError: the platform could not be started.

    """
    with tempfile.TemporaryDirectory(prefix="gnomon-starts-") as folder:
        times_s = asyncio.run(_start_bodies(Path(folder), repository, entry))
    return ReadyTimes(body_s=statistics.median(times_s), how=f"the local platform, {len(times_s)} starts")


async def _start_bodies(folder: Path, repository: ModelRepository, entry: ModelEntry) -> list[float]:
    told = _Told()
    platform = LocalPlatform(folder, repository, _NothingBuilt())
    annotations = {"gnomon/model": f"{entry.name}@{entry.version}"}
    spec = read_deployment({"service": "profiled", "image": "gnomon/body", "annotations": annotations})
    await platform.start(told)
    try:
        platform.check(spec)
        await platform.prepare(spec)
        times_s = []
        for _ in range(REPEATS):
            await asyncio.sleep(PAUSE_S)
            began_s = time.perf_counter()
            instance = await platform.create(InstanceRequest(spec, 1, 1, None, {}))
            ready, gone = told.ready(instance.id), told.gone(instance.id)
            await asyncio.wait((ready, gone), timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            times_s.append(ready.result() - began_s)
            await platform.destroy(instance.id)
            await gone
    finally:
        await platform.stop()
    return times_s
