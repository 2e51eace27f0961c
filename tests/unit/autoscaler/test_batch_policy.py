"""`batch` and `batch+` on timelines: when they plan, what they keep and say, and what they do in an overload."""

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from gnomon_autoscaler.policies.batch.policy import HOLD_S, Batch, overloaded
from gnomon_autoscaler.registry import BUILT_IN, scaling_policy
from gnomon_autoscaler.runner import Runner
from gnomon_autoscaler.testing import FUNCTION, Timeline
from gnomon_core.errors import GnomonError
from gnomon_core.policy_registry import PolicyPlugin
from gnomon_core.scaling import Decision, History, Observation, SetBufferPlan
from gnomon_core.settings import ScaleSettings, Settings, read_settings
from tests.refusals import refused
from tests.timelines import play

LATENCY_S = (0.05, 0.07, 0.09, 0.11)


def timeline(name: str = "batch", *, rps: float = 40.0, highest: int = 20, lowest: int = 1, **settings: Any) -> Timeline:
    scale = ScaleSettings(min=lowest, max=highest, zero_duration_s=60.0)
    line = Timeline(Settings(autoscaler=name, **{"slo_s": 0.4, "max_batch": 4, "scale": scale, **settings}))
    line.rps, line.latency_s = rps, LATENCY_S
    return line


def buffers(decisions: list[Decision]) -> list[SetBufferPlan]:
    return [action for decision in decisions for action in decision.actions if isinstance(action, SetBufferPlan)]


def planned_at_s(line: Timeline) -> float | None:
    plan = line.runner.state.values.get("plan")
    return plan["planned_at_s"] if isinstance(plan, dict) else None  # type: ignore[return-value]


def test_a_plan_comes_after_half_a_minute_and_says_all_it_knows() -> None:
    line = timeline()
    assert not buffers(line.play(29))
    assert line.reason.startswith("no plan (1160 arrivals in 29 s); as lv: 40.00 rps")
    (plan,) = buffers(line.play(1))
    assert plan.max_batch > 1
    assert 0.0 < plan.max_wait_s < 0.4
    assert line.reason.startswith("40.00 rps in 30 s, Poisson: ")
    for said in (f"B = {plan.max_batch}", f"T = {plan.max_wait_s * 1e3:g} ms", "P95", "per million requests", "400 ms asked for"):
        assert said in line.reason
    # 40 requests/s keep 40 · 0.11 / 4 = 1.1 instances busy at least, and 2 with batches of one.
    assert 2 <= line.live <= 4


def test_a_plan_holds_for_as_long_as_what_it_was_made_from() -> None:
    line, made = timeline(), []
    for _ in range(600):
        line.play(1)
        if planned_at_s(line) not in (None, *made):
            made.append(planned_at_s(line))
    assert made == [30.0, 60.0, 120.0, 240.0, 480.0]
    changes = {(buffer.max_batch, buffer.max_wait_s) for buffer in buffers([decision for _, decision in line.decisions])}
    assert len(buffers([decision for _, decision in line.decisions])) == len(changes), "told where it changed only"


def test_a_plan_that_was_made_before_larger_batches_were_known_is_made_again() -> None:
    """A gateway may report what batches take a moment before it reports that they may be larger."""
    line = timeline()
    line.play(700)
    play(line, 5, settings=replace(line.settings, max_batch=8))
    made_at_s = planned_at_s(line)
    assert made_at_s is not None
    assert made_at_s > 700.0
    assert buffers([decision for _, decision in line.decisions])[-1].max_batch <= 4
    play(line, 60, latency_s=(*LATENCY_S, 0.112, 0.113, 0.114, 0.115))
    assert buffers([decision for _, decision in line.decisions])[-1].max_batch > 4
    again_at_s = planned_at_s(line)
    line.play(100)
    assert planned_at_s(line) == again_at_s, "which is made once"


def test_plans_are_eventually_hourly_and_from_the_last_hour() -> None:
    line = timeline(rps=8.0)
    line.play(3841)
    assert planned_at_s(line) == 3840.0, "30 s seven times doubled"
    plan, counts = (line.runner.state.values[key] for key in ("plan", "counts"))
    assert isinstance(plan, dict)
    assert plan["holds_s"] == 3600.0
    assert isinstance(counts, tuple)
    assert len(counts) == 3600


