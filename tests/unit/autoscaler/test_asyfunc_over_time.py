"""asyfunc over virtual time: bursts that grow and load that stays."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gnomon_autoscaler.policies.asyfunc import AsyFunc, asyfunc
from gnomon_autoscaler.policies.asyfunc.lls import ARRIVES_WITHIN_S
from gnomon_autoscaler.policies.asyfunc.pairing import Efficiency, Rates, sustained
from gnomon_autoscaler.testing import FUNCTION, MemoryActuator, Timeline
from gnomon_core.errors import GnomonError
from gnomon_core.pairs import Pair, best_split
from gnomon_core.scaling import Action, Resize
from gnomon_core.settings import ScaleSettings, Settings
from tests.made_up_models import BlockPlan, made_up_profile
from tests.timelines import play
from tests.unit.autoscaler.asyfunc_stage import kinds, partly_serial

SETTINGS = Settings(
    autoscaler="asyfunc",
    slo_s=1.0,
    max_batch=8,
    max_cores=2,
    kappa=100.0,
    burst_cores="resize",
    scale=ScaleSettings(min=1, max=6),
)


def timeline(settings: Settings = SETTINGS, cores: int = 8) -> Timeline:
    line = Timeline(settings, nodes=(("n1", cores),), start_s=0.5, profile=partly_serial(0.1))
    play(line, 20, rps=6.0)
    return line


def cores_of(line: Timeline) -> list[int]:
    return [instance.cores for instance in line.instances.values()]


def test_a_burst_is_carried_by_more_cores_and_leaves_nothing() -> None:
    line = timeline()
    play(line, 1, rps=16.0)
    assert cores_of(line) == [2]
    play(line, 30, rps=6.0)
    assert cores_of(line) == [1]
    assert kinds(line) == ["CreateBody", "Resize", "Resize"]


def test_a_long_burst_gets_a_body_all_the_same() -> None:
    """Model-level scaling sees the Body as it was, with 10 rps: with 18.2 it would leave 14 rps to the burst's cores for ever."""
    line = timeline()
    play(line, 40, rps=14.0)
    assert cores_of(line) == [1, 1]
    assert kinds(line) == ["CreateBody", "Resize", "CreateBody", "Resize"]
    as_printed = timeline()
    options = replace(asyfunc(SETTINGS).options, shadows_count=True)
    as_printed.runner._policy = AsyFunc("asyfunc", options)
    play(as_printed, 40, rps=14.0)
    assert cores_of(as_printed) == [2]


def test_a_body_that_has_grown_and_ends_is_forgotten() -> None:
    line = timeline()
    play(line, 1, rps=16.0)
    line.instances.clear()
    line.play(1)
    assert cores_of(line) in ([1], [2])
    play(line, 30, rps=6.0)
    assert cores_of(line) == [1]
    assert line.runner.state.values.get("grown") is None


def test_cores_that_the_platform_refuses_are_not_counted_on() -> None:
    line = timeline()
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
    asked: list[int] = []

    class Refusing(MemoryActuator):
        def resize(self, action: Resize) -> None:
            if action.cores != line.instances[action.id].cores:
                asked.append(action.cores)
                raise GnomonError(503, "kubernetes_denied", "exceeded quota: small", "Raise the quota.")
            super().resize(action)

    line.fleet.actuator = partial(Refusing, line.fleet)  # type: ignore[method-assign]
    return asked


def test_a_body_that_is_refused_cores_gets_its_shadow_at_the_next_look() -> None:
    """It was remembered as one that grows for 30 s, in which a burst had no help at all."""
    line = timeline(replace(SETTINGS, burst_cores="either", scale=ScaleSettings(min=1, max=1)))
    asked = no_other_cores(line)
    play(line, 0.5, rps=16.0)
    assert (asked, line.shadows) == ([2], [])
    line.play(0.5)
    assert (asked, len(line.shadows)) == ([2], 1)
    line.play(ARRIVES_WITHIN_S)
    assert (asked, len(line.shadows)) == ([2], 1), "nor is it asked for again while the Shadow is enough"
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
    line = timeline(replace(SETTINGS, scale=ScaleSettings(min=1, max=1)))
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
        replace(SETTINGS, scale=ScaleSettings(min=2, max=2)),
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


