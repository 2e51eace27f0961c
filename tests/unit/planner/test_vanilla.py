"""Vanilla Lambda: one request a call, at the largest memory and at the cherry-picked one."""

from dataclasses import replace

import pytest

from gnomon_core.settings import read_settings
from gnomon_planner.buffer import BufferPlan
from gnomon_planner.maps import Map
from gnomon_planner.optimizer import Landscape, PerCall
from gnomon_planner.plans import LAMBDA, Plan, Size, Space
from gnomon_planner.vanilla import alone, cherry_picked, deployment, largest, latency_of
from tests.refusals import refused

PRICE = LAMBDA["x86"]
BURSTY = Map.mmpp2((10.0, 100.0), (5.0, 5.0))


def size(memory_mb: int, seconds: float) -> Size:
    return Size(f"{memory_mb} MB", memory_mb, memory_mb / 1769, (seconds, 2 * seconds))


SIZES = (size(512, 0.400), size(1024, 0.190), size(2048, 0.100), size(3008, 0.090))


def test_a_request_takes_what_a_batch_of_one_takes_and_pays_for_its_call() -> None:
    plan = alone(SIZES[2], PRICE, 95.0)
    assert plan.latency_s == pytest.approx(0.1)
    assert plan.usd_per_request == pytest.approx(2 * 0.1 * 1.66667e-5 + 2e-7)
    assert (plan.buffer.batch, plan.buffer.timeout_s) == (1, 0.0)


def test_the_docstrings_figures() -> None:
    one, two = (alone(size(memory_mb, seconds), PRICE, 95.0) for memory_mb, seconds in ((1769, 0.109), (3538, 0.055)))
    assert round(one.usd_per_request * 1e6, 2) == 3.34
    assert round(two.usd_per_request * 1e6, 2) == 3.37


def test_the_largest_is_the_largest_memory_wherever_it_stands() -> None:
    assert largest(SIZES[::-1], PRICE, 95.0).size.memory_mb == 3008
    assert largest(SIZES, PRICE, 95.0).size.memory_mb == 3008


def test_the_cherry_picked_is_the_cheapest_that_is_in_time() -> None:
    # Per million: 512 MB $3.53, 1024 MB $3.37, 2048 MB $3.53, 3008 MB $4.61.
    assert cherry_picked(SIZES, PRICE, 95.0, 1.0).plan.size.memory_mb == 1024
    assert cherry_picked(SIZES, PRICE, 95.0, 0.15).plan.size.memory_mb == 2048
    assert not cherry_picked(SIZES, PRICE, 95.0, 0.15).failed


def test_of_equal_prices_the_quicker_is_picked() -> None:
    # 100 ms at 2048 MB and 200 ms at 1024 MB are the same GB-seconds.
    assert cherry_picked((size(1024, 0.2), size(2048, 0.1)), PRICE, 95.0, 1.0).plan.size.memory_mb == 2048


def test_where_none_is_in_time_the_quickest_is_and_it_says_so() -> None:
    choice = cherry_picked(SIZES, PRICE, 95.0, 0.05)
    assert choice.plan.size.memory_mb == 3008
    assert choice.failed == "No memory has its P95 within 50 ms; the least is 90.0 ms."


@pytest.mark.parametrize("slo_s", [0.09, 0.12, 0.3, 0.5])
def test_vanilla_plan_equals_the_optimizer_s_with_batch_one(slo_s: float) -> None:
    found = Landscape(BURSTY, Space(SIZES, (1,), (0.0,)), PerCall(PRICE), 95.0).cheapest(slo_s).plan
    picked = cherry_picked(SIZES, PRICE, 95.0, slo_s).plan
    assert picked.size == found.size
    assert picked.latency_s == pytest.approx(found.latency_s)
    assert picked.usd_per_request == pytest.approx(found.usd_per_request)


def test_service_times_that_vary_make_a_distribution_and_a_mean_price() -> None:
    ratios = tuple(0.905 + number / 100.0 for number in range(20))
    varying = [replace(size, ratios=ratios) for size in SIZES]
    plan = alone(varying[2], PRICE, 95.0)
    assert plan.latency_s == pytest.approx(0.1 * 1.085)
    assert latency_of(varying[2]).percentile(50.0) == pytest.approx(0.1 * 0.995)
    # Each is billed by whole milliseconds: on average half a one more.
    assert plan.usd_per_request == pytest.approx(2 * 0.1005 * 1.66667e-5 + 2e-7)
    assert cherry_picked(varying, PRICE, 95.0, 0.105).plan.size.memory_mb == 3008


def test_nothing_to_choose_from_is_refused() -> None:
    with refused(400, "bad_space", match="no size"):
        largest((), PRICE, 95.0)


def test_vanilla_plan_has_the_slots_that_arrivals_need() -> None:
    plan: Plan = cherry_picked(SIZES, PRICE, 95.0, 0.15).plan
    found = deployment(plan, Map.poisson(50.0), 0.15, 95.0)
    settings = read_settings(found.labels, found.annotations)
    assert (settings.memory_mb, settings.max_batch, settings.scheduler, settings.autoscaler) == (2048, 1, "immediate", "fixed")
    assert (settings.slo_s, settings.slo_percentile) == (0.15, 95.0)
    # 50 a second for 0.1 s: Poisson of mean 5, whose 99.9 % quantile is 13.
    assert (settings.scale.min, settings.scale.max) == (13, 13)


def test_slots_are_for_what_a_request_takes_in_the_mean() -> None:
    """A median of 100 ms, and a third of the requests take four times that: 200 ms in the mean, and 10 at once."""
    varying = Plan(replace(SIZES[2], ratios=(1.0, 1.0, 4.0)), BufferPlan(1, 0.0), 0.4, 0.0)
    even = Plan(size(2048, 0.2), BufferPlan(1, 0.0), 0.2, 0.0)
    found, expected = (deployment(one, Map.poisson(50.0), 1.0, 95.0).labels for one in (varying, even))
    assert found == expected
