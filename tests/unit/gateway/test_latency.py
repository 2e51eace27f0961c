"""Predicted latency: profiles, observations, corrections, and which batches count as an observation."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.blocks import Block, Layers
from gnomon_core.interfaces import LatencyModel
from gnomon_core.pairs import Pair, best_split, pair_seconds
from gnomon_core.profiles import LatencyTable, Loading, ModelProfile
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.dispatcher import Dispatcher
from gnomon_gateway.dispatch.latency import MANY_PAIRS, GivenLatency, LearnedLatency, isotonic_regression
from gnomon_gateway.functions.profiles import Corrected, ProfiledLatency
from gnomon_gateway.queueing.queue import LaneKey, Request
from gnomon_gateway.scheduling.policies import Immediate
from tests.unit.gateway.dispatching import Proportional, errors, request, sent


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


def test_curve_is_linear_between_sizes_flat_below_proportional_above() -> None:
    latency = LearnedLatency()
    latency.observe("v", 1, 2, 0.02)
    latency.observe("v", 1, 4, 0.03)
    assert latency.seconds("v", 1, 3) == pytest.approx(0.025)
    assert latency.seconds("v", 1, 1) == pytest.approx(0.02)
    assert latency.seconds("v", 1, 8) == pytest.approx(0.06)


def test_learned_latency_follows_a_change() -> None:
    latency = LearnedLatency()
    for _ in range(50):
        latency.observe("v", 1, 1, 0.01)
    for _ in range(30):
        latency.observe("v", 1, 1, 0.05)
    assert latency.seconds("v", 1, 1) == pytest.approx(0.05, rel=0.06)


def test_learned_latency_ignores_one_slow_batch() -> None:
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
    uncertain_batches = 0
    while (latency.seconds("v", 1, 1) or 0.0) > 1.0:
        latency.discount("v", 1)
        uncertain_batches += 1
    assert uncertain_batches == 22  # 10 s · 0.9²² is just below a second


def test_discounts_keep_measured_sizes_and_their_lower_bound() -> None:
    latency = LearnedLatency(Profile())
    for _ in range(200):
        latency.discount("v", 1, None, [4, 2])
    believed = [latency.seconds("v", 1, batch) for batch in (1, 2, 3, 4, 8)]
    assert believed == pytest.approx([0.0, 0.02, 0.02, 0.04, 0.04], abs=1e-6)


def test_confirmed_discount_holds_for_larger_and_bounds_smaller_batches() -> None:
    latency = LearnedLatency()
    for batch in (1, 4, 8):
        latency.observe("v", 1, batch, 0.1 * batch)
    for _ in range(22):
        latency.discount("v", 1)  # down to a tenth
    latency.observe("v", 1, 4, 0.04)
    believed = [latency.seconds("v", 1, batch) for batch in (1, 4, 8)]
    assert believed == pytest.approx([0.04, 0.04, 0.08], rel=0.05)


def test_expected_latency_lies_between_observed_ones() -> None:
    latency = LearnedLatency(Profile())
    for _ in range(5):
        latency.observe("v", 1, 8, 0.02)
    # Half as long as expected by now, 7 would take 35 ms.
    assert [latency.seconds("v", 1, batch) for batch in (1, 7, 8)] == pytest.approx([0.005, 0.02, 0.02], rel=0.02)


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 20)), min_size=1, max_size=20))
def test_the_fit_never_falls_and_keeps_the_weighted_mean(points: list[tuple[float, int]]) -> None:
    fitted = isotonic_regression(points)
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
    latency.discount("v", 1)
    assert latency.seconds("v", 1, 1) == pytest.approx(0.01)


PER_SAMPLE_S = (0.001, 0.004, 0.004, 0.001)


def profile() -> ModelProfile:
    blocks = tuple(
        Block(f"block{n}", n, n + 1, (f"v{n}",), (f"v{n + 1}",), (f"w{n}",), 1000, 8, splittable=True) for n in range(4)
    )
    layers = Layers("digest", ("v4",), blocks, {f"v{n}": 100 for n in range(5)})
    tables = tuple(
        LatencyTable({cores: {batch: batch * value / cores for batch in (1, 2, 4, 8)} for cores in (1, 2)})
        for value in PER_SAMPLE_S
    )
    whole = LatencyTable({cores: {batch: 0.01 * batch / cores for batch in (1, 2, 4, 8)} for cores in (1, 2)})
    return ModelProfile("m@1", layers, whole, tables, {"shared": Loading(0.001, 0.0)}, 0.02, 0.01, 1, 0.0001, 0.0)


PROFILE = profile()
PAIR = Pair(1, (1, 2), best_split(PROFILE, (1, 1), (1, 2), 8))


def learned() -> LearnedLatency:
    foretold = ProfiledLatency()
    foretold.put("m", PROFILE)
    return LearnedLatency(foretold)


def test_a_pair_is_foretold_as_equation_6_says() -> None:
    latency = learned()
    for batch in range(1, 9):
        assert latency.seconds("m", 1, batch, PAIR) == pytest.approx(pair_seconds(PROFILE, 1, PAIR, batch))
    # 8 samples: 16 ms alone, half of 64 ms side by side, two hand-overs.
    assert latency.seconds("m", 1, 8, PAIR) == pytest.approx(0.016 + 0.032 + 0.0002)
    assert latency.seconds("m", 1, 8) == pytest.approx(0.08)
    assert latency.seconds("unknown", 1, 8, PAIR) is None
    assert latency.seconds("m", 16, 8, PAIR) is None


def test_blocks_that_the_model_has_not_are_foretold_nothing() -> None:
    """A Body may say so of its Shadows: then a pair begins at what the Body takes alone."""
    latency, nobody = learned(), Pair(1, (1, 99), (0, 1, 1, 2))
    latency.observe("m", 1, 4, 0.04)
    assert latency.seconds("m", 1, 8, nobody) == pytest.approx(latency.seconds("m", 1, 8))
    latency.observe("m", 1, 4, 0.02, nobody)
    assert latency.seconds("m", 1, 4, nobody) == pytest.approx(0.02, rel=0.5)


def test_a_new_pair_is_expected_to_be_as_slow_as_its_body_was_found_to_be() -> None:
    latency = learned()
    for _ in range(40):
        latency.observe("m", 1, 4, 0.06)  # half as long again as foretold
    assert latency.seconds("m", 1, 8) == pytest.approx(0.12, rel=0.01)
    assert latency.seconds("m", 1, 8, PAIR) == pytest.approx(1.5 * 0.0482, rel=0.01)
    for _ in range(40):
        latency.observe("m", 1, 8, 0.09, PAIR)
    assert latency.seconds("m", 1, 8, PAIR) == pytest.approx(0.09, rel=0.01)
    assert latency.seconds("m", 1, 8) == pytest.approx(0.12, rel=0.01), "the Body alone is what it was"


def test_without_a_profile_a_pair_is_expected_to_be_as_its_body_alone() -> None:
    latency = LearnedLatency()
    assert latency.seconds("m", 2, 4, PAIR) is None
    latency = LearnedLatency()
    for batch in (1, 8):
        latency.observe("m", 1, batch, 0.01 * batch)
    assert latency.seconds("m", 1, 4, PAIR) == pytest.approx(0.04)


def test_pairs_of_the_past_are_forgotten() -> None:
    latency = learned()
    for cores in range(1, 3 * MANY_PAIRS):
        latency.seconds("m", 1, 8, Pair(cores, (1,), (0, 1)))
    assert len(latency._curves) <= MANY_PAIRS
    assert latency.seconds("m", 1, 8) == 0.08


def test_pairs_of_one_function_cost_no_other_what_was_learned_of_its_own() -> None:
    latency = learned()
    for _ in range(40):
        latency.observe("m", 1, 8, 0.09, PAIR)
    for cores in range(1, 3 * MANY_PAIRS):
        latency.observe("odd", 1, 8, 1.0, Pair(cores, (1,), (0, 1)))
    assert latency.seconds("m", 1, 8, PAIR) == pytest.approx(0.09, rel=0.01)
    assert len(latency._curves) <= MANY_PAIRS + 1
    # One that is forgotten altogether begins anew, with as much room as before.
    latency.forget("odd")
    for cores in range(1, 3 * MANY_PAIRS):
        latency.seconds("odd", 1, 8, Pair(cores, (1,), (0, 1)))
    assert len(latency._curves) == MANY_PAIRS + 1


def test_every_change_of_a_prediction_shows_as_a_revision() -> None:
    latency = learned()
    before = latency.revision
    latency.observe("m", 1, 4, 0.04)
    steady = latency.revision
    for _ in range(10):
        latency.observe("m", 1, 4, 0.04)
    assert steady == latency.revision, "nothing has changed"
    latency.observe("m", 1, 4, 0.4)
    assert before < steady < latency.revision


def test_a_correction_needs_enough_batches_and_knows_no_doubts() -> None:
    latency = learned()
    for _ in range(4):
        latency.observe("m", 1, 4, 0.06)
    assert latency.corrections(["m"]) == {}
    latency.observe("m", 1, 4, 0.06)
    for _ in range(5):
        latency.discount("m", 1)
    assert latency.corrections(["m"]) == {1: pytest.approx(1.5)}
    assert latency.corrections(["other"]) == {}


def test_of_two_variants_the_one_that_is_served_speaks() -> None:
    foretold = ProfiledLatency()
    foretold.put("m", PROFILE)
    foretold.put("m/events", PROFILE)
    latency = LearnedLatency(foretold)
    for _ in range(20):
        latency.observe("m", 1, 4, 0.08)
    for _ in range(50):
        latency.observe("m/events", 1, 4, 0.044)
    assert latency.corrections(["m", "m/events"]) == {1: pytest.approx(1.1)}


def test_latest_measurement_corrects_a_body_with_its_shadow() -> None:
    latency = learned()
    pair = Pair(1, (1, 2), (0, 1, 1, 2))
    for _ in range(10):
        latency.observe("m", 1, 4, 3 * PROFILE.whole.seconds[1][4])
    assert latency.corrections(["m"])[1] == pytest.approx(3.0)
    foretold_s = pair_seconds(PROFILE, 1, pair, 4)
    assert foretold_s is not None
    for _ in range(10):
        latency.observe("m", 1, 4, foretold_s, pair)
    assert latency.corrections(["m"])[1] == pytest.approx(1.0)


def test_corrected_profile_is_scaled_by_cores_and_cached() -> None:
    corrected = Corrected(PROFILE)
    assert corrected.by({}) is PROFILE
    slower = corrected.by({1: 1.2})
    assert slower.whole.at(1, 4) == pytest.approx(0.048)
    assert slower.whole.at(2, 4) == pytest.approx(0.024), "what was not measured goes along"
    assert slower.blocks[1].at(1, 1) == pytest.approx(0.0048)
    assert slower.layers is PROFILE.layers
    assert corrected.by({1: 1.21}) is slower
    assert corrected.by({1: 1.3}) is not slower
    assert corrected.by({}) is PROFILE


TENSORS = LaneKey("tensors", "f/tensors")


class Steep:
    """More than four samples were measured while the machine had something else to do."""

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        del variant, body_cores, pair
        return 0.03 if batch <= 4 else 0.8


class Stage:
    """A function with one instance, and a time."""

    def __init__(self, foretold: LatencyModel | None) -> None:
        self.now_s = 0.0
        self.batches = 0
        self.latency = LearnedLatency(foretold)
        self.dispatcher = Dispatcher(Settings(), Immediate(), self.latency, 0.0)
        self.dispatcher.instance_ready("i0", 1, 4, 0.0)

    @property
    def foretold_s(self) -> float:
        return self.latency.seconds("f", 1, 1) or 0.0

    def serve(self, *, takes_s: float = 0.03, allows_s: float = 30.0, size: int = 1) -> bool:
        """A request comes; whether it was let in. If so, it is executed."""
        effects = self.dispatcher.arrive([request(self.now_s, self.now_s + allows_s, size=size)], self.now_s)
        if not sent(effects):
            assert errors(effects) == ["deadline_cannot_be_met"]
            return False
        self.batches += 1
        self.now_s += takes_s
        self.dispatcher.finished("i0", self.batches, [200], self.now_s)
        return True

    def refused(self, *, allows_s: float) -> int:
        """How many requests are refused, one each millisecond, before one is let in."""
        count = 0
        while not self.serve(allows_s=allows_s):
            self.now_s += 0.001
            count += 1
            assert count < 100
        return count


def serving(foretold: LatencyModel | None) -> Stage:
    stage = Stage(foretold)
    for _ in range(10):
        assert stage.serve()
    return stage


@pytest.fixture
def stage() -> Stage:
    return serving(Proportional(0.03))


def test_a_deadline_that_has_passed_says_nothing_of_the_function(stage: Stage) -> None:
    stage.now_s += 60.0
    assert not any(stage.serve(allows_s=0.0) for _ in range(100))
    assert stage.foretold_s == pytest.approx(0.03)


def test_while_batches_say_what_is_right_nobody_talks_them_out_of_it(stage: Stage) -> None:
    for _ in range(20):
        assert not any(stage.serve(allows_s=0.005) for _ in range(100))
        assert stage.foretold_s == pytest.approx(0.03)
        stage.now_s += 1.0
        assert stage.serve()


def test_prediction_is_tried_again_after_a_pause_and_restored_if_right(stage: Stage) -> None:
    stage.now_s += 60.0
    assert stage.refused(allows_s=0.005) == 18  # 30 ms · 0.9¹⁷ is just above 5 ms
    assert stage.foretold_s == pytest.approx(0.03)
    assert not any(stage.serve(allows_s=0.005) for _ in range(100))
    assert stage.foretold_s == pytest.approx(0.03)


def test_a_wrong_prediction_stays_doubted(stage: Stage) -> None:
    for _ in range(30):
        stage.serve(takes_s=3.0)
    stage.now_s += 60.0
    assert not stage.serve(allows_s=1.0)
    assert stage.refused(allows_s=1.0) <= 11
    assert stage.foretold_s < 1.0
    assert stage.serve(allows_s=1.0)


def test_measurements_of_another_variant_reduce_no_uncertainty(stage: Stage) -> None:
    def allowed(now_s: float) -> bool:
        hurried = Request(TENSORS, now_s, now_s + 0.02)
        return bool(sent(stage.dispatcher.arrive([hurried], now_s)))

    assert not any(allowed(stage.now_s) for _ in range(4))
    assert allowed(stage.now_s)


# Requests of eight samples take 60 ms, and are foretold more; those of one come all the time.


@pytest.mark.parametrize("foretold", [None, Steep()], ids=["in proportion", "by a profile"])
def test_large_requests_are_let_in_although_only_small_ones_are_measured(foretold: LatencyModel | None) -> None:
    stage = serving(foretold)
    let_in: list[bool] = []
    for _ in range(150):
        let_in.append(stage.serve(size=8, takes_s=0.06, allows_s=0.1))
        assert stage.foretold_s == pytest.approx(0.03)
        assert stage.serve()
    assert not let_in[0]
    assert all(let_in[-20:]), "by then enough have been measured"


def test_tight_deadline_of_large_requests_raises_no_uncertainty() -> None:
    stage = serving(Steep())
    assert not any(stage.serve(size=8, allows_s=0.02) for _ in range(100))
    assert stage.latency.seconds("f", 1, 8) == pytest.approx(0.8)


def test_removed_function_discounts_nothing_for_its_successor(stage: Stage) -> None:
    stage.now_s += 60.0
    stage.dispatcher.learns = False
    assert not any(stage.serve(allows_s=0.005) for _ in range(100))
    assert stage.foretold_s == pytest.approx(0.03)


def test_doubts_are_not_kept(stage: Stage) -> None:
    kept = stage.latency.learned("f")
    for _ in range(20):
        stage.latency.discount("f", 1)
    assert stage.latency.learned("f")[1] == pytest.approx(kept[1])


LANE = LaneKey("events", "m")
OF_MODEL, OF_HANDLER = Settings(model="m"), Settings()


def dispatcher_of(settings: Settings) -> Dispatcher:
    dispatcher = Dispatcher(settings, Immediate(), LearnedLatency(Proportional(0.1)), 0.0)
    dispatcher.instance_ready("body", 1, 8, 0.0)
    return dispatcher


def serve_two(dispatcher: Dispatcher, codes: list[int], *, times: int) -> None:
    """Batches of two that are answered after a millisecond."""
    for number in range(1, times + 1):
        now_s = float(number)
        dispatcher.arrive([Request(LANE, now_s, now_s + 5.0) for _ in range(2)], now_s)
        dispatcher.finished("body", number, codes, now_s + 0.001)


@pytest.mark.parametrize("codes", [[400, 400], [200, 400], [504, 504], [200], []], ids=str)
def test_a_model_is_not_thought_quick_because_it_refuses_quickly(codes: list[int]) -> None:
    dispatcher = dispatcher_of(OF_MODEL)
    serve_two(dispatcher, codes, times=30)
    assert dispatcher.latency.seconds("m", 1, 2) == pytest.approx(0.2)
    assert dispatcher.latency.corrections(["m"]) == {}


def test_a_model_is_known_by_what_it_has_computed() -> None:
    dispatcher = dispatcher_of(OF_MODEL)
    serve_two(dispatcher, [200, 200], times=30)
    assert dispatcher.latency.corrections(["m"]) == pytest.approx({1: 0.005})


def test_any_status_of_a_handler_counts_as_work() -> None:
    dispatcher = dispatcher_of(OF_HANDLER)
    serve_two(dispatcher, [404, 200], times=30)
    assert dispatcher.latency.seconds("m", 1, 2) == pytest.approx(0.001, rel=0.01)


def test_a_handler_that_becomes_a_model_is_measured_as_one() -> None:
    dispatcher = dispatcher_of(OF_HANDLER)
    dispatcher.set_policy(OF_MODEL, Immediate(), 0.0)
    serve_two(dispatcher, [400, 400], times=30)
    assert dispatcher.latency.corrections(["m"]) == {}


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_batch_of_a_resized_instance_is_no_measurement(before: int, after: int) -> None:
    dispatcher = dispatcher_of(OF_MODEL)
    dispatcher.instance_ready("body", before, 8, 0.0)
    dispatcher.arrive([Request(LANE, 0.0, 5.0)], 0.0)
    dispatcher.instance_ready("body", after, 8, 0.05)
    dispatcher.finished("body", 1, [200], 3.0)
    assert [dispatcher.latency.seconds("m", cores, 1) for cores in (1, 2)] == [0.1, 0.05]
    dispatcher.arrive([Request(LANE, 3.0, 9.0)], 3.0)
    dispatcher.finished("body", 2, [200], 6.0)
    assert (dispatcher.latency.seconds("m", after, 1) or 0.0) > 1.0, "the next one does"
