"""Instances serve as much in time as the bound says: queues that are simulated have no more late queries."""

import random
from heapq import heapify, heapreplace

import pytest

from gnomon_autoscaler.policies.infaas.problem import served_in_time, utilization


def late_share(rate_rps: float, service_s: float, instances: int, objective_s: float, queries: int = 150_000) -> float:
    """The share of late queries of a queue with Poisson arrivals, first come first served."""
    rng, free = random.Random(7), [0.0] * instances
    heapify(free)
    now_s, late = 0.0, 0
    for _ in range(queries):
        now_s += rng.expovariate(rate_rps)
        end_s = max(now_s, free[0]) + service_s
        heapreplace(free, end_s)
        late += end_s - now_s > objective_s + 1e-9
    return late / queries


@pytest.mark.parametrize("instances", [1, 2, 6])
@pytest.mark.parametrize("objective_s", [0.11, 0.15, 0.2, 0.35])
def test_queue_with_the_load_that_is_served_in_time_has_no_more_late_queries(instances: int, objective_s: float) -> None:
    rate_rps = served_in_time({1: 0.1}, 1, instances, objective_s, 0.05)
    share = late_share(rate_rps, 0.1, instances, objective_s)
    assert share <= 0.05 * 1.1  # chance
    assert late_share(1.4 * rate_rps, 0.1, instances, objective_s) > share


def test_bound_is_near_the_load_whose_queries_are_late_that_often() -> None:
    """Two instances, objectives of 1.5 times a query: a load that is a quarter higher is late more often than tolerated."""
    rate_rps = served_in_time({1: 0.1}, 1, 2, 0.15, 0.05)
    assert late_share(1.25 * rate_rps, 0.1, 2, 0.15) > 0.05


def test_more_instances_and_longer_objectives_leave_less_idle() -> None:
    by_number = [utilization(1, count, 0.5, 0.05) for count in (1, 2, 4, 16, 64, 256)]
    assert by_number == sorted(by_number)
    assert by_number[0] < 0.1
    assert 0.8 < by_number[-1] <= 1.0
    by_objective = [utilization(1, 2, patience, 0.05) for patience in (0.0, 0.3, 0.9, 1.0, 2.0, 8.0)]
    assert by_objective == sorted(by_objective)


def test_smaller_batches_serve_more_where_the_largest_leaves_no_time_to_wait() -> None:
    latency_s = {1: 0.02, 2: 0.03, 8: 0.1}
    assert served_in_time(latency_s, 8, 1, 0.1, 0.05) > 8 / 0.1 * utilization(8, 1, 0.0, 0.05)
    assert served_in_time(latency_s, 8, 1, 0.3, 0.05) > 40.0
    assert served_in_time(latency_s, 8, 1, 0.01, 0.05) == 0.0


def test_objective_beyond_all_others_leaves_no_instance_idle() -> None:
    """A client may send any number of milliseconds."""
    assert served_in_time({8: 0.001}, 8, 3, 1.7e305, 0.05) == 3 * 8 / 0.001