def test_a_function_may_have_its_plans_look_less_far_back() -> None:
    line = timeline(rps=8.0, plan_window_s=120.0)
    line.play(500)
    assert planned_at_s(line) == 480.0, "30, 60, 120 and then each 120 s"
    assert line.reason.startswith("8.00 rps in 120 s")
    assert len(line.runner.state.values["counts"]) == 120  # type: ignore[arg-type]
    assert read_settings({}, {"gnomon/plan-window": "10m"}).plan_window_s == 600.0
    for text in ("30s", "7h", "soon"):
        with pytest.raises(GnomonError, match="gnomon/plan-window"):
            read_settings({}, {"gnomon/plan-window": text})


def test_another_rate_makes_another_plan_at_once_from_what_came_since() -> None:
    line = timeline()
    line.play(700)
    before, live = planned_at_s(line), line.live
    play(line, 10, rps=100.0)
    assert 700.0 < (planned_at_s(line) or 0.0) <= 710.0
    assert before is not None
    assert line.reason.startswith("100.00 rps in ")
    assert line.live > live
    play(line, 30, rps=20.0)
    assert line.reason.startswith("20.00 rps in ")
    assert line.live <= live


def test_a_change_with_few_arrivals_is_planned_for_as_soon_as_there_are_enough() -> None:
    """A slump to 20 a second shows within seconds, with fewer arrivals than a plan needs: it does not wait for half a minute."""
    line = timeline(rps=160.0)
    line.play(100)
    play(line, 8, rps=20.0)
    assert line.reason.startswith("20.00 rps in ")
    assert 100.0 < (planned_at_s(line) or 0.0) <= 108.0


def test_nothing_arrives_any_more() -> None:
    line = timeline(lowest=0)
    line.play(200)
    assert line.live >= 2
    play(line, 45, rps=0.0)
    assert "as lv: 0.00 rps" in line.reason
    assert buffers([line.decisions[-1][1], *[decision for _, decision in line.decisions]])[-1] == SetBufferPlan(4, 0.0)
    assert play(line, 60) == 0


@pytest.mark.parametrize(("lowest", "highest"), [(1, 2), (7, 20)])
def test_the_bounds_hold(lowest: int, highest: int) -> None:
    line = timeline(rps=60.0, lowest=lowest, highest=highest)
    assert play(line, 100) == 2 if highest == 2 else 7
    assert ("at most 2" if highest == 2 else "at least 7") in line.reason
    assert ("No plan does with 2 instances at most; the fewest found are" in line.reason) == (highest == 2)


def test_no_plan_takes_more_instances_than_there_may_be() -> None:
    """Five meet P95 within 100 ms at 60 rps; of plans for four, the nearest one's own P95 is what is said."""
    free, bound = timeline(rps=60.0, slo_s=0.1), timeline(rps=60.0, slo_s=0.1, highest=4)
    for line in (free, bound):
        line.play(31)
    assert free.live == 5
    assert ": 5 × 1 core" in free.reason
    assert bound.live == 4
    assert "No plan has its P95 within 100 ms with 4 instances at most; the least that can be had is 110.3 ms" in bound.reason
    assert "nearest: 4 × 1 core" in bound.reason


def test_more_than_there_may_be_instances_for_is_said() -> None:
    line = timeline(rps=200.0, highest=3)
    line.play(40)
    assert "no plan (200.00 rps keep 5.5 instances busy, of 3 at most); as lv" in line.reason
    assert line.live == 3


def test_unreachable_objective_gets_the_nearest_plan_and_says_so() -> None:
    line = timeline(slo_s=0.03)
    plan = buffers(line.play(30))[-1]
    assert plan.max_batch == 1
    assert "No plan has its P95 within 30 ms; the least that can be had is 50.0 ms; nearest: " in line.reason


def test_unknown_service_times_are_waited_for() -> None:
    line = timeline()
    play(line, 100, latency_s=())
    assert line.reason.startswith("no plan (service times are not known); as lv")
    line.latency_s = LATENCY_S
    assert buffers(line.play(1)), "the counts were kept meanwhile"


def test_other_service_times_make_another_plan() -> None:
    line = timeline()
    line.play(600)
    play(line, 200, latency_s=tuple(1.05 * seconds for seconds in LATENCY_S))
    assert planned_at_s(line) == 480.0, "a twentieth is no reason"
    play(line, 1, latency_s=tuple(1.5 * seconds for seconds in LATENCY_S))
    assert planned_at_s(line) == 801.0


