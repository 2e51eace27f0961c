"""Vanilla Lambda, the baseline without a buffer: latency, price and choice of the memory."""

from dataclasses import replace

import pytest

from benchmarks.vanilla_lambda import cherry_picked, largest, latency_of, unbatched_plan
from gnomon_planner.billing import LAMBDA, PerCall
from gnomon_planner.maps import Map
from gnomon_planner.optimizer import Landscape
from gnomon_planner.plans import Size, Space
from tests.refusals import refused

PRICE = LAMBDA["x86"]
BURSTY = Map.mmpp2((10.0, 100.0), (5.0, 5.0))


def size(memory_mb: int, seconds: float) -> Size:
    return Size(f"{memory_mb} MB", memory_mb, memory_mb / 1769, (seconds, 2 * seconds))


UNBUFFERED_SIZES = (size(512, 0.400), size(1024, 0.190), size(2048, 0.100), size(3008, 0.090))


def test_a_request_takes_what_a_batch_of_one_takes_and_pays_for_its_call() -> None:
    plan = unbatched_plan(UNBUFFERED_SIZES[2], PRICE, 95.0)
    assert plan.latency_s == pytest.approx(0.1)
    assert plan.usd_per_request == pytest.approx(2 * 0.1 * 1.66667e-5 + 2e-7)
    assert (plan.buffer.batch, plan.buffer.timeout_s) == (1, 0.0)


def test_the_docstrings_figures() -> None:
    first, second = (
        unbatched_plan(size(memory_mb, seconds), PRICE, 95.0) for memory_mb, seconds in ((1769, 0.109), (3538, 0.055))
    )
    assert round(first.usd_per_request * 1e6, 2) == 3.34
    assert round(second.usd_per_request * 1e6, 2) == 3.37


def test_the_largest_is_the_largest_memory_wherever_it_stands() -> None:
    assert largest(UNBUFFERED_SIZES[::-1], PRICE, 95.0).size.memory_mb == 3008
    assert largest(UNBUFFERED_SIZES, PRICE, 95.0).size.memory_mb == 3008


def test_the_cherry_picked_is_the_cheapest_that_is_in_time() -> None:
    # Per million: 512 MB $3.53, 1024 MB $3.37, 2048 MB $3.53, 3008 MB $4.61.
    assert cherry_picked(UNBUFFERED_SIZES, PRICE, 95.0, 1.0).plan.size.memory_mb == 1024
    assert cherry_picked(UNBUFFERED_SIZES, PRICE, 95.0, 0.15).plan.size.memory_mb == 2048
    assert not cherry_picked(UNBUFFERED_SIZES, PRICE, 95.0, 0.15).failed


def test_of_equal_prices_the_quicker_is_picked() -> None:
    # 100 ms at 2048 MB and 200 ms at 1024 MB are the same GB-seconds.
    assert cherry_picked((size(1024, 0.2), size(2048, 0.1)), PRICE, 95.0, 1.0).plan.size.memory_mb == 2048


def test_where_none_is_in_time_the_quickest_is_and_it_says_so() -> None:
    choice = cherry_picked(UNBUFFERED_SIZES, PRICE, 95.0, 0.05)
    assert choice.plan.size.memory_mb == 3008
    assert choice.failed == "No memory has its P95 within 50 ms; the least is 90.0 ms."


@pytest.mark.parametrize("slo_s", [0.09, 0.12, 0.3, 0.5])
def test_vanilla_plan_equals_the_optimizer_s_with_batch_one(slo_s: float) -> None:
    found = Landscape(BURSTY, Space(UNBUFFERED_SIZES, (1,), (0.0,)), PerCall(PRICE), 95.0).cheapest(slo_s).plan
    picked = cherry_picked(UNBUFFERED_SIZES, PRICE, 95.0, slo_s).plan
    assert picked.size == found.size
    assert picked.latency_s == pytest.approx(found.latency_s)
    assert picked.usd_per_request == pytest.approx(found.usd_per_request)


def test_service_times_that_vary_make_a_distribution_and_a_mean_price() -> None:
    ratios = tuple(0.905 + number / 100.0 for number in range(20))
    varying = [replace(size, ratios=ratios) for size in UNBUFFERED_SIZES]
    plan = unbatched_plan(varying[2], PRICE, 95.0)
    assert plan.latency_s == pytest.approx(0.1 * 1.085)
    assert latency_of(varying[2]).percentile(50.0) == pytest.approx(0.1 * 0.995)
    # Each is billed by whole milliseconds: on average half a one more.
    assert plan.usd_per_request == pytest.approx(2 * 0.1005 * 1.66667e-5 + 2e-7)
    assert cherry_picked(varying, PRICE, 95.0, 0.105).plan.size.memory_mb == 3008


def test_nothing_to_choose_from_is_refused() -> None:
    with refused(400, "bad_space", match="no size"):
        largest((), PRICE, 95.0)
