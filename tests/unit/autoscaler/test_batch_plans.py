"""Buffer plans of BATCH: made, kept and withdrawn."""

import heapq
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.simulation.markov import markov_arrivals
from gnomon_autoscaler.controller import DECIDE_LIMIT_S
from gnomon_autoscaler.policies.batch.plans import Planned, Task, plan_for
from gnomon_autoscaler.runner import Runner
from gnomon_autoscaler.testing import FUNCTION, Timeline
from gnomon_core.errors import GnomonError
from gnomon_core.scaling import SetBufferPlan
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_planner.maps import Map
from gnomon_planner.validation import replay_buffer
from gnomon_simulator.traces import read_trace
from tests.refusals import refused
from tests.timelines import play


def _dollars(said: str) -> float:
    """The price that a plan is said to have, per million requests."""
    return float(said.partition("$")[2].partition(" ")[0])


TRACE = Path(__file__).parents[3] / "benchmarks" / "traces" / "twitter_may25_1s.csv.gz"


@pytest.mark.parametrize(
    ("slo_s", "instances", "batch", "timeout_s", "said"),
    [
        (1.0, 6, 7, 0.0625, "P95 539.9 ms, $1.35 "),
        (0.5, 7, 6, 0.0556, "P95 489.5 ms, $1.57 "),
        (0.3, 13, 2, 0.0333, "P95 275.3 ms, $2.92 "),
    ],
)
def test_the_worked_example(slo_s: float, instances: int, batch: int, timeout_s: float, said: str) -> None:
    counts = read_trace(TRACE).slice(36_000.0, 3600.0).counts
    task = Task(slo_s, 95.0, tuple(0.15 + 0.05 * size for size in range(1, 9)), 1, 5 * 10**8, slo_s, 40)
    plan = plan_for(counts, 1.0, task)
    assert (plan.instances, plan.batch, plan.timeout_s) == (instances, batch, timeout_s)
    assert said in plan.reason


def test_where_calls_are_paid_a_plan_is_priced_by_the_call() -> None:
    counts = tuple(np.random.default_rng(2).poisson(50.0, 3600).astype(float))
    # Decision 20's example; B = 3 costs 14 % more.
    task = Task(0.2, 95.0, (0.040, 0.052, 0.064, 0.076), 1, 10**9, 0.2, 40, memory_mb=1769)
    plan = plan_for(counts, 1.0, task)
    assert plan.batch == 4
    assert plan.timeout_s > 0.1
    assert "1769 MB, B = 4" in plan.reason
    assert "$0.6 per million requests" in plan.reason or "$0.59" in plan.reason
    # 13 batches a second, each in service for 76 ms.
    assert 3 <= plan.instances <= 6


@pytest.mark.parametrize(("rate", "most"), [(50.0, 2), (2000.0, 20), (40_000.0, 500)])
def test_on_lambda_a_bound_on_slots_refuses_no_plan(rate: float, most: int) -> None:
    """Instances are unlimited there: the plan is the one without the bound, and what the bound cuts off is said."""
    counts = tuple(np.random.default_rng(2).poisson(rate, 300).astype(float))
    task = Task(0.2, 95.0, (0.040, 0.052, 0.064, 0.076), 1, 10**9, 0.2, 10**6, memory_mb=1769)
    bound = plan_for(counts, 1.0, replace(task, max_instances=most))
    assert f"with more than the {most} slots that there may be" in bound.reason
    assert bound.instances > most
    assert (bound.batch, bound.reason.split(",")[2]) == (4, " B = 4")
    if rate < 1000.0:
        free = plan_for(counts, 1.0, task)
        assert bound == replace(free, instances=most + 1, reason=bound.reason)
        assert bound.reason.startswith(free.reason)


@pytest.mark.parametrize("memory_mb", [None, 1769])
def test_batches_that_vary_take_what_was_learned_in_the_mean(memory_mb: int | None) -> None:
    task = Task(0.5, 95.0, (0.1, 0.2), 1, 10**9, 0.5, 40, memory_mb, {4: (0.05, 0.1)}, deviation=0.2)
    own, other = task.sizes
    assert own.ratios[0] < 1.0 < own.ratios[-1]
    assert own.service(2).means == pytest.approx([0.1, 0.2])
    assert other.service(2).means == pytest.approx([0.05, 0.1])


