"""asyfunc over virtual time: both levels together, bursts that grow, and the readings of the paper that annotations choose."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gnomon_autoscaler.policies.asyfunc import AsyFunc, ablated, asyfunc
from gnomon_autoscaler.policies.asyfunc.lls import ARRIVES_WITHIN_S
from gnomon_autoscaler.policies.asyfunc.options import READINGS, Options, asyfunc_options
from gnomon_autoscaler.policies.asyfunc.pairing import Efficiency, Rates, sustained
from gnomon_autoscaler.registry import scaling_policy
from gnomon_autoscaler.runner import state_from_json, state_to_json
from gnomon_autoscaler.testing import FUNCTION, MemoryActuator, Timeline
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import InstanceKind
from gnomon_core.pairs import Pair, best_split
from gnomon_core.scaling import Action, CreateBody, CreateShadow, DestroyBody, DestroyShadow, PolicyState, Resize, SetBufferPlan
from gnomon_core.settings import READINGS as NAMES
from gnomon_core.settings import ScaleSettings, Settings, read_settings
from tests.made_up_models import BlockPlan, made_up_profile
from tests.refusals import refused
from tests.timelines import play
from tests.unit.autoscaler.asyfunc_stage import MB, PROFILE, body, kinds, node, observed, partly_serial

# A Shadow of the first half makes 13.3 rps of a Body's 10, one of both 20.
SETTINGS = Settings(
    autoscaler="asyfunc", slo_s=1.0, max_batch=8, max_cores=1, kappa=1.0, readings=("kappa",), scale=ScaleSettings(min=1, max=6)
)


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


def test_bodies_serve_alone_until_a_node_can_create_shadows() -> None:
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


def test_bodies_of_cores_that_the_profile_does_not_know_go_where_there_is_no_load() -> None:
    """The instances of a former policy have an R_max of 0, and no rate is below that."""
    two_cores = made_up_profile(HALVES, LATENCY_S, cores=(2,))
    seen = replace(observed([0.0] * 20, *map(body, "abc"), nodes=[node()]), profile=two_cores)
    decision, _ = asyfunc(seen.settings).decide(seen, PolicyState())
    assert decision.desired == 1
    assert sum(isinstance(action, DestroyBody) for action in decision.actions) == 2


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
    call = line.runner.due_call(line.now_s + 1.0, load)
    assert policy.decide(call.observation, PolicyState("od", 1, {"inner": 3})) == policy.decide(call.observation, PolicyState())


def test_decisions_are_told_as_json() -> None:
    from gnomon_core.scaling import DecisionRecord  # noqa: PLC0415

    line = timeline()
    play(line, 2, rps=16.0)
    documents = [DecisionRecord(at, "asyfunc", each.desired, each.actions, each.reason).to_json() for at, each in line.decisions]
    shadow = next(action for record in documents for action in record["actions"] if action["action"] == "CreateShadow")  # type: ignore[union-attr, index, call-overload]
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


GROWING = Settings(
    autoscaler="asyfunc",
    slo_s=1.0,
    max_batch=8,
    max_cores=2,
    kappa=100.0,
    readings=("kappa",),
    burst_cores="resize",
    scale=ScaleSettings(min=1, max=6),
)


def growing_timeline(settings: Settings = GROWING, cores: int = 8) -> Timeline:
    line = Timeline(settings, nodes=(("n1", cores),), start_s=0.5, profile=partly_serial(0.1))
    play(line, 20, rps=6.0)
    return line


def cores_of(line: Timeline) -> list[int]:
    return [instance.cores for instance in line.instances.values()]


def test_a_burst_is_carried_by_more_cores_and_leaves_nothing() -> None:
    line = growing_timeline()
    play(line, 1, rps=16.0)
    assert cores_of(line) == [2]
    play(line, 30, rps=6.0)
    assert cores_of(line) == [1]
    assert kinds(line) == ["CreateBody", "Resize", "Resize"]


def test_a_long_burst_gets_a_body_all_the_same() -> None:
    """Model-level scaling sees the Body as it was, with 10 rps: with 18.2 it would leave 14 rps to the burst's cores for ever."""
    line = growing_timeline()
    play(line, 40, rps=14.0)
    assert cores_of(line) == [1, 1]
    assert kinds(line) == ["CreateBody", "Resize", "CreateBody", "Resize"]
    as_printed = growing_timeline()
    options = replace(asyfunc(GROWING).options, shadows_count=True)
    as_printed.runner._policy = AsyFunc("asyfunc", options)
    play(as_printed, 40, rps=14.0)
    assert cores_of(as_printed) == [2]


def test_a_body_that_has_grown_and_ends_is_forgotten() -> None:
    line = growing_timeline()
    play(line, 1, rps=16.0)
    line.instances.clear()
    line.play(1)
    assert cores_of(line) in ([1], [2])
    play(line, 30, rps=6.0)
    assert cores_of(line) == [1]
    assert line.runner.state.values.get("grown") is None


