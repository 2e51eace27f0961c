"""What profiles foretell, alone and with Shadows, and how served latencies correct it.

Four blocks of 1, 4, 4 and 1 ms a sample on one core, half of that on two; a hand-over takes 0.1 ms.
"""

from __future__ import annotations

import pytest

from gnomon_core.blocks import Block, Layers
from gnomon_core.pairs import Pair, best_split, pair_seconds
from gnomon_core.profiles import LatencyTable, Loading, ModelProfile
from gnomon_gateway.dispatch.latency import MANY_PAIRS, LearnedLatency
from gnomon_gateway.functions.profiles import Corrected, ProfiledLatency

PER_SAMPLE_S = (0.001, 0.004, 0.004, 0.001)


def profile() -> ModelProfile:
    blocks = tuple(
        Block(f"block{n}", n, n + 1, (f"v{n}",), (f"v{n + 1}",), (f"w{n}",), 1000, 8, splittable=True) for n in range(4)
    )
    layers = Layers("digest", ("v4",), blocks, {f"v{n}": 100 for n in range(5)})
    tables = tuple(
        LatencyTable({cores: {batch: batch * one / cores for batch in (1, 2, 4, 8)} for cores in (1, 2)}) for one in PER_SAMPLE_S
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
        latency.doubt("m", 1)
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


def test_a_body_that_was_slow_when_it_got_its_shadow_is_not_thought_slow_for_as_long_as_it_has_it() -> None:
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


def test_a_corrected_profile_is_scaled_row_by_row_and_stays_the_same_object_while_nothing_matters() -> None:
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
