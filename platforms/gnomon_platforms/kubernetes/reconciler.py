"""The reconciler of one object: plan from what the informers have cached, execute the plan's steps, repeat after each event.

    an informer's event, a policy's decision, a timer
        ▼
    `trigger`   events are not queued one by one: all that come during a run cause one further run
        ▼
    `plan`      pure: reads caches, returns the steps, and when to plan again although nothing is observed to change
        ▼
    `execute`   all steps of a plan at once; each write carries the version that the plan was made from
        ├── done                  wait for an event, for `Plan.requeue_after_s`, at the latest for the next resync
        ├── conflict (409, 404)   another client has changed the object: plan again at its event, at the latest after the back-off
        └── refused, no answer    log it, call `step_failed`, plan again after the back-off

An object has one task, so its steps never overlap with those of its next plan, and objects do not wait for each other. Steps of
one plan do not depend on each other: what has to come first is a plan of its own, and the next plan follows from what that one
changed. So a process may be killed between any two writes, and its successor continues from the cluster's state.

The back-off is 0.5, 1, 2, … 10 s for each object, with jitter, and starts again at 0.5 s after a plan whose steps have all
succeeded. As in controller-runtime, it replaces `requeue_after_s`, and events are not delayed by it. The resync repairs what a
lost event has left behind.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 10.0
RESYNC_S = 600.0
"""Seconds until an object without events is planned again: a plan without steps takes less than a millisecond."""
SHORTEST_REQUEUE_S = 0.05
"""Least seconds until the next plan: bounds the load of a plan that always requests another one at once."""
STALE = frozenset({"kubernetes_conflict", "kubernetes_missing"})
"""Error codes of writes that were decided from an outdated state."""

StepT = TypeVar("StepT")


@dataclass(frozen=True, slots=True)
class Plan(Generic[StepT]):
    """The steps to take now, and the time until the next plan if no event comes before; None where only an event matters."""

    steps: Sequence[StepT] = ()
    requeue_after_s: float | None = None


class Reconciler(ABC, Generic[StepT]):
    """Reconciles the object `name` from `start` to `close`. Not thread-safe: only the event loop's thread uses it."""

    def __init__(self, name: str, clock: Clock, rng: random.Random, log: logging.Logger) -> None:
        self.name = name
        self._clock, self._rng, self._log = clock, rng, log
        self._failures = 0
        """Plans in a row with a step that failed."""
        self._triggered = asyncio.Event()
        self._due_s = self._timer_s = 0.0
        """The time of the next plan without an event, and the time until which the timer sleeps."""
        self._timer: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    def plan(self) -> Plan[StepT]:
        """The next steps, from the present state of the caches. Called once for any number of events."""

    @abstractmethod
    async def execute(self, step: StepT) -> None:
        """Take one step.

        Raises:
            GnomonError: the API server refuses, or does not answer; with a code of `STALE` the plan is outdated.

        """

    def step_failed(self, step: StepT, error: GnomonError) -> None:
        """Called with each step that was refused, for what the object's users are to be told. The default does nothing."""

    def start(self) -> None:
        """Begin with a first plan, in the background."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def trigger(self) -> None:
        """Plan again: something has changed that plans depend on."""
        self._triggered.set()

    async def close(self) -> None:
        """Stop planning. A write that was sent may still be executed."""
        tasks = [task for task in (self._task, self._timer) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._triggered.clear()
            self._requeue(await self._reconcile())
            await self._triggered.wait()

    async def _reconcile(self) -> float:
        """Plan and execute; the time until the next plan if no event comes before."""
        try:
            plan = self.plan()
        except Exception as error:  # noqa: BLE001 - a bug that one state of the cluster meets must not end the reconciliation
            self._report("planning", error)
            return self._backoff_s()
        done = await asyncio.gather(*(self._take(step) for step in plan.steps))
        if not all(done):
            return self._backoff_s()
        self._failures = 0
        return self._wait_s(plan)

    async def _take(self, step: StepT) -> bool:
        """Take one step. Returns whether it succeeded. No failure keeps the other steps of the plan from being taken."""
        try:
            await self.execute(step)
        except GnomonError as error:
            if error.code in STALE:
                self._log.debug("%s: %s was planned from an outdated state: %s", self.name, type(step).__name__, error)
            else:
                self._report(type(step).__name__, error)
                self.step_failed(step, error)
            return False
        except Exception as error:  # noqa: BLE001 - as above
            self._report(type(step).__name__, error)
            return False
        return True

    def _report(self, action: str, error: Exception) -> None:
        if isinstance(error, GnomonError):
            self._log.warning("%s: %s failed: %s", self.name, action, error)
        else:
            self._log.error("%s: internal error in %s", self.name, action, exc_info=error)

    def _wait_s(self, plan: Plan[StepT]) -> float:
        if plan.requeue_after_s is None:
            # Objects that were all found by one list are not all resynced at once.
            return RESYNC_S * self._rng.uniform(0.5, 1.0)
        return max(SHORTEST_REQUEUE_S, min(plan.requeue_after_s, RESYNC_S))

    def _backoff_s(self) -> float:
        backoff_s = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return backoff_s * self._rng.uniform(0.5, 1.0)

    def _requeue(self, after_s: float) -> None:
        """Trigger after this time.

        A timer that is due later than wanted is replaced; one that is due earlier is kept and sleeps on when it wakes. So an
        object that is triggered often needs no timer of its own for each of its plans.
        """
        self._due_s = self._clock.now_s() + after_s
        if self._timer is not None and not self._timer.done():
            if self._timer_s <= self._due_s:
                return
            self._timer.cancel()
        self._timer_s = -math.inf
        self._timer = asyncio.get_running_loop().create_task(self._sleep())

    async def _sleep(self) -> None:
        while self._timer_s < self._due_s:
            self._timer_s = self._due_s
            await self._clock.sleep(self._due_s - self._clock.now_s())
        self.trigger()
