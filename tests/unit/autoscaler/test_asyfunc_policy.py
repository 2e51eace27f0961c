"""Timelines of `asyfunc`: both levels together, and what every policy's owner may rely on."""

import json
from dataclasses import replace

import pytest

from gnomon_autoscaler.policies.asyfunc import ablated, asyfunc
from gnomon_autoscaler.registry import scaling_policy
from gnomon_autoscaler.runner import state_from_json, state_to_json
from gnomon_autoscaler.testing import Timeline
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import InstanceKind
from gnomon_core.pairs import Pair
from gnomon_core.scaling import CreateBody, CreateShadow, DestroyBody, DestroyShadow, PolicyState, SetBufferPlan
from gnomon_core.settings import ScaleSettings, Settings, read_settings
from tests.made_up_models import BlockPlan, made_up_profile
from tests.timelines import play
from tests.unit.autoscaler.asyfunc_stage import MB, PROFILE, body, kinds, node, observed

# A Shadow of the first half makes 13.3 rps of a Body's 10, one of both 20.
SETTINGS = Settings(autoscaler="asyfunc", slo_s=1.0, max_batch=8, max_cores=1, kappa=1.0, scale=ScaleSettings(min=1, max=6))


def timeline(settings: Settings = SETTINGS, *, cores: int = 8, start_s: float = 0.5) -> Timeline:
    return Timeline(settings, nodes=(("n1", cores),), start_s=start_s, profile=PROFILE)


def test_a_burst_is_carried_by_a_shadow_and_a_lasting_rise_by_a_body() -> None:
    line = timeline()
    play(line, 20, rps=6.0)
    assert (line.live, line.shadows) == (1, [])
    play(line, 1, rps=16.0)
    assert (line.live, len(line.shadows)) == (1, 1)  # half a second after the rise
    assert play(line, 10) == 2  # at the end of the period, for the mean of it
    line.play(20)
    assert (line.live, line.shadows) == (2, [])  # 20 rps alone are enough for 16
    assert kinds(line) == ["CreateBody", "CreateShadow", "CreateBody", "DestroyShadow"]


def test_a_burst_that_passes_leaves_nothing() -> None:
    line = timeline()
    play(line, 21, rps=6.0)
    play(line, 2, rps=16.0)
    play(line, 27, rps=6.0)
    assert kinds(line) == ["CreateBody", "CreateShadow", "DestroyShadow"]


def test_where_no_node_can_make_shadows_bodies_serve_alone_until_one_can() -> None:
    policy, alone = asyfunc(SETTINGS), replace(node(), pairs=False)
    burst = observed([16.0] * 20, body("b1"), nodes=[alone])
    seen = replace(burst, profile=PROFILE)
    decision, state = policy.decide(seen, PolicyState("", 0, {}))
    assert not [action for action in decision.actions if isinstance(action, CreateShadow)]
    assert decision.reason.endswith("no room for a Shadow that would help; no node can make Shadows now")
    decision, _ = policy.decide(replace(seen, now_s=seen.now_s + 0.5, nodes=(alone, replace(node(), pairs=True))), state)
    assert [action.body for action in decision.actions if isinstance(action, CreateShadow)] == ["b1"]
    assert "no node" not in decision.reason
    # Its node's coordinator is exchanged: the Shadow works on meanwhile.
    pair = Pair(1, (0,), (0, 1, 1, 2, 2, 3, 3, 4))
    shadow = body("s1", kind=InstanceKind.SHADOW, partner="b1", pair=pair)
    both = replace(seen, instances=(replace(body("b1"), partner="s1", pair=pair), shadow))
    assert not [action for action in policy.decide(both, state)[0].actions if isinstance(action, DestroyShadow)]


def test_reasons_name_the_numbers() -> None:
    line = timeline()
    play(line, 10, rps=16.0)
    said = " ".join(decision.reason for _, decision in line.decisions)
    assert "16.00 rps in 10 s, R_max 10.00: above α = 0.8, 1 more of 1 core (b = 1 in 100 ms, η 11.2)" in said
    assert "burst of 16.00 rps in 500 ms, R_max 10.00: above γ = 1; i-1 (1 core) gets a Shadow of 1 core" in said


