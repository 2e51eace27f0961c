"""The reconciler of one object, in virtual time: when it plans, what it executes, and how it meets errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator

import pytest

from gnomon_core.errors import GnomonError
from gnomon_platforms.kubernetes.reconciler import FIRST_BACKOFF_S, LONGEST_BACKOFF_S, RESYNC_S, Plan, Reconciler
from tests.virtual_clock import VirtualClock

CONFLICT = GnomonError(409, "kubernetes_conflict", "Somebody else has changed it.", "Try again.")
QUOTA = GnomonError(503, "kubernetes_denied", "exceeded quota: small", "Raise the quota.")


class World(Reconciler[str]):
    """An object whose plans and errors the test sets."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__("figlet.users", clock, random.Random(1), logging.getLogger("gnomon.test"))
        self.clock = clock
        self.next: Plan[str] = Plan()
        self.error_of: dict[str, Exception] = {}
        self.planned_at: list[float] = []
        self.executed: list[str] = []
        self.refused: list[str] = []
        self.gate = asyncio.Event()
        """Closed, it keeps each step from ending."""
        self.gate.set()

    def plan(self) -> Plan[str]:
        self.planned_at.append(self.clock.now_s())
        if "plan" in self.error_of:
            raise self.error_of["plan"]
        return self.next

    async def execute(self, step: str) -> None:
        self.executed.append(step)
        await self.gate.wait()
        if step in self.error_of:
            raise self.error_of[step]

    def step_failed(self, step: str, error: GnomonError) -> None:
        self.refused.append(f"{step}: {error.message}")

    def gaps(self) -> list[float]:
        """The times between two plans."""
        return [later - earlier for earlier, later in zip(self.planned_at, self.planned_at[1:], strict=False)]


@contextlib.asynccontextmanager
async def running(plan: Plan[str] | None = None) -> AsyncIterator[World]:
    world = World(VirtualClock())
    world.next = plan or Plan()
    world.start()
    await world.clock.advance(0.0)
    try:
        yield world
    finally:
        await world.close()


async def test_object_is_planned_at_the_start_and_again_after_each_event() -> None:
    async with running() as world:
        assert world.planned_at == [0.0]
        await world.clock.advance(5.0)
        world.trigger()
        await world.clock.advance(0.0)
        assert world.planned_at == [0.0, 5.0]


async def test_events_during_a_run_cause_one_further_plan_and_steps_never_overlap() -> None:
    async with running(Plan(("scale",))) as world:
        world.gate.clear()
        world.trigger()
        await world.clock.advance(0.0)
        assert world.executed == ["scale", "scale"]
        for _ in range(10):
            world.trigger()
        await world.clock.advance(0.0)
        assert world.executed == ["scale", "scale"], "the second one is still in flight"
        world.next = Plan(("status",))
        world.gate.set()
        await world.clock.advance(0.0)
        assert world.executed == ["scale", "scale", "status"]
        assert len(world.planned_at) == 3


async def test_all_steps_of_a_plan_are_executed_although_one_fails() -> None:
    world = World(VirtualClock())
    world.error_of = {"resize": QUOTA, "route": RuntimeError("a bug")}
    world.next = Plan(("resize", "route", "status"))
    world.start()
    await world.clock.advance(0.0)
    assert world.executed == ["resize", "route", "status"]
    assert world.refused == ["resize: exceeded quota: small"]
    await world.close()


async def test_plan_that_depends_on_time_is_made_again_when_it_is_due() -> None:
    async with running(Plan(requeue_after_s=6.0)) as world:
        await world.clock.advance(13.0)
        assert world.planned_at == [0.0, 6.0, 12.0]


async def test_event_moves_the_next_timed_plan_sooner_or_later() -> None:
    async with running(Plan(requeue_after_s=10.0)) as world:
        world.next = Plan(requeue_after_s=3.0)
        await world.clock.advance(1.0)
        world.trigger()
        await world.clock.advance(3.0)
        assert world.planned_at == [0.0, 1.0, 4.0]
        # The earlier timer is kept, and does not plan before the later time.
        world.next = Plan(requeue_after_s=20.0)
        await world.clock.advance(1.0)
        world.trigger()
        await world.clock.advance(19.0)
        assert world.planned_at == [0.0, 1.0, 4.0, 5.0]
        await world.clock.advance(1.0)
        assert world.planned_at[-1] == 25.0


async def test_plan_that_asks_to_be_made_at_once_does_not_take_the_processor() -> None:
    async with running(Plan(requeue_after_s=0.0)) as world:
        await world.clock.advance(1.0)
        assert len(world.planned_at) <= 21


async def test_object_without_events_is_resynced() -> None:
    async with running() as world:
        await world.clock.advance(RESYNC_S)
        assert 2 <= len(world.planned_at) <= 3


async def test_refused_steps_are_repeated_after_a_growing_backoff_until_one_succeeds() -> None:
    async with running() as world:
        world.error_of, world.next = {"scale": QUOTA}, Plan(("scale",))
        world.trigger()
        await world.clock.advance(300.0)
        gaps = world.gaps()[1:]
        for number, gap_s in enumerate(gaps):
            longest_s = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0**number)
            assert longest_s / 2.0 <= gap_s <= longest_s
        assert len(gaps) > 10
        world.error_of = {}
        await world.clock.advance(LONGEST_BACKOFF_S)
        after = len(world.planned_at)
        await world.clock.advance(LONGEST_BACKOFF_S)
        assert len(world.planned_at) == after
        # The next failure begins with the first back-off again.
        world.error_of = {"scale": QUOTA}
        world.trigger()
        await world.clock.advance(FIRST_BACKOFF_S)
        assert len(world.planned_at) == after + 2


async def test_event_is_not_delayed_by_the_backoff() -> None:
    async with running() as world:
        world.error_of, world.next = {"scale": QUOTA}, Plan(("scale",))
        world.trigger()
        await world.clock.advance(100.0)
        before = len(world.planned_at)
        world.trigger()
        await world.clock.advance(0.0)
        assert len(world.planned_at) == before + 1


async def test_failing_object_is_planned_by_its_backoff_and_not_by_its_timer() -> None:
    async with running() as world:
        world.error_of, world.next = {"resize": QUOTA}, Plan(("resize",), requeue_after_s=0.05)
        world.trigger()
        await world.clock.advance(100.0)
        assert min(world.gaps()[-5:]) >= LONGEST_BACKOFF_S / 2.0


async def test_conflict_is_planned_again_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as world:
        world.error_of, world.next = {"scale": CONFLICT}, Plan(("scale",))
        world.trigger()
        await world.clock.advance(0.0)
        world.error_of = {}
        await world.clock.advance(FIRST_BACKOFF_S)
    assert world.executed == ["scale", "scale"]
    assert (world.refused, caplog.records) == ([], [])


async def test_bug_in_a_plan_is_logged_and_ends_no_reconciliation(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as world:
        world.error_of, world.next = {"plan": KeyError("spec")}, Plan(("scale",))
        world.trigger()
        await world.clock.advance(0.0)
        assert "figlet.users: internal error in planning" in caplog.text
        world.error_of = {}
        await world.clock.advance(FIRST_BACKOFF_S)
        assert world.executed == ["scale"]


async def test_closed_reconciler_plans_no_more() -> None:
    async with running(Plan(requeue_after_s=1.0)) as world:
        await world.close()
        world.trigger()
        await world.clock.advance(10.0)
        assert world.planned_at == [0.0]
