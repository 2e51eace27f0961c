"""Whose refusal shrinks a prediction, and of what. Batches take 30 ms, as foretold; some clients allow less."""

from __future__ import annotations

import pytest

from gnomon_core.interfaces import LatencyModel
from gnomon_core.pairs import Pair
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.dispatcher import Dispatcher
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.queueing.request import LaneKey, Request
from gnomon_gateway.scheduling.basic import Immediate
from tests.unit.gateway.dispatching import errors, request, sent

TENSORS = LaneKey("tensors", "f/tensors")


class Foretold:
    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        del variant, body_cores, pair
        return 0.03 * batch


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
    return serving(Foretold())


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


def test_after_a_while_without_any_somebody_is_let_in_and_a_right_prediction_is_right_again(stage: Stage) -> None:
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


def test_what_another_variant_measures_answers_no_doubt_of_this_one(stage: Stage) -> None:
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


def test_who_allows_large_requests_less_than_small_ones_take_doubts_nothing() -> None:
    stage = serving(Steep())
    assert not any(stage.serve(size=8, allows_s=0.02) for _ in range(100))
    assert stage.latency.seconds("f", 1, 8) == pytest.approx(0.8)


def test_a_function_that_was_removed_doubts_nothing_for_the_one_in_its_place(stage: Stage) -> None:
    stage.now_s += 60.0
    stage.dispatcher.learns = False
    assert not any(stage.serve(allows_s=0.005) for _ in range(100))
    assert stage.foretold_s == pytest.approx(0.03)


def test_doubts_are_not_kept(stage: Stage) -> None:
    kept = stage.latency.learned("f")
    for _ in range(20):
        stage.latency.doubt("f", 1)
    assert stage.latency.learned("f")[1] == pytest.approx(kept[1])