@pytest.mark.parametrize("own", [885, 1769, 3538])
@pytest.mark.parametrize("slo_s", [0.2, 0.3, 0.5, 1.0])
def test_cheapest_size_is_chosen_if_it_saves_a_tenth_over_the_present_one(own: int, slo_s: float) -> None:
    """Each size is planned for alone as well: the plan is that of one of them, and no other is cheaper."""
    counts = tuple(np.random.default_rng(2).poisson(np.resize([30.0, 90.0], 600)).astype(float))
    rows = {memory: tuple(0.06 + (0.04 + 0.02 * size) * 1769 / memory for size in range(1, 9)) for memory in (885, 1769, 3538)}
    task = Task(slo_s, 95.0, rows[own], 1, 10**9, slo_s, 1000, own, rows, deviation=0.1)
    plan = plan_for(counts, 1.0, task)
    alone = {
        memory: plan_for(counts, 1.0, replace(task, memory_mb=memory, service_s=row, other_sizes={}))
        for memory, row in rows.items()
    }
    prices = {memory: _dollars(decision.reason) for memory, decision in alone.items() if "No plan" not in decision.reason}
    least = min(prices.values())
    stays = own in prices and least > 0.9 * prices[own]
    assert plan.size in ([own] if stays else [memory for memory, price in prices.items() if price == least])
    same = alone[plan.size]
    assert (plan.batch, plan.timeout_s, plan.instances) == (same.batch, same.timeout_s, same.instances)
    assert _dollars(plan.reason) == prices[plan.size]


def test_plan_takes_the_instances_it_needs_up_to_the_maximum() -> None:
    counts = tuple(np.random.default_rng(2).poisson(1900.0, 300).astype(float))
    task = Task(0.5, 95.0, (0.1, 0.2, 0.3), 1, 10**9, 0.5, 500)
    plan = plan_for(counts, 1.0, task)
    assert plan.instances > 200
    assert "No plan does" not in plan.reason
    fewer = plan_for(counts, 1.0, replace(task, max_instances=205))
    assert "No plan does with 205 instances at most" in fewer.reason


