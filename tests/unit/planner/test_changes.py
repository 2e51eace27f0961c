"""When to fit again: false alarms as rare as promised, delays as stated, and a window that counts right."""

import math

import numpy as np
import pytest

from gnomon_core.errors import GnomonError
from gnomon_planner.changes import ArrivalWindow, Change, ChangeRule, Evidence, Reference, watched
from gnomon_planner.fit import fit
from gnomon_planner.maps import Map
from gnomon_planner.samples import of_counts
from gnomon_simulator.markov import markov_arrivals

RULE = ChangeRule()


def alarms(counts: list[float], reference: Reference, rule: ChangeRule = RULE) -> list[tuple[float, Change]]:
    """Every alarm, the test beginning anew after each."""
    evidence, found = Evidence(), []
    for second, count in enumerate(counts, start=1):
        evidence, change = watched(evidence, reference, rule, count, bin_s=1.0, now_s=float(second))
        if change is not None:
            found.append((float(second), change))
            evidence = Evidence()
    return found


def test_a_poisson_process_is_left_alone_for_a_day_on_average() -> None:
    counts = np.random.default_rng(1).poisson(52.0, 6 * 86_400).astype(float).tolist()
    # Six days: six alarms are promised at most, give or take their square root.
    assert len(alarms(counts, Reference(52.0))) <= 6 + 3 * math.sqrt(6)


def test_false_alarms_come_about_as_often_as_asked_for() -> None:
    rule = ChangeRule(false_alarm_s=600.0)
    counts = np.random.default_rng(2).poisson(52.0, 200_000).astype(float).tolist()
    found = 200_000 / len(alarms(counts, Reference(52.0), rule))
    assert 600.0 <= found <= 3 * 600.0


def test_bursts_that_belong_to_the_fit_are_no_change() -> None:
    bursty = Map.mmpp2((10.0, 100.0), (0.5, 0.5))
    times = markov_arrivals(bursty, 2_000_000, np.random.default_rng(3))
    counts = np.bincount(times.astype(int)).astype(float).tolist()
    reference = Reference.of(bursty, RULE)
    assert reference.dispersion > 30.0
    assert len(alarms(counts, reference)) <= 3
    # A test that took it for a Poisson process would cry all the time.
    assert len(alarms(counts, Reference(bursty.rate_rps))) > 100


@pytest.mark.parametrize(("change", "stated_s"), [(0.1, 43.0), (0.2, 15.0), (0.5, 2.5), (-0.1, 43.0), (-0.3, 5.4)])
def test_a_change_is_noticed_as_soon_as_stated(change: float, stated_s: float) -> None:
    reference = Reference(52.0)
    assert reference.delay_s(RULE, change) == pytest.approx(stated_s, rel=0.15)
    delays, chance = [], np.random.default_rng(4)
    for _ in range(60):
        counts = chance.poisson(52.0 * (1 + change), 600).astype(float).tolist()
        when_s, found = alarms(counts, reference)[0]
        assert found.higher == (change > 0)
        delays.append(when_s)
    assert float(np.mean(delays)) == pytest.approx(reference.delay_s(RULE, change), rel=0.25, abs=1.0)


def test_an_alarm_says_since_when() -> None:
    chance = np.random.default_rng(5)
    counts = [*chance.poisson(50.0, 1000).tolist(), *chance.poisson(65.0, 100).tolist()]
    ((when_s, change),) = alarms(counts, Reference(50.0))[:1]
    assert 1000.0 < when_s < 1025.0
    assert change.higher
    assert change.since_s == pytest.approx(1000.0, abs=8.0)


def test_a_change_too_small_to_matter_is_never_promised() -> None:
    assert Reference(52.0).delay_s(RULE, 0.02) == math.inf


def test_silence_is_a_change_and_so_is_its_end() -> None:
    assert alarms([0.0] * 30, Reference(52.0))[0][0] <= 3.0
    assert watched(Evidence(), Reference(0.0), RULE, 0, bin_s=1.0, now_s=10.0)[1] is None
    assert watched(Evidence(), Reference(0.0), RULE, 1, bin_s=1.0, now_s=10.0)[1] == Change(higher=True, since_s=9.0)