def test_cores_that_the_platform_refuses_are_not_counted_on() -> None:
    line = growing_timeline()
    refused = [0]

    def carry_out(function: str, actions: Any) -> None:
        if any(isinstance(action, Resize) for action in actions):
            refused[0] += 1
            raise GnomonError(503, "no_capacity", "They have gone to another function.", "Wait.")

    line.fleet.carry_out = carry_out  # type: ignore[method-assign]
    play(line, 3, rps=16.0)
    assert refused[0] > 1
    assert cores_of(line) == [1]


def no_other_cores(line: Timeline) -> list[int]:
    """The platform refuses a timeline's Bodies other cores from now on, a quota for example; those that were asked for."""
    requested_cores: list[int] = []

    class Refusing(MemoryActuator):
        def resize(self, action: Resize) -> None:
            if action.cores != line.instances[action.id].cores:
                requested_cores.append(action.cores)
                raise GnomonError(503, "kubernetes_denied", "exceeded quota: small", "Raise the quota.")
            super().resize(action)

    line.fleet.actuator = partial(Refusing, line.fleet)  # type: ignore[method-assign]
    return requested_cores


def test_a_body_that_is_refused_cores_gets_its_shadow_at_the_next_look() -> None:
    """The Body was remembered as one that grows for 30 s, in which a burst had no Shadow."""
    line = growing_timeline(replace(GROWING, burst_cores="either", scale=ScaleSettings(min=1, max=1)))
    requested_cores = no_other_cores(line)
    play(line, 0.5, rps=16.0)
    assert (requested_cores, line.shadows) == ([2], [])
    line.play(0.5)
    assert (requested_cores, len(line.shadows)) == ([2], 1)
    line.play(ARRIVES_WITHIN_S)
    assert (requested_cores, len(line.shadows)) == ([2], 1), "nor is it asked for again while the Shadow is enough"
    play(line, ARRIVES_WITHIN_S, rps=6.0)
    assert line.shadows == []
    assert line.runner.state.values.get("grown") is None


# Cores that come later than they are asked for: a pod has them once its kubelet has come to it.


class Kubelet:
    """Gives a timeline's Bodies the cores that were asked for last, so many seconds later; until then they are on their way."""

    def __init__(self, line: Timeline, delay_s: float) -> None:
        self.delay_s = delay_s
        self._line, self._at_once = line, line.fleet.carry_out
        self._asked: dict[str, tuple[float, Resize]] = {}
        line.fleet.carry_out = self._carry_out  # type: ignore[method-assign]

    def _carry_out(self, function: str, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Resize):
                due_s, last = self._asked.get(action.id, (0.0, None))
                self._asked[action.id] = due_s if last == action else self._line.now_s + self.delay_s, action
                body = self._line.instances[action.id]
                coming = None if action.cores == body.cores else action.cores
                self._line.instances[action.id] = replace(body, coming_cores=coming)
        self._at_once(function, [action for action in actions if not isinstance(action, Resize)])

    def play(self, duration_s: float) -> None:
        for _ in range(round(2 * duration_s)):
            for due_s, action in self._asked.values():
                if due_s <= self._line.now_s and action.id in self._line.instances:
                    self._at_once(FUNCTION, [action])
            self._line.play(0.5)


@pytest.mark.parametrize(("delay_s", "burst_s"), [(2.0, 5.0), (2.0, 0.5), (8.0, 1.0), (20.0, 40.0)])
def test_cores_that_come_later_are_given_back_like_others(delay_s: float, burst_s: float) -> None:
    line = growing_timeline(replace(GROWING, scale=ScaleSettings(min=1, max=1)))
    kubelet = Kubelet(line, delay_s)
    line.rps = 16.0
    kubelet.play(burst_s)
    line.rps = 6.0
    kubelet.play(60)
    assert "Resize" in kinds(line)
    assert cores_of(line) == [1]
    assert line.runner.state.values.get("grown") is None


def test_cores_on_their_way_are_counted_on_and_nobody_else_is_asked() -> None:
    """Two Bodies of 10 rps, each with one free core beside it. With two cores one of them has 18.2, which is enough."""
    line = Timeline(
        replace(GROWING, scale=ScaleSettings(min=2, max=2)),
        nodes=(("n1", 2), ("n2", 2)),
        start_s=0.5,
        profile=partly_serial(0.1),
    )
    play(line, 20, rps=12.0)
    kubelet = Kubelet(line, 2.0)
    line.rps = 26.0
    kubelet.play(4)
    assert kinds(line).count("Resize") == 1
    assert sorted(cores_of(line)) == [1, 2]
    line.rps = 12.0
    kubelet.play(30)
    assert kinds(line).count("Resize") == 2, "nor are they asked for back over and over"
    assert cores_of(line) == [1, 1]