def test_plans_account_for_the_spread_of_service_times() -> None:
    """Three instances with 90 ms for a batch of three meet 120 ms, but not where many batches take longer."""
    planned = {}
    for spread in (0.0, 0.004, 0.2, 5.0):
        line = timeline(slo_s=0.12)
        play(line, 31, latency_spread=spread)
        planned[spread] = (line.live, buffers([decision for _, decision in line.decisions])[-1].max_batch)
    assert planned[0.0] == planned[0.004] == (3, 3), "less than a hundredth is none"
    assert planned[0.2] == planned[5.0] == (4, 2), "and a first batch that was cold no law"


def test_a_deployment_with_another_objective_is_planned_for_at_once() -> None:
    line = timeline()
    line.play(100)
    line.settings = replace(line.settings, slo_s=0.2)
    assert len(buffers(line.play(1))) == 1
    assert "200 ms asked for" in line.reason


def test_plan_is_repeated_until_it_is_in_force_and_when_it_is_lost() -> None:
    """The gateway may have been restarted, the function deployed anew, or the decision refused."""
    line = timeline()
    line.play(100)
    [plan] = {line.plan}
    for lost in (None, SetBufferPlan(2, 0.5)):
        line.plan = lost
        assert buffers(line.play(1)) == [plan]
        assert line.plan == plan
    assert not buffers(line.play(10))


def test_new_leader_keeps_the_plan_until_it_has_a_better_one() -> None:
    """The next leader may know nothing of what came before it."""
    line = timeline()
    line.plan = SetBufferPlan(3, 0.07)
    assert not buffers(line.play(20))
    line.play(20)
    assert line.plan not in (None, SetBufferPlan(3, 0.07))


def test_a_restart_keeps_counts_and_plan_and_tells_it_again() -> None:
    line = timeline()
    line.play(200)
    document = json.loads(json.dumps(line.runner.to_json()))
    other = timeline()
    other.runner = Runner(FUNCTION)
    other.runner.restore(document, -140.0)
    (plan,) = buffers(other.play(1)) or buffers([decision for _, decision in other.decisions])
    assert plan.max_batch == buffers([decision for _, decision in line.decisions])[-1].max_batch
    counts = other.runner.state.values["counts"]
    assert isinstance(counts, tuple)
    assert len(counts) == pytest.approx(200, abs=2), "nothing is counted twice"


def test_under_adaptive_scheduling_the_time_is_not_the_plans() -> None:
    policy = scaling_policy("batch+", Settings(autoscaler="batch+"))
    assert policy.default_scheduler == "adaptive-fill"
    line = timeline("batch+")
    (plan,) = buffers(line.play(31))
    assert plan.max_wait_s == 0.4
    assert "adaptive" in line.reason


def test_third_party_scheduler_gets_the_plans_timeout_whatever_its_name() -> None:
    (plan,) = buffers(timeline(scheduler="adaptive-mine").play(31))
    assert plan == buffers(timeline(scheduler="fixed").play(31))[0]
    (left,) = buffers(timeline(scheduler="adaptive-paper").play(31))
    assert plan.max_wait_s < left.max_wait_s == 0.4


def test_a_longest_wait_of_the_functions_own_bounds_the_timeout() -> None:
    line = timeline(max_wait_s=0.004)
    assert all(plan.max_wait_s <= 0.004 for plan in buffers(line.play(31)))


def test_batch_policies_default_to_batches_of_eight() -> None:
    assert read_settings({}, {"gnomon/autoscaler": "batch+"}).max_batch == 8
    assert read_settings({}, {"gnomon/autoscaler": "batch", "gnomon/max-batch": "32"}).max_batch == 32


def test_without_a_rule_for_changes_a_plan_holds_for_its_time() -> None:
    policies = {**BUILT_IN, "batch": PolicyPlugin(lambda settings: Batch("batch", settings, rule=None), "Plans hold.")}
    line = Timeline(timeline().settings, policies=policies)
    play(line, 700, rps=40.0, latency_s=LATENCY_S)
    play(line, 100, rps=100.0)
    assert planned_at_s(line) == 480.0
    line.play(161)
    assert planned_at_s(line) == 960.0