def test_a_plan_takes_less_than_a_decision_may() -> None:
    rng = np.random.default_rng(1)
    counts = tuple(float(count) for count in rng.poisson(1500.0 * (1.0 + np.arange(3600) // 60 % 2)))
    task = Task(0.5, 99.0, tuple(0.05 + 0.005 * size for size in range(32)), 1, 10**9, 0.5, 100)
    begun_s = time.process_time()
    assert plan_for(counts, 1.0, task).batch > 8
    assert time.process_time() - begun_s < DECIDE_LIMIT_S


LATENCY_S = (0.05, 0.07, 0.09, 0.11)
TASK = Task(0.4, 95.0, LATENCY_S, 1, 10**9, 0.4, 20)
EVENLY = (48.0,) * 60
"""As even as arrivals can be in whole seconds: they are taken for a Poisson process of exactly that rate."""


def timeline(*, queues: int = 2, rps: float = 40.0, highest: int = 20) -> Timeline:
    line = Timeline(Settings(autoscaler="batch", slo_s=0.4, max_batch=4, scale=ScaleSettings(min=1, max=highest)))
    line.rps, line.latency_s, line.queues = rps, LATENCY_S, queues
    return line


def last_buffer_plan(line: Timeline) -> SetBufferPlan:
    """The bounds of batches that were told last."""
    return [action for _, decision in line.decisions for action in decision.actions if isinstance(action, SetBufferPlan)][-1]


def planned(line: Timeline) -> tuple[object, object]:
    """When the plan in force was made, and for how many queues."""
    plan = line.runner.state.values["plan"]
    assert isinstance(plan, dict)
    return plan["planned_at_s"], plan["queues"]


@pytest.mark.parametrize("queues", [2, 3])
def test_plan_for_several_queues_is_that_of_one_queue_with_its_share(queues: int) -> None:
    plan = plan_for(EVENLY, 1.0, replace(TASK, queues=queues))
    share = tuple(count / queues for count in EVENLY)
    single = plan_for(share, 1.0, replace(TASK, max_instances=TASK.max_instances // queues))
    assert (plan.batch, plan.timeout_s) == (single.batch, single.timeout_s)
    assert plan.instances == queues * single.instances
    assert plan.rate_rps == 48.0, "what is watched for changes are all arrivals"
    assert (
        plan.reason
        == f"48.00 rps in 60 s, Poisson; {48 / queues:.2f} rps in each of {queues} queues: {single.reason.split(': ')[1]}"
    )


def test_plan_for_several_queues_differs_from_one_queue() -> None:
    first, second = (plan_for(EVENLY, 1.0, replace(TASK, queues=queues)) for queues in (1, 2))
    assert (first.batch, first.timeout_s) != (second.batch, second.timeout_s)
    assert "queues" not in first.reason


def test_each_queue_gets_its_share_of_the_maximum_and_at_least_one_instance() -> None:
    for most in (1, 2, 3):
        plan = plan_for((16.0,) * 60, 1.0, replace(TASK, queues=2, max_instances=most))
        assert plan.instances == 2
        assert "; 8.00 rps in each of 2 queues: 1 × 1 core, " in plan.reason
    with refused(code="too_many_instances", match=r"48\.00 rps keep 4\.8 instances busy, of 4 at most"):
        plan_for(EVENLY, 1.0, replace(TASK, queues=2, max_instances=4, service_s=(0.1,)))


def test_instance_shared_by_two_queues_counts_once() -> None:
    """Each queue alone would keep it busy for 0.66 of the time, both of them for longer than there is."""
    with pytest.raises(GnomonError, match=r"48\.00 rps keep 1\.3 instances busy, of 1 at most"):
        plan_for(EVENLY, 1.0, replace(TASK, queues=2, max_instances=1))


def test_the_cores_of_the_nodes_are_for_the_instances_of_all_queues() -> None:
    """Two cores meet an objective that one cannot, while there are enough for both queues."""
    task = replace(
        TASK, slo_s=0.24, max_timeout_s=0.24, service_s=(0.25, 0.45), other_sizes={2: (0.13, 0.23)}, queues=2, cluster_cores=64.0
    )
    free = plan_for((12.0,) * 60, 1.0, task)
    assert free.size == 2
    held = 2 * free.instances
    assert plan_for((12.0,) * 60, 1.0, replace(task, cluster_cores=float(held))) == free
    few = plan_for((12.0,) * 60, 1.0, replace(task, cluster_cores=held - 1.0))
    assert few.size == 1
    assert f"{free.instances} × 2 cores are more than the {held - 1} cores of the nodes" in few.reason


def test_slots_are_those_of_all_queues_and_a_bound_on_them_is_said() -> None:
    task = Task(0.2, 95.0, (0.040, 0.052, 0.064, 0.076), 1, 10**9, 0.2, 10**6, memory_mb=1769, queues=2)
    free = plan_for(EVENLY, 1.0, task)
    assert free.instances % 2 == 0
    assert plan_for(EVENLY, 1.0, replace(task, max_instances=free.instances)) == free
    bound = plan_for(EVENLY, 1.0, replace(task, max_instances=free.instances - 1))
    assert (bound.batch, bound.timeout_s) == (free.batch, free.timeout_s)
    assert bound.reason == f"{free.reason}; with more than the {free.instances - 1} slots that there may be"


def test_change_of_the_number_of_queues_is_planned_for_at_once() -> None:
    line = timeline(queues=1)
    line.play(100)
    before, live = last_buffer_plan(line), line.live
    assert "queues" not in line.reason
    play(line, 1, queues=2)
    assert planned(line) == (101.0, 2)
    assert line.reason.startswith("40.00 rps in 101 s, Poisson; 20.00 rps in each of 2 queues: ")
    assert last_buffer_plan(line) != before
    assert line.live >= live
    assert line.live % 2 == 0
    line.play(50)
    assert planned(line) == (101.0, 2), "which is made once"
    play(line, 1, queues=1)
    assert planned(line) == (152.0, 1)
    assert "queues" not in line.reason


def test_plan_infeasible_for_two_queues_is_made_when_one_is_left() -> None:
    line = timeline(rps=60.0, highest=3)
    play(line, 30, latency_s=(0.05, 0.09, 0.13, 0.17))
    assert "30.00 rps in each of 2 queues: No plan does with 1 instances at most" in line.reason
    play(line, 1, queues=1)
    assert line.reason.startswith("60.00 rps in 31 s, Poisson: ")
    assert planned(line) == (31.0, 1)


def test_another_number_of_queues_is_planned_for_as_soon_as_it_can_be() -> None:
    line = timeline(queues=1)
    line.play(100)
    play(line, 20, queues=2, latency_s=())
    assert planned(line) == (60.0, 1)
    play(line, 1, latency_s=LATENCY_S)
    assert planned(line) == (121.0, 2)


def test_a_change_of_the_rate_of_all_is_noticed_as_ever() -> None:
    first, second = timeline(queues=1), timeline(queues=2)
    for line in (first, second):
        line.play(700)
        play(line, 60, rps=60.0)
    assert planned(first)[0] == planned(second)[0]
    assert second.reason.startswith("60.00 rps in ")


def test_a_plan_of_before_there_were_several_queues_holds_for_one() -> None:
    line = timeline(queues=1)
    line.play(100)
    document = json.loads(json.dumps(line.runner.to_json()))
    memory = document["state"]["values"]
    del memory["plan"]["queues"]
    for queues, made_at_s in ((1, -40.0), (2, 0.5)):
        other = timeline(queues=queues)
        other.runner = Runner(FUNCTION)
        other.runner.restore(document, -100.0)
        other.play(1)
        assert planned(other) == (made_at_s, queues)


def test_two_queues_meet_the_objective_only_with_the_plan_for_two_queues() -> None:
    """Bursts of 180 rps, sent at random to two buffers; the same six instances, which a batch takes as they become free.

    With the plan for all arrivals in one queue batches leave when they are half full, and six instances do not carry so many.
    """
    slo_s, service_s = 0.25, tuple(0.1 + 0.01 * size for size in range(1, 9))
    rng = np.random.default_rng(3)
    times_s = markov_arrivals(Map.mmpp2((60.0, 180.0), (0.1, 0.1)), 30_000, rng)
    counts = np.bincount(times_s.astype(int))[:-1].astype(float)
    queue = rng.integers(0, 2, len(times_s))
    halves = [times_s[queue == number] for number in (0, 1)]
    task = Task(slo_s, 95.0, service_s, 1, 10**9, slo_s, 40)
    for_one, for_two = (plan_for(counts, 1.0, replace(task, queues=queues)) for queues in (1, 2))
    assert for_one.instances == for_two.instances == 6
    assert percentile_95_s([times_s], for_one, service_s) <= slo_s
    assert percentile_95_s(halves, for_one, service_s) > 2.0 * slo_s
    assert percentile_95_s(halves, for_two, service_s) <= slo_s


def percentile_95_s(queues: Sequence[npt.NDArray[np.float64]], plan: Planned, service_s: Sequence[float]) -> float:
    """Of the latencies where each queue has a buffer and batches of all take the plan's instances, first come, first served."""
    batches: list[tuple[float, npt.NDArray[np.float64]]] = []
    for times_s in queues:
        found = replay_buffer(times_s, plan.batch, plan.timeout_s)
        sent_s = times_s[found.first] + found.wait_s[found.first]
        batches += zip(sent_s.tolist(), np.split(times_s, found.first[1:]), strict=True)
    free_s, latencies_s = [0.0] * plan.instances, []
    for sent_s, members_s in sorted(batches, key=lambda batch: batch[0]):
        end_s = max(sent_s, free_s[0]) + service_s[len(members_s) - 1]
        heapq.heapreplace(free_s, end_s)
        latencies_s.append(end_s - members_s)
    return float(np.percentile(np.concatenate(latencies_s), 95.0))


PROGRAM = """
import sys
from gnomon_autoscaler.registry import scaling_policy
from gnomon_core.settings import Settings
scaling_policy("batch", Settings(autoscaler="batch"))
from gnomon_autoscaler.policies.batch.plans import Task, plan_for
rows = {cores: tuple((0.05 + 0.02 * size) / cores for size in range(1, 9)) for cores in (1, 2, 4)}
loaded = set(sys.modules)
plan_for([8.0, 14.0, 9.0] * 20, 1.0, Task(0.5, 95.0, rows[1], 1, 10**9, 0.5, 50, None, rows, 400.0))
plan_for([8.0, 14.0, 9.0] * 20, 1.0, Task(0.5, 95.0, rows[1], 1, 10**9, 0.5, 50, 1769))
print(sorted(set(sys.modules) - loaded))
"""


def test_nothing_is_imported_in_the_second_that_a_first_plan_may_take() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.strip() == "[]"