def test_burst_during_the_return_of_cores_leaves_no_extra_cores() -> None:
    line = growing_timeline(replace(GROWING, scale=ScaleSettings(min=1, max=1)))
    kubelet = Kubelet(line, 1.0)
    line.rps = 16.0
    kubelet.play(4)
    kubelet.delay_s = 8.0
    line.rps = 6.0
    kubelet.play(4)
    assert cores_of(line) == [2], "they are on their way back"
    line.rps = 16.0
    kubelet.play(4)
    line.rps = 6.0
    kubelet.play(60)
    assert cores_of(line) == [1]


def test_overdue_resize_is_withdrawn() -> None:
    line = growing_timeline(replace(GROWING, scale=ScaleSettings(min=1, max=1)))
    kubelet = Kubelet(line, 1000.0)
    line.rps = 16.0
    kubelet.play(ARRIVES_WITHIN_S)
    requested_cores = [
        action.cores for _, decision in line.decisions for action in decision.actions if isinstance(action, Resize)
    ]
    assert set(requested_cores) == {2}
    kubelet.play(1)
    again = [action.cores for _, decision in line.decisions for action in decision.actions if isinstance(action, Resize)]
    assert 1 in again
    assert cores_of(line) == [1]


def test_disabling_burst_cores_returns_them_and_creates_shadows_again() -> None:
    line = growing_timeline()
    play(line, 1, rps=16.0)
    play(line, 30, settings=replace(GROWING, burst_cores="shadow"), rps=6.0)
    assert cores_of(line) == [1]
    play(line, 1, rps=16.0)
    assert kinds(line)[-1] == "CreateShadow"
    lost = growing_timeline()
    play(lost, 1, rps=16.0)
    play(lost, 0.5, profile=None)
    assert cores_of(lost)[0] == 1


def test_asyfunc_minus_gives_back_what_asyfunc_took() -> None:
    line = growing_timeline()
    play(line, 1, rps=16.0)
    policy = AsyFunc("asyfunc", replace(asyfunc(GROWING).options, layers=False))
    line.runner._policy = policy
    line.play(0.5)
    assert cores_of(line) == [1]
    assert policy.needs == {"place", "size"}


HALVES = (BlockPlan(0.5, 20 * MB), BlockPlan(0.5, 80 * MB))
LATENCY_S = (0.2, 0.3, 0.4, 0.5)


def test_r_max_of_a_body_is_the_best_batch_that_ends_in_time() -> None:
    # 5, 6.67, 7.5 and 8 rps; the objective of 0.45 s leaves out the batch of four.
    assert sustained(LATENCY_S, 0.5).rate_rps == pytest.approx(8.0)
    found = sustained(LATENCY_S, 0.45)
    assert (found.rate_rps, found.batch) == (pytest.approx(7.5), 3)


def test_r_max_considers_every_batch_size() -> None:
    # Algorithm 1 breaks off at the largest timely batch, which is 6.67 rps here.
    assert sustained((0.2, 0.25, 0.45), 0.5) == sustained((0.2, 0.25, 0.45), 0.25 + 0.2)
    assert sustained((0.2, 0.25, 0.45), 0.5).batch == 2


def test_a_body_without_a_timely_batch_sustains_nothing() -> None:
    profile = made_up_profile(HALVES, LATENCY_S, cores=(1, 2))
    rates = Rates(profile, 0.15, 4, 16)
    assert (rates.rate_rps(1), rates.rate_rps(2)) == (0.0, pytest.approx(2 / 0.15))
    assert not rates.out_of_reach


def test_unreachable_objective_counts_bodies_by_single_request_throughput() -> None:
    rates = Rates(made_up_profile(HALVES, LATENCY_S, cores=(1, 2)), 0.05, 4, 16)
    assert rates.out_of_reach
    assert (rates.rate_rps(1), rates.rate_rps(2)) == (pytest.approx(5.0), pytest.approx(10.0))


def test_cores_that_the_profile_does_not_know_are_no_choice() -> None:
    rates = Rates(made_up_profile(HALVES, LATENCY_S, cores=(1, 2, 8)), 0.5, 4, max_cores=4)
    assert rates.cores == (1, 2)
    assert rates.body(3) is None
    assert rates.rate_rps(3) == 0.0


def test_a_pair_counts_with_its_own_latency() -> None:
    # Both halves of the model with half of the batch each: four in 0.3 s, which is what two take alone. 13.3 rps, not 8.
    profile = made_up_profile(HALVES, LATENCY_S)
    both = Pair(1, (0, 1), best_split(profile, (1, 1), (0, 1), 4))
    rates = Rates(profile, 0.5, 4, 16)
    assert both.split == (0, 1, 1, 2)
    assert rates.rate_rps(1, both) == pytest.approx(4 / 0.3)
    # Only the first half: 0.25 s for four of its own second half, 0.15 s for the halved first.
    first = Pair(1, (0,), best_split(profile, (1, 1), (0,), 4))
    assert rates.rate_rps(1, first) == pytest.approx(4 / 0.4)


