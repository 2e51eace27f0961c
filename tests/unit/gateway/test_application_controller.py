"""The controller of applications, from counters to decisions: loads, states and bounds."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gnomon_autoscaler.policies.infaas import greedy
from gnomon_autoscaler.policies.infaas.workers import decide
from gnomon_core.fleet import Node
from gnomon_core.functions import FunctionKey
from gnomon_core.variant_scaling import DEMAND_WINDOW_S, ApplicationObservation, Demand, VariantMember
from gnomon_core.variants import CORES, MEMORY_BYTES, Variant, VariantState
from gnomon_gateway.applications.controller import (
    ApplicationController,
    Counts,
    LoadWindow,
    MemberWatch,
    capacity,
    measurement_of,
    worker_observations,
)
from gnomon_gateway.applications.service import LONGEST_RETRY_S, Attempts
from gnomon_gateway.variants.states import Measurement
from tests.virtual_clock import VirtualClock

VARIANT = Variant("a@1/program/fp32/2", "a", "program", "fp32", 2, 4, 0.7, 0.5, {1: 0.02, 4: 0.05}, 1 << 20, 80.0, 2.0)


def test_load_is_the_samples_per_second_of_the_window() -> None:
    window = LoadWindow()
    for second in range(31):
        window.record(float(second), 5 * second)
    assert window.rps(30.0) == pytest.approx(5.0)
    for second in range(31, 31 + int(DEMAND_WINDOW_S) + 1):
        window.record(float(second), 150)
    assert window.rps(41.0) == 0.0
    assert window.last_asked_s == 30.0


def test_first_queries_count_at_once() -> None:
    window = LoadWindow()
    window.record(100.0, 3)
    assert window.rps(100.0) == 3.0
    window.record(101.0, 7)
    assert window.rps(101.0) == 4.0


def test_slowdown_is_batch_time_by_what_the_variant_says_of_that_size() -> None:
    before, after = Counts(10.0, 100, 50, 200.0, 4.0), Counts(12.0, 140, 60, 240.0, 5.2)
    measured = measurement_of(VARIANT, before, after, ready=2)
    assert measured.slowdown == pytest.approx(1.2 / 2 / 10 / 0.05), "0.06 s a batch of four, which take 0.05"
    assert (measured.rate_rps, measured.saturation_rps, measured.batches) == (20.0, 160.0, 10)


def test_rate_counts_samples_where_requests_have_several() -> None:
    before, after = Counts(0.0, 0, 0, 0.0, 0.0), Counts(2.0, 10, 10, 40.0, 0.5)
    assert measurement_of(VARIANT, before, after, ready=1).rate_rps == 20.0


def test_idle_period_says_nothing_of_the_speed() -> None:
    counts = Counts(0.0, 5, 5, 5.0, 1.0)
    measured = measurement_of(VARIANT, counts, Counts(2.0, 5, 5, 5.0, 1.0), ready=0)
    assert (measured.rate_rps, measured.slowdown, measured.batches) == (0.0, 1.0, 0)


def test_variant_slower_than_its_profile_counts_by_the_rate_that_it_reaches() -> None:
    watch = MemberWatch(Counts(0.0, 0, 0, 0.0, 0.0))
    for _ in range(6):
        watch.measured(Measurement(30.0, 80.0, slowdown=2.0, batches=15))
    assert watch.reached(VARIANT).saturation_rps == pytest.approx(40.0, rel=0.05)
    observation = ApplicationObservation(0.0, "faces", (VariantMember(watch.reached(VARIANT), 1, 1),), (Demand(40.0),))
    assert greedy.decide(observation, greedy.GreedyState())[0].instances == {VARIANT.id: 2}
    for _ in range(6):
        watch.measured(Measurement(0.0, 80.0))
    assert watch.reached(VARIANT).saturation_rps == pytest.approx(80.0, rel=0.05), "nobody contends while nothing is asked"


def test_variant_faster_than_its_profile_counts_by_its_profile() -> None:
    watch = MemberWatch(Counts(0.0, 0, 0, 0.0, 0.0))
    watch.measured(Measurement(30.0, 80.0, slowdown=0.5, batches=15))
    assert watch.reached(VARIANT) == VARIANT


def test_nodes_are_workers_with_allocated_shares_and_the_states_of_variants_there() -> None:
    nodes = (Node("a", 8, 100, 2.0, 50), Node("b", 4, 100, 4.0, 100))
    first, second = worker_observations(nodes, [("a", VariantState.OVERLOADED), ("c", VariantState.ACTIVE)])
    assert (first.utilization, first.states) == ({CORES: 0.75, MEMORY_BYTES: 0.5}, (VariantState.OVERLOADED,))
    assert (second.utilization, second.states) == ({CORES: 0.0, MEMORY_BYTES: 0.0}, ())


def test_machine_that_is_full_asks_for_another_one() -> None:
    [full] = worker_observations((Node("a", 8, 100, 1.0, 50),), [("a", VariantState.ACTIVE)])
    assert decide([full]).add == ("cpu",)
    assert not decide(worker_observations((Node("a", 8, 100, 4.0, 50),), [("a", VariantState.ACTIVE)])).add


def test_members_are_made_again_when_something_changed_or_failed_and_ever_more_rarely_where_it_fails() -> None:
    attempts = Attempts()
    assert attempts.due(0.0, changed=False), "the first one"
    attempts.ended(0.0, failed=False)
    assert not attempts.due(10.0, changed=False)
    assert attempts.due(10.0, changed=True)
    assert attempts.due(LONGEST_RETRY_S, changed=False)
    waits = []
    now_s = 0.0
    for _ in range(7):
        attempts.ended(now_s, failed=True)
        waits.append(next(wait_s for wait_s in range(1000) if attempts.due(now_s + wait_s, changed=False)))
        now_s += waits[-1]
    assert waits == [10, 20, 40, 80, 160, 300, 300]
    assert attempts.due(now_s, changed=True)
    attempts.ended(now_s, failed=True)
    assert not attempts.due(now_s + 9.0, changed=True), "it failed just now"


def test_capacity_is_what_is_free_and_what_its_own_instances_use() -> None:
    nodes = (Node("n", 8, 100, 3.0, 40),)
    assert capacity(nodes, {CORES: 2.0, MEMORY_BYTES: 30.0}) == {CORES: 5.0, MEMORY_BYTES: 70.0}
    assert capacity(nodes, {CORES: 7.0, MEMORY_BYTES: 90.0}) == {CORES: 8.0, MEMORY_BYTES: 100.0}, "idle instances hold no cores"


async def test_application_that_is_removed_and_declared_again_begins_anew() -> None:
    def declared() -> Any:
        application = SimpleNamespace(members={}, demands={})
        settings = SimpleNamespace(scale=SimpleNamespace(zero_duration_s=60.0))
        spec = SimpleNamespace(key=FunctionKey("photos"), settings=settings)
        return SimpleNamespace(spec=spec, key=spec.key, application=application, together=False)

    endpoints = [declared()]
    clock = VirtualClock()
    applications = SimpleNamespace(endpoints=lambda: iter(endpoints))
    controller = ApplicationController(
        cast("Any", applications), cast("Any", None), cast("Any", None), None, clock, decide_workers=cast("Any", None)
    )
    running = asyncio.create_task(controller.run())
    await clock.advance(2.0)
    first = controller._watched[FunctionKey("photos")]
    await clock.advance(2.0)
    assert controller._watched[FunctionKey("photos")] is first
    endpoints[:] = [declared()]
    await clock.advance(2.0)
    assert controller._watched[FunctionKey("photos")] is not first
    endpoints.clear()
    await clock.advance(2.0)
    assert controller._watched == {}
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