def test_a_burst_that_comes_while_cores_are_given_back_leaves_nothing_either() -> None:
    line = timeline(replace(SETTINGS, scale=ScaleSettings(min=1, max=1)))
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


def test_cores_that_do_not_come_are_taken_back_so_that_they_do_not_come_unasked() -> None:
    line = timeline(replace(SETTINGS, scale=ScaleSettings(min=1, max=1)))
    kubelet = Kubelet(line, 1000.0)
    line.rps = 16.0
    kubelet.play(ARRIVES_WITHIN_S)
    asked = [action.cores for _, decision in line.decisions for action in decision.actions if isinstance(action, Resize)]
    assert set(asked) == {2}
    kubelet.play(1)
    again = [action.cores for _, decision in line.decisions for action in decision.actions if isinstance(action, Resize)]
    assert 1 in again
    assert cores_of(line) == [1]


def test_without_the_option_what_has_grown_is_given_back_and_shadows_are_made_again() -> None:
    line = timeline()
    play(line, 1, rps=16.0)
    play(line, 30, settings=replace(SETTINGS, burst_cores="shadow"), rps=6.0)
    assert cores_of(line) == [1]
    play(line, 1, rps=16.0)
    assert kinds(line)[-1] == "CreateShadow"
    lost = timeline()
    play(lost, 1, rps=16.0)
    play(lost, 0.5, profile=None)
    assert cores_of(lost)[0] == 1


def test_asyfunc_minus_gives_back_what_asyfunc_took() -> None:
    line = timeline()
    play(line, 1, rps=16.0)
    policy = AsyFunc("asyfunc", replace(asyfunc(SETTINGS).options, layers=False))
    line.runner._policy = policy
    line.play(0.5)
    assert cores_of(line) == [1]
    assert policy.needs == {"place", "size"}


MB = 10**6
HALVES = (BlockPlan(0.5, 20 * MB), BlockPlan(0.5, 80 * MB))
LATENCY_S = (0.2, 0.3, 0.4, 0.5)


def test_r_max_of_a_body_is_the_best_batch_that_ends_in_time() -> None:
    # 5, 6.67, 7.5 and 8 rps; the objective of 0.45 s leaves out the batch of four.
    assert sustained(LATENCY_S, 0.5).rate_rps == pytest.approx(8.0)
    found = sustained(LATENCY_S, 0.45)
    assert (found.rate_rps, found.batch) == (pytest.approx(7.5), 3)


def test_every_batch_is_looked_at_because_throughput_need_not_rise_with_it() -> None:
    # Algorithm 1 breaks off at the largest timely batch, which is 6.67 rps here.
    assert sustained((0.2, 0.25, 0.45), 0.5) == sustained((0.2, 0.25, 0.45), 0.25 + 0.2)
    assert sustained((0.2, 0.25, 0.45), 0.5).batch == 2


def test_a_body_without_a_timely_batch_sustains_nothing() -> None:
    profile = made_up_profile(HALVES, LATENCY_S, cores=(1, 2))
    rates = Rates(profile, 0.15, 4, 16)
    assert (rates.rate_rps(1), rates.rate_rps(2)) == (0.0, pytest.approx(2 / 0.15))
    assert not rates.out_of_reach


def test_where_no_number_of_cores_is_timely_a_body_counts_with_what_it_serves_one_by_one() -> None:
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
    efficiency = Efficiency.of(profile, 1.0)
    assert efficiency.memory_cores(100 * MB) == pytest.approx(6.0)
    assert efficiency.at(8, 0.5, 2, 100 * MB) == pytest.approx(8 / (2 * 0.5) + 8 / (6 * 0.5))
    assert Efficiency.of(profile, 1.0, overhead_counts=False).memory_cores(100 * MB) == pytest.approx(4.0)
    assert Efficiency.of(profile, 1.0, objective=True).at(8, 0.5, 2, 100 * MB) == pytest.approx(16 / 8)


def test_memory_costs_nothing_where_a_model_has_no_parameters() -> None:
    profile = made_up_profile((BlockPlan(1.0, 0),), LATENCY_S)
    assert Efficiency.of(profile, 1.0).at(2, 0.5, 4, 0) == pytest.approx(1.0)