def test_without_numpy_the_choice_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gnomon_autoscaler.policies.batch.policy", None)
    with refused(400, "package_missing", hint="pip install '.[planner]'"):
        scaling_policy("batch", Settings(autoscaler="batch"))


def test_other_policies_do_not_import_numpy() -> None:
    program = "import sys, gnomon_autoscaler; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)})


FIXED_COST_S = tuple(0.04 + 0.005 * batch for batch in range(1, 17))
SETTINGS = Settings(autoscaler="batch", slo_s=0.3, max_batch=16, scale=ScaleSettings(min=1, max=40))


def seen(rate_rps: float, queued: int = 0, *, now_s: float = 100.0, **more: Any) -> Observation:
    history = History(0.5, now_s, (rate_rps / 2.0,) * 2)
    given = {"latency_s": FIXED_COST_S, **more}
    return Observation(
        now_s, "f.ns", SETTINGS, (), (), queued=queued, executing=0, oldest_wait_s=0.0, last_request_s=now_s,
        history=history, **given,
    )  # fmt: skip


def test_the_worked_example() -> None:
    found = overloaded(seen(160.0, 90), 1, 5, {})
    assert (found.count, found.batch) == (4, 16)
    assert found.reason == "overload: 160.00 rps and 74 more than fit, of 133.33 rps that 1 carry"


@pytest.mark.parametrize(("rate_rps", "queued"), [(20.0, 0), (120.0, 16), (0.0, 0)])
def test_load_within_the_plan_is_no_overload(rate_rps: float, queued: int) -> None:
    assert overloaded(seen(rate_rps, queued), 1, 5, {}) is None


def test_backlog_that_the_plan_cannot_clear_in_time_is_an_overload() -> None:
    found = overloaded(seen(20.0, 200), 1, 5, {})
    assert found.count == 2, "but it says nothing about how much is to come"


def test_capacity_of_slow_instances_is_that_of_their_planned_batches() -> None:
    """Full batches of the plan may take longer than half the objective: what they carry is what the plan counts on."""
    slow = tuple(0.15 + 0.05 * batch for batch in range(1, 9))
    assert overloaded(seen(75.0, latency_s=slow), 7, 6, {}) is None
    assert overloaded(seen(95.0, latency_s=slow), 7, 6, {}) is not None


def test_overload_response_lasts_for_seconds_without_shrinking() -> None:
    first = overloaded(seen(400.0, now_s=100.0), 1, 5, {})
    memory = first.remembered()
    again = overloaded(seen(160.0, now_s=101.0), 1, 5, memory)
    assert again.count == first.count
    calm = overloaded(seen(20.0, now_s=102.0), 1, 5, memory)
    assert calm.count == first.count
    assert calm.until_s == 100.0 + HOLD_S
    assert overloaded(seen(20.0, now_s=100.0 + HOLD_S), 1, 5, memory) is None
    assert overloaded(seen(20.0, now_s=102.0), first.count, 5, memory) is None, "a plan for as many has come"


def test_without_service_times_nothing_is_known_of_what_instances_carry() -> None:
    assert overloaded(seen(1000.0, 1000, latency_s=()), 1, 5, {}) is None


def test_burst_is_answered_with_larger_batches_in_the_same_decision() -> None:
    line = Timeline(SETTINGS)
    assert play(line, 60, rps=20.0, latency_s=FIXED_COST_S) == 1
    planned = line.plan
    assert planned is not None
    line.rps, line.queued = 160.0, 90
    decision = line.play(1)[-1]
    assert decision.reason.startswith("overload: 160.00 rps")
    assert line.live >= 4
    assert line.plan == SetBufferPlan(16, planned.max_wait_s)
    play(line, 10, queued=0)
    assert line.reason.startswith("160.00 rps in ")
    assert line.live <= 3


def test_under_adaptive_scheduling_an_overload_leaves_the_time_to_the_scheduler() -> None:
    line = Timeline(replace(SETTINGS, autoscaler="batch+"))
    play(line, 60, rps=20.0, latency_s=FIXED_COST_S)
    play(line, 1, rps=160.0, queued=90)
    assert line.plan == SetBufferPlan(16, 0.3)


def test_no_bound_of_the_function_is_passed() -> None:
    line = Timeline(replace(SETTINGS, scale=ScaleSettings(min=1, max=2)))
    play(line, 60, rps=20.0, latency_s=FIXED_COST_S)
    assert play(line, 2, rps=300.0, queued=200) == 2