def test_model_level_scaling_decides_once_a_period() -> None:
    line = timeline()
    assert play(line, 9.5, rps=30.0) == 1
    line.play(1)
    assert line.live > 1
    assert line.runner.desired == line.live


def test_a_constant_load_changes_nothing_after_the_first_periods() -> None:
    for rps in (4.0, 8.0, 10.0, 12.0, 16.0, 18.0, 24.0, 26.0, 40.0):
        line = timeline()
        play(line, 40, rps=rps)
        settled = len(kinds(line))
        line.play(200)
        assert len(kinds(line)) == settled, rps


def test_bounds_hold() -> None:
    line = timeline(replace(SETTINGS, scale=ScaleSettings(min=2, max=3)))
    assert play(line, 30) == 2
    assert play(line, 30, rps=100.0) == 3
    play(line, 60, rps=0.0)
    assert (line.live, line.shadows) == (2, [])


def test_an_operators_number_holds_until_the_load_says_otherwise() -> None:
    line = timeline()
    play(line, 20, rps=6.0)
    assert play(line, 60, requested=4) == 4
    assert play(line, 20, rps=12.0) == 2


def test_an_idle_function_goes_to_zero_and_a_request_wakes_it() -> None:
    line = timeline(replace(SETTINGS, scale=ScaleSettings(min=0, zero_duration_s=30.0)))
    play(line, 20, rps=6.0)
    assert play(line, 25, rps=0.0) == 1  # without a rate one Body stays for as long as the function is in use
    assert play(line, 10) == 0
    line.queued = 1
    line.tick()
    assert line.live == 1


def test_a_body_that_ends_by_itself_is_replaced_within_the_period() -> None:
    line = timeline()
    assert play(line, 31, rps=16.0) == 2
    line.instances.pop(next(iter(line.instances)))
    assert play(line, 1) == 2


def test_a_body_takes_its_shadow_along() -> None:
    line = timeline()
    play(line, 2, rps=16.0)
    assert line.shadows
    line.requested = 0
    decision = line.tick()
    assert [type(action) for action in decision.actions] == [DestroyShadow, DestroyBody]
    assert not line.instances


def test_a_shadow_whose_body_is_gone_is_released() -> None:
    line = timeline()
    play(line, 2, rps=16.0)
    (shadow,) = line.shadows
    body = line.instances.pop(shadow.partner or "")
    line.play(0.5)
    assert shadow.id not in line.instances
    assert body.kind is InstanceKind.BODY


def test_shadows_come_before_bodies_that_may_be_refused() -> None:
    line = timeline(replace(SETTINGS, scale=ScaleSettings(min=1, max=9)), cores=3)
    play(line, 9.5, rps=6.0)
    line.rps = 90.0
    line.requested = 5
    decisions = line.play(1.0)
    first = next(decision for decision in decisions if decision.actions)
    order = [type(action) for action in first.actions]
    assert order.index(CreateBody) > 0 if CreateShadow in order else order
    assert "no_capacity" in line.errors


def test_a_broken_shadow_is_not_started_over_and_over() -> None:
    line = timeline()
    play(line, 1.0, rps=16.0)
    made = 0
    for _ in range(12):
        for shadow in line.shadows:
            del line.instances[shadow.id]
            made += 1
        body = next(each for each in line.instances.values() if each.kind is InstanceKind.BODY)
        line.instances[body.id] = replace(body, partner=None, pair=None)
        line.play(0.5)
    assert made < 8
    assert line.runner.desired == line.live  # Bodies start as before


def test_without_a_profile_it_goes_by_the_mean_rate_and_says_what_to_do() -> None:
    line = Timeline(replace(SETTINGS, model="resnet50"), start_s=0.5)
    assert play(line, 21, latency_s=(0.1, 0.2), rps=25.0) == 3
    assert "gnomon models profile resnet50" in line.decisions[0][1].reason


def test_a_profile_that_knows_no_cores_of_ours_is_no_profile() -> None:
    unknown = made_up_profile((BlockPlan(1.0, MB),), (0.1,), cores=(4,))
    line = Timeline(SETTINGS, profile=unknown)
    assert "no number of cores up to 1" in line.reason
    assert line.live == 1