def test_eta_is_throughput_per_core_and_per_memory_in_cores() -> None:
    profile = made_up_profile(HALVES, LATENCY_S, gmacs=4.0, overhead_bytes=50 * MB)
    # 4 GMACs for 100 MB: 150 MB are worth 6 cores at κ = 1.
    paper = Options(kappa=1.0, printed_kappa=True)
    efficiency = Efficiency.of(profile, 1.0, paper)
    assert efficiency.memory_cores(100 * MB) == pytest.approx(6.0)
    assert efficiency.at(8, 0.5, 2, 100 * MB) == pytest.approx(8 / (2 * 0.5) + 8 / (6 * 0.5))
    assert Efficiency.of(profile, 1.0, replace(paper, overhead_counts=False)).memory_cores(100 * MB) == pytest.approx(4.0)
    assert Efficiency.of(profile, 1.0, replace(paper, objective=True)).at(8, 0.5, 2, 100 * MB) == pytest.approx(16 / 8)


def test_memory_costs_nothing_where_a_model_has_no_parameters() -> None:
    profile = made_up_profile((BlockPlan(1.0, 0),), LATENCY_S)
    assert Efficiency.of(profile, 1.0, Options()).at(2, 0.5, 4, 0) == pytest.approx(1.0)


# The first and the last block have two fifths of the work and few weights each, the one between them nearly all weights.
SCATTERED = made_up_profile(
    (BlockPlan(0.4, 10 * MB), BlockPlan(0.2, 1000 * MB), BlockPlan(0.4, 10 * MB)),
    tuple(0.1 * size for size in range(1, 9)),
    gmacs=4.0,
    overhead_bytes=100 * MB,
)
ANNOTATIONS = {"gnomon/autoscaler": "asyfunc", "gnomon/slo-ms": "1000", "gnomon/max-cores": "1", "gnomon/kappa": "1"}


def annotated(**more: str) -> Settings:
    return read_settings({}, ANNOTATIONS | {f"gnomon/{name}": value for name, value in more.items()})


def blocks_in_a_burst(settings: Settings) -> tuple[int, ...]:
    """The blocks that the first Shadow of a burst holds."""
    line = Timeline(settings, nodes=(("n1", 8),), start_s=0.5, profile=SCATTERED)
    play(line, 2, rps=16.0)
    created = [action for _, decision in line.decisions for action in decision.actions if isinstance(action, CreateShadow)]
    return created[0].pair.blocks


def test_a_burst_s_shadow_holds_the_best_blocks_or_neighbours() -> None:
    assert blocks_in_a_burst(annotated()) == (0, 2)
    assert blocks_in_a_burst(annotated(blocks="ratio")) == (0, 2)
    assert blocks_in_a_burst(annotated(blocks="contiguous")) == (0,)


def test_without_annotations_everything_is_as_it_was_settled() -> None:
    assert asyfunc_options(read_settings({}, {"gnomon/autoscaler": "asyfunc"})) == Options()


@pytest.mark.parametrize("name", NAMES)
def test_each_reading_changes_one_thing(name: str) -> None:
    before, after = (dataclasses.asdict(asyfunc(settings).options) for settings in (annotated(), annotated(reading=name)))
    changed = {field: value for field, value in after.items() if value != before[field]}
    assert changed == READINGS[name]
    assert len(changed) == 1


def test_every_name_that_is_allowed_has_a_meaning() -> None:
    assert set(NAMES) == set(READINGS)


def test_readings_go_together_in_any_order_and_hold_for_ablations_too() -> None:
    settings = annotated(autoscaler="asyfunc-", reading="objective, gain")
    assert settings.readings == ("gain", "objective")
    assert settings == annotated(autoscaler="asyfunc-", reading="gain,objective,gain")
    assert (ablated(settings).options.gain, ablated(settings).options.objective) == (True, True)


@pytest.mark.parametrize("value", ["", "gain,", "gian", "gain objective", "backlog"])
def test_an_unknown_reading_is_refused_with_the_known_ones(value: str) -> None:
    with pytest.raises(GnomonError, match="gnomon/reading") as refused:
        annotated(reading=value)
    assert refused.value.status == 400
    assert all(name in refused.value.hint for name in NAMES)


def test_an_unknown_choice_of_blocks_is_refused() -> None:
    with refused(match="gnomon/blocks is 'scattered'", hint="ratio or contiguous"):
        annotated(blocks="scattered")
