from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.pairs import Pair
from gnomon_gateway.dispatch.latency import GivenLatency, LearnedLatency, never_falling


class Profile:
    """10 ms a sample on one core; nothing about other core counts."""

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        del pair
        return 0.01 * batch if (variant, body_cores) == ("v", 1) else None


def test_nothing_is_known_before_the_first_batch() -> None:
    assert LearnedLatency().seconds("v", 1, 1) is None


def test_a_measurement_is_known_from_then_on_for_its_cores_only() -> None:
    latency = LearnedLatency()
    latency.observe("v", 1, 4, 0.2)
    assert latency.seconds("v", 1, 4) == pytest.approx(0.2)
    assert latency.seconds("v", 2, 4) is None


def test_between_sizes_it_is_on_a_line_below_it_is_flat_and_above_it_is_in_proportion() -> None:
    latency = LearnedLatency()
    latency.observe("v", 1, 2, 0.02)
    latency.observe("v", 1, 4, 0.03)
    assert latency.seconds("v", 1, 3) == pytest.approx(0.025)
    assert latency.seconds("v", 1, 1) == pytest.approx(0.02)
    assert latency.seconds("v", 1, 8) == pytest.approx(0.06)


def test_it_follows_a_change() -> None:
    latency = LearnedLatency()
    for _ in range(50):
        latency.observe("v", 1, 1, 0.01)
    for _ in range(30):
        latency.observe("v", 1, 1, 0.05)
    assert latency.seconds("v", 1, 1) == pytest.approx(0.05, rel=0.06)


def test_it_is_not_thrown_by_one_slow_batch() -> None:
    latency = LearnedLatency()
    for _ in range(50):
        latency.observe("v", 1, 1, 0.01)
    latency.observe("v", 1, 1, 0.1)
    assert latency.seconds("v", 1, 1) == pytest.approx(0.028)


def test_a_profile_is_believed_until_measured_and_then_scaled_as_a_whole() -> None:
    latency = LearnedLatency(Profile())
    assert latency.seconds("v", 1, 8) == pytest.approx(0.08)
    for _ in range(40):
        latency.observe("v", 1, 1, 0.02)
    # Twice as slow at b = 1, so b = 8 is expected to take twice as long too.
    assert latency.seconds("v", 1, 8) == pytest.approx(0.16, rel=0.05)


@pytest.mark.parametrize("batch", [9, 11, 14, 20, 100, 200])
def test_batches_of_any_size_correct_the_whole_profile(batch: int) -> None:
    latency = LearnedLatency(Profile())
    for _ in range(40):
        latency.observe("v", 1, batch, 0.02 * batch)
    assert latency.corrections(["v"]) == pytest.approx({1: 2.0})
    assert latency.seconds("v", 1, 8) == pytest.approx(0.16, rel=0.05)


def test_doubt_lets_a_wrong_prediction_be_corrected() -> None:
    latency = LearnedLatency()
    latency.observe("v", 1, 1, 10.0)
    doubts = 0
    while (latency.seconds("v", 1, 1) or 0.0) > 1.0:
        latency.doubt("v", 1)
        doubts += 1
    assert doubts == 22  # 10 s · 0.9²² is just below a second


def test_doubts_leave_alone_what_is_measured_and_what_that_says_of_larger_batches() -> None:
    latency = LearnedLatency(Profile())
    for _ in range(200):
        latency.doubt("v", 1, None, [4, 2])
    believed = [latency.seconds("v", 1, batch) for batch in (1, 2, 3, 4, 8)]
    assert believed == pytest.approx([0.0, 0.02, 0.02, 0.04, 0.04], abs=1e-6)


def test_a_doubt_that_was_right_says_it_of_larger_batches_too_and_a_smaller_one_takes_no_more() -> None:
    latency = LearnedLatency()
    for batch in (1, 4, 8):
        latency.observe("v", 1, batch, 0.1 * batch)
    for _ in range(22):
        latency.doubt("v", 1)  # down to a tenth
    latency.observe("v", 1, 4, 0.04)
    believed = [latency.seconds("v", 1, batch) for batch in (1, 4, 8)]
    assert believed == pytest.approx([0.04, 0.04, 0.08], rel=0.05)


def test_what_is_only_expected_lies_between_what_was_seen_often() -> None:
    latency = LearnedLatency(Profile())
    for _ in range(5):
        latency.observe("v", 1, 8, 0.02)
    # Half as long as expected by now, 7 would take 35 ms.
    assert [latency.seconds("v", 1, batch) for batch in (1, 7, 8)] == pytest.approx([0.005, 0.02, 0.02], rel=0.02)


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 20)), min_size=1, max_size=20))
def test_the_fit_never_falls_and_keeps_the_weighted_mean(points: list[tuple[float, int]]) -> None:
    fitted = never_falling(points)
    assert fitted == sorted(fitted)
    weighted = sum(value * weight for value, weight in points)
    assert sum(value * weight for value, (_, weight) in zip(fitted, points, strict=True)) == pytest.approx(weighted)


def test_a_larger_batch_is_never_predicted_to_be_quicker() -> None:
    latency, noise = LearnedLatency(), random.Random(3)
    for _ in range(300):
        batch = noise.choice([1, 2, 4, 8, 16])
        latency.observe("v", 1, batch, 0.01 + 0.001 * batch + noise.uniform(0, 0.01))
    predicted = [latency.seconds("v", 1, batch) or 0.0 for batch in range(1, 40)]
    assert predicted == sorted(predicted)


def test_the_spread_tells_how_far_batches_are_from_what_was_foretold() -> None:
    latency = LearnedLatency()
    assert latency.spread("v", 1) == 0.0
    for _ in range(60):
        latency.observe("v", 1, 4, 0.1)
    assert latency.spread("v", 1) == pytest.approx(0.0, abs=0.01)
    for seconds in (0.12, 0.08) * 40:
        latency.observe("v", 1, 4, seconds)
    assert latency.spread("v", 1) == pytest.approx(0.2, abs=0.05)
    assert latency.spread("v", 2) == 0.0


def test_a_given_model_learns_nothing() -> None:
    latency = GivenLatency(Profile())
    latency.observe("v", 1, 1, 99.0)
    latency.doubt("v", 1)
    assert latency.seconds("v", 1, 1) == pytest.approx(0.01)