def test_asyfunc_minus_scales_no_layers() -> None:
    line = timeline(replace(SETTINGS, autoscaler="asyfunc-"))
    play(line, 60, rps=16.0)
    assert set(kinds(line)) == {"CreateBody"}
    assert ablated(SETTINGS).default_scheduler == "adaptive"


def test_asyfunc_minus_without_adaptive_scheduling_plans_a_fixed_buffer() -> None:
    settings = replace(SETTINGS, autoscaler="asyfunc-", ablation="adaptive")
    latency_s = tuple(0.1 + 0.1 * size for size in range(1, 9))
    line = Timeline(settings, start_s=0.5, profile=made_up_profile((BlockPlan(1.0, MB),), latency_s))
    play(line, 30, rps=16.0)
    plans = [action for _, decision in line.decisions for action in decision.actions if isinstance(action, SetBufferPlan)]
    # Nothing arrives at first: batches of one. At 16 rps six fill in 0.31 s and end 0.7 s later, too late; five do, 0.25 + 0.6.
    assert plans == [SetBufferPlan(1, pytest.approx(0.8)), SetBufferPlan(5, pytest.approx(0.4))]
    line.plan = None
    again = [action for decision in line.play(1) for action in decision.actions if isinstance(action, SetBufferPlan)]
    assert again == plans[-1:], "it was deployed anew, and is told again"
    assert "CreateShadow" in kinds(line)
    assert ablated(settings).default_scheduler == "fixed"
    both = ablated(replace(settings, ablation="both"))
    assert (both.options.layers, both.options.adaptive) == (False, False)


def test_changing_to_another_policy_ends_the_shadows() -> None:
    line = timeline()
    play(line, 2, rps=16.0)
    assert line.shadows
    play(line, 0.5, settings=replace(SETTINGS, autoscaler="fixed"))
    assert line.shadows == []


def test_state_survives_json_and_unknown_state_is_dropped() -> None:
    line = timeline()
    play(line, 13, rps=16.0)
    state = line.runner.state
    assert state_from_json(json.loads(json.dumps(state_to_json(state)))) == state
    policy = scaling_policy("asyfunc", SETTINGS)
    load = line.fleet.load("echo.openfaas-fn")
    assert load is not None
    asked = line.runner.question(line.now_s + 1.0, load)
    assert policy.decide(asked.seen, PolicyState("od", 1, {"inner": 3})) == policy.decide(asked.seen, PolicyState())


def test_decisions_are_told_as_json() -> None:
    from gnomon_core.scaling import DecisionRecord  # noqa: PLC0415

    line = timeline()
    play(line, 2, rps=16.0)
    told = [DecisionRecord(at, "asyfunc", each.desired, each.actions, each.reason).to_json() for at, each in line.decisions]
    shadow = next(action for record in told for action in record["actions"] if action["action"] == "CreateShadow")  # type: ignore[union-attr, index, call-overload]
    assert json.loads(json.dumps(shadow))["pair"]["shadow_cores"] == 1  # type: ignore[index, call-overload]


def test_settings_are_read_and_checked() -> None:
    known = read_settings({}, {"gnomon/autoscaler": "asyfunc", "gnomon/alpha": "0.9", "gnomon/gamma": "1.2", "gnomon/kappa": "3"})
    assert (known.alpha, known.beta, known.gamma, known.kappa, known.max_batch) == (0.9, 0.6, 1.2, 3.0, 8)
    assert asyfunc(known).options.gamma == 1.2
    assert read_settings({}, {"gnomon/autoscaler": "od"}).max_batch == 1
    assert read_settings({}, {"gnomon/autoscaler": "asyfunc", "gnomon/max-batch": "4"}).max_batch == 4
    for annotations in ({"gnomon/alpha": "0.5"}, {"gnomon/beta": "0.8"}):
        with pytest.raises(GnomonError, match="gnomon/beta"):
            read_settings({}, annotations)
    with pytest.raises(GnomonError, match="beta"):
        asyfunc(replace(SETTINGS, beta=0.9))
