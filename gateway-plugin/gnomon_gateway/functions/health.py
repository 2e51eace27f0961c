"""Whether instances still answer, found out by using them.

An idle instance is sent a canary every few seconds. A busy one is bounded by its batch: when it has taken several times what its
requests allowed, nobody waits for it any more and it does not come back by itself. A stream shows life with every part of it.

A channel may know that its instance is well without asking it (`known_well`), such as by what a cluster says of its pod: then
nothing is sent, and no task is begun for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from gnomon_core.interfaces import BatchChannel
from gnomon_gateway.dispatch.dispatcher import Dispatcher
from gnomon_gateway.dispatch.fleet import Worker
from gnomon_gateway.queueing.request import Batch

EVERY_S = 3.0
PROBE_TIMEOUT_S = 5.0
BUSY_FACTOR = 2.0
BUSY_AT_LEAST_S = 10.0
"""A batch with a short deadline may be the one that pays for a cold cache; that alone does not cost the instance its life."""


class Health:
    """Watches the instances of one function, from `start` to `stop`. `on_frozen(instance_id, reason)` is called once for each."""

    def __init__(
        self, dispatcher: Dispatcher, channels: Mapping[str, BatchChannel], on_frozen: Callable[[str, str], None]
    ) -> None:
        self._dispatcher = dispatcher
        self._channels = channels
        self._on_frozen = on_frozen
        self._timer: asyncio.TimerHandle | None = None
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._reported: set[str] = set()
        self._alive_s: dict[int, float] = {}

    def start(self) -> None:
        """Begin, or go on."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for probe in self._probes.values():
            probe.cancel()

    def sign_of_life(self, batch: Batch) -> None:
        """Part of a streamed answer has come."""
        self._alive_s[batch.id] = time.monotonic()

    def _look(self) -> None:
        self._timer = None
        now_s = time.monotonic()
        workers = self._dispatcher.workers.by_id
        if self._reported or self._alive_s:
            self._forget(workers)
        for worker in list(workers.values()):
            if worker.id in self._reported:
                continue
            if worker.batches:
                self._bound(worker, now_s)
            elif not worker.draining and worker.id not in self._probes and not self._known_well(worker.id):
                self._probes[worker.id] = asyncio.get_running_loop().create_task(self._probe(worker.id))
        if workers:
            self.start()

    def _forget(self, workers: Mapping[str, Worker]) -> None:
        """Keep what concerns instances and batches that are there."""
        self._reported &= workers.keys()
        executing = {batch for worker in workers.values() for batch in worker.batches}
        self._alive_s = {batch: at_s for batch, at_s in self._alive_s.items() if batch in executing}

    def _bound(self, worker: Worker, now_s: float) -> None:
        """Report an instance if all that it executes has taken too long. Beside others, one such request only holds a place."""
        took_s = [self._beyond_s(batch, now_s) for batch in worker.batches.values()]
        if all(took_s):
            self._report(worker.id, f"its batch has been executing for {max(took_s):.1f} s")

    def _beyond_s(self, batch: Batch, now_s: float) -> float:
        """How long the batch has shown no life where that is more than its requests allow; else 0."""
        since_s = self._alive_s.get(batch.id, batch.sent_s)
        limit_s = max(BUSY_AT_LEAST_S, BUSY_FACTOR * (batch.deadline_s - batch.sent_s))
        return now_s - since_s if now_s - since_s > limit_s else 0.0

    def _known_well(self, instance_id: str) -> bool:
        known: Callable[[], bool] | None = getattr(self._channels.get(instance_id), "known_well", None)
        return known is not None and known()

    async def _probe(self, instance_id: str) -> None:
        try:
            channel = self._channels.get(instance_id)
            if channel is None or await channel.probe(PROBE_TIMEOUT_S):
                return
            worker = self._dispatcher.workers.by_id.get(instance_id)
            if worker is not None and not worker.batches and self._channels.get(instance_id) is channel:
                self._report(instance_id, f"it did not answer a canary within {PROBE_TIMEOUT_S:.0f} s")
        finally:
            self._probes.pop(instance_id, None)

    def _report(self, instance_id: str, reason: str) -> None:
        if instance_id not in self._reported:
            self._reported.add(instance_id)
            self._on_frozen(instance_id, reason)