def _after(window: list[float], rate_rps: float, seconds: int = 120) -> float:
    """Seconds until a rate that comes after this window is noticed, with the reference of a fit to the window."""
    reference = Reference.of(fit(of_counts(window, 1.0)).process, RULE, window, 1.0)
    counts = np.random.default_rng(9).poisson(rate_rps, seconds).astype(float).tolist()
    found = alarms(counts, reference)
    return found[0][0] if found else math.inf


@pytest.mark.parametrize("idle_s", [1, 3, 10])
@pytest.mark.parametrize(("times", "within_s"), [(4.5, 1.0), (2.0, 4.0), (0.4, 7.0)])
def test_a_jump_is_noticed_in_seconds_after_idle_seconds(idle_s: int, times: float, within_s: float) -> None:
    chance = np.random.default_rng(6)
    window = [float(n) for _ in range(6) for n in (*chance.poisson(20.0, 20), *(0,) * idle_s)]
    assert _after(window, 20.0 * times) <= within_s
    assert _after(window, 20.0, 3600) > 60.0


@pytest.mark.parametrize(("times", "within_s"), [(4.5, 1.0), (2.0, 6.0)])
def test_a_jump_is_noticed_in_seconds_after_a_burst(times: float, within_s: float) -> None:
    """A burst of eight times the rate for one minute of ten."""
    chance = np.random.default_rng(7)
    window = [*chance.poisson(20.0, 300), *chance.poisson(160.0, 60), *chance.poisson(20.0, 240)]
    mean_rps = sum(window) / len(window)
    assert _after([float(n) for n in window], mean_rps * times) <= within_s


def test_after_a_burst_the_rate_of_most_of_the_window_is_taken_for_the_change_that_it_is() -> None:
    chance = np.random.default_rng(8)
    window = [*chance.poisson(20.0, 100), *chance.poisson(160.0, 60), *chance.poisson(20.0, 40)]
    assert _after([float(n) for n in window], 20.0) <= 5.0


def test_bursts_that_come_again_and_again_are_no_jump() -> None:
    """Two seconds of ten times the rate each time, and the fit's own counts: neither test cries."""
    bursty = Map.mmpp2((10.0, 100.0), (0.5, 0.5))
    times = markov_arrivals(bursty, 400_000, np.random.default_rng(3))
    counts = np.bincount(times.astype(int)).astype(float)
    reference = Reference.of(fit(of_counts(counts[:1200], 1.0)).process, RULE, counts[:1200].tolist(), 1.0)
    assert reference.active[1] > 20.0
    assert len(alarms(counts[1200:].tolist(), reference)) <= 6


def test_few_arrivals_with_empty_seconds_are_not_idle() -> None:
    counts = np.random.default_rng(4).poisson(0.5, 86_400).astype(float)
    reference = Reference.of(fit(of_counts(counts[:3600], 1.0)).process, RULE, counts[:3600].tolist(), 1.0)
    assert reference.active[0] == pytest.approx(counts[:3600].mean())
    assert len(alarms(counts[3600:].tolist(), reference)) <= 3


@pytest.mark.parametrize("wrong", [{"margin": 0.0}, {"margin": 1.0}, {"false_alarm_s": 0.0}, {"jump": 1.0}])
def test_a_rule_that_is_none_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(GnomonError, match="margin"):
        ChangeRule(**wrong)


def test_a_window_counts_what_arrived_and_forgets_what_is_old() -> None:
    window = ArrivalWindow(100.0, window_s=5.0)
    window.add([100.1, 100.9, 102.5])
    assert window.counts(103.0) == (2, 0, 1)
    # Late, but still inside.
    window.add([101.5])
    assert window.counts(103.0) == (2, 1, 1)
    assert window.counts(103.0, since_s=102.0) == (1,)
    window.add([107.2])
    assert window.counts(108.0) == (0, 0, 0, 0, 1)
    # Too late: nobody asks any more.
    window.add([100.5])
    assert window.counts(108.0) == (0, 0, 0, 0, 1)


def test_an_unfinished_second_is_not_counted_yet() -> None:
    window = ArrivalWindow(0.0)
    window.add([0.1, 1.2, 1.3])
    assert window.counts(1.9) == (1,)
    assert window.counts(2.0) == (1, 2)


def test_after_a_long_silence_the_window_is_empty() -> None:
    window = ArrivalWindow(0.0, window_s=3.0)
    window.add([0.5])
    assert window.counts(1e9) == (0, 0, 0)
