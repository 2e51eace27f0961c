"""The health of a function's instances: whether they start, and whether they still answer.

An idle instance is sent a canary every few seconds. A busy instance is bounded by its batches: once all of them have taken
several times as long as their requests allow, no client waits any more and the instance is replaced. A part of a streamed answer
is a sign of life. A channel that knows its instance's health, such as from the pod's status, is asked instead (`known_well`).

    a start fails ─▶ retried at once, calls wait ─┬─ ready ─▶ forgotten
                                                  └─ fails again ─▶ calls get 503 `function_cannot_start` until one is ready
    no node has capacity ─▶ while the function has no instance at all, calls get that refusal

Calls are refused while a retry starts or its back-off lasts. After the back-off one call is admitted, so that a function that is
started by its requests is tried again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import BatchChannel
from gnomon_gateway.dispatch.dispatcher import Dispatcher
from gnomon_gateway.dispatch.fleet import Worker
from gnomon_gateway.queueing.queue import Batch

EVERY_S = 3.0
PROBE_TIMEOUT_S = 5.0
BUSY_FACTOR = 2.0
BUSY_AT_LEAST_S = 10.0
"""A batch with a short deadline may be slow because of a cold cache, which is no reason to replace the instance."""


class Health:
    """Checks the instances of one function. `on_frozen(instance_id, reason)` is called once for each that does not answer."""

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
        """Start the periodic check, if it is not running."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for probe in self._probes.values():
            probe.cancel()

    def sign_of_life(self, batch: Batch) -> None:
        """A part of a streamed answer has arrived."""
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
        """Forget instances and batches that have ended."""
        self._reported &= workers.keys()
        executing = {batch for worker in workers.values() for batch in worker.batches}
        self._alive_s = {batch: at_s for batch, at_s in self._alive_s.items() if batch in executing}

    def _bound(self, worker: Worker, now_s: float) -> None:
        """Report an instance if all its batches have taken too long. A single slow batch among others only occupies one place."""
        took_s = [self._beyond_s(batch, now_s) for batch in worker.batches.values()]
        if all(took_s):
            self._report(worker.id, f"its batch has been executing for {max(took_s):.1f} s")

    def _beyond_s(self, batch: Batch, now_s: float) -> float:
        """Seconds since the batch last showed life, if that is more than its requests allow; else 0."""
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


FINAL_FAILURES = 2
"""The first failed start is retried at once; from the second in a row on, callers get the reason."""
RETRY_S = 1.0
"""The shortest `Retry-After` of a function that cannot start."""
SHOWN_CHARACTERS = 600
LOG_ENDS = "; its log ends: "


@dataclass(slots=True)
class StartFailures:
    """Why a function has fewer instances than wanted, since an instance was last ready or the function was last deployed."""

    failures: int = 0
    reason: str = ""
    shortage: GnomonError | None = None
    """The last refusal of the platform to create an instance; None after one was created."""
    at_s: float = float("-inf")
    logged: str = ""

    def failed(self, now_s: float, reason: str) -> None:
        """An instance ended before it was ready."""
        self.failures += 1
        self.reason, self.at_s = summary(reason), now_s

    def refused(self, now_s: float, refusal: GnomonError) -> bool:
        """The platform refused an instance. Returns whether the function's log does not have this reason yet."""
        self.shortage, self.at_s = refusal, now_s
        news, self.logged = self.logged != refusal.code, refusal.code
        return news

    def created(self) -> None:
        """An instance was created: there was capacity."""
        self.shortage = None

    def ready(self) -> None:
        """An instance is ready: the function can start."""
        self.failures, self.reason = 0, ""

    @property
    def problem(self) -> GnomonError | None:
        """The reason as one error; None if none is known."""
        if self.failures:
            return GnomonError(
                503,
                "function_cannot_start",
                f"The function cannot start: {self.reason}",
                "Fix it and deploy it again; `gnomon logs NAME` has the rest.",
                retry_after_s=RETRY_S,
            )
        return self.shortage

    def final(self, instances: int) -> bool:
        """Whether an immediate retry is not expected to help. `instances` is their number: one that ends frees capacity."""
        return self.failures >= FINAL_FAILURES if self.failures else self.shortage is not None and not instances

    def refusal(self, now_s: float, *, starting: int, instances: int, backoff_s: float) -> GnomonError | None:
        """The error for a call while no instance is ready; None if the call should wait.

        `starting` of the function's `instances` are starting; `backoff_s` is the time until the autoscaler starts the next one.
        """
        problem, retry_s = self.problem, max(backoff_s, self.at_s + RETRY_S - now_s)
        if problem is None or not self.final(instances) or (retry_s <= 0 and not starting):
            return None
        after_s = max(RETRY_S, retry_s)
        return GnomonError(problem.status, problem.code, problem.message, problem.hint, retry_after_s=after_s)


def summary(reason: str) -> str:
    """How an instance ended, with the last line of its log only."""
    how, ends, log = reason.partition(LOG_ENDS)
    last = log.rpartition(" | ")[2]
    return (f"{last} ({how})" if ends and last else how)[:SHOWN_CHARACTERS]
