"""An instance's state follows Figure 4 of INFaaS, and noise around a threshold does not move queries back and forth."""

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from gnomon_core.variants import VariantState
from gnomon_gateway.variants.states import Lifecycle, Measurement, Thresholds

INACTIVE, ACTIVE, OVERLOADED, INTERFERED = VariantState
PEAK_RPS = 100.0
ACTIVE_NOW = Lifecycle().loaded()


def seen(rate_rps: float, slowdown: float = 1.0, batches: int = 20, spread: float = 0.0) -> Measurement:
    return Measurement(rate_rps, PEAK_RPS, slowdown, batches, spread)


def states(*measurements: Measurement, begin: Lifecycle = ACTIVE_NOW, thresholds: Thresholds | None = None) -> list[VariantState]:
    found = []
    for measurement in measurements:
        begin = begin.measured(measurement, thresholds or Thresholds())
        found.append(begin.state)
    return found


def test_variant_is_inactive_until_loaded_and_after_unloading() -> None:
    assert Lifecycle().state is INACTIVE
    assert states(seen(200.0), begin=Lifecycle()) == [INACTIVE]
    assert ACTIVE_NOW.state is ACTIVE
    for measurement in (seen(50.0), seen(200.0), seen(50.0, slowdown=2.0)):
        assert ACTIVE_NOW.measured(measurement).unloaded() == Lifecycle()


@pytest.mark.parametrize(
    ("measurements", "expected"),
    [
        ((seen(99.9), seen(100.0)), [ACTIVE, OVERLOADED]),
        ((seen(50.0, 1.19), seen(50.0, 1.2)), [ACTIVE, INTERFERED]),
        ((seen(100.0, 1.5),), [OVERLOADED]),  # slow and at its peak is overloaded
        ((seen(50.0, 1.5), seen(100.0, 1.5)), [INTERFERED, OVERLOADED]),
        ((seen(100.0), seen(50.0, 1.5)), [OVERLOADED, INTERFERED]),  # contended; QPS < peak
        ((seen(100.0), seen(90.0), seen(90.0)), [OVERLOADED, OVERLOADED, ACTIVE]),
        ((seen(50.0, 1.5), seen(50.0, 1.0), seen(50.0, 1.0)), [INTERFERED, INTERFERED, ACTIVE]),
    ],
)
def test_each_transition_of_figure_4(measurements: Sequence[Measurement], expected: list[VariantState]) -> None:
    assert states(*measurements) == expected


def test_overload_ends_where_the_autoscalers_headroom_is_back() -> None:
    assert states(seen(100.0), seen(96.0), seen(96.0), seen(96.0)) == [OVERLOADED] * 4  # 100 / 96 < 1.05
    assert states(seen(100.0), seen(95.0), seen(95.0)) == [OVERLOADED, OVERLOADED, ACTIVE]  # 100 / 95 > 1.05


def test_recovery_takes_two_periods_in_succession() -> None:
    assert states(seen(100.0), seen(50.0), seen(100.0), seen(50.0), seen(50.0)) == [OVERLOADED] * 4 + [ACTIVE]


def test_contention_ends_at_half_of_the_excess() -> None:
    assert states(seen(50.0, 1.2), seen(50.0, 1.15), seen(50.0, 1.15), seen(50.0, 1.15)) == [INTERFERED] * 4
    assert states(seen(50.0, 1.2), seen(50.0, 1.09), seen(50.0, 1.09)) == [INTERFERED, INTERFERED, ACTIVE]


def test_spread_of_the_profile_is_not_contention() -> None:
    assert states(seen(50.0, 1.3, spread=0.15)) == [ACTIVE]
    assert states(seen(50.0, 1.4, spread=0.15)) == [INTERFERED]


def test_few_batches_say_nothing_about_contention() -> None:
    assert states(seen(1.0, 3.0, batches=2)) == [ACTIVE]


def test_interfered_instance_without_batches_is_tried_again_later() -> None:
    idle = seen(0.0, 1.0, batches=0)
    assert states(seen(50.0, 1.5), *[idle] * 5) == [INTERFERED] * 5 + [ACTIVE]
    assert states(seen(50.0, 1.5), *[idle] * 4, seen(50.0, 1.5), idle) == [INTERFERED] * 7
    assert states(seen(50.0, 1.5), idle, seen(100.0, 1.0, batches=0)) == [INTERFERED, INTERFERED, OVERLOADED]


def test_longer_confirmation_can_be_asked_for() -> None:
    patient = Thresholds(worse_periods=3)
    assert states(seen(100.0), seen(100.0), seen(50.0), *[seen(100.0)] * 3, thresholds=patient) == [ACTIVE] * 5 + [OVERLOADED]


def test_noise_at_the_peak_changes_the_state_less_often_than_without_hysteresis() -> None:
    """Poisson counts of two seconds around 97 % of the peak, for an hour."""
    rng = random.Random(1)
    rates = [rng.gauss(97.0, (97.0 / 2.0) ** 0.5) for _ in range(1800)]
    none = Thresholds(headroom=1.0, better_periods=1)

    def changes(thresholds: Thresholds) -> int:
        found = states(*[seen(rate) for rate in rates], thresholds=thresholds)
        return sum(first is not second for first, second in pairwise(found))

    assert changes(Thresholds()) * 2 < changes(none)
