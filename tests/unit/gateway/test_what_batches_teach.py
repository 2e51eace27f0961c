"""Which batches say how long their kind takes, and which say nothing. Foretold are 100 ms a sample on one core, 50 on two."""

from __future__ import annotations

import pytest

from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.dispatcher import Dispatcher
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.queueing.queue import LaneKey, Request
from gnomon_gateway.scheduling.policies import Immediate
from tests.unit.gateway.dispatching import Proportional

LANE = LaneKey("events", "m")
MODEL, HANDLER = Settings(model="m"), Settings()


def serving(settings: Settings) -> Dispatcher:
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
    dispatcher = serving(MODEL)
    serve_two(dispatcher, codes, times=30)
    assert dispatcher.latency.seconds("m", 1, 2) == pytest.approx(0.2)
    assert dispatcher.latency.corrections(["m"]) == {}


def test_a_model_is_known_by_what_it_has_computed() -> None:
    dispatcher = serving(MODEL)
    serve_two(dispatcher, [200, 200], times=30)
    assert dispatcher.latency.corrections(["m"]) == pytest.approx({1: 0.005})


def test_any_status_of_a_handler_counts_as_work() -> None:
    dispatcher = serving(HANDLER)
    serve_two(dispatcher, [404, 200], times=30)
    assert dispatcher.latency.seconds("m", 1, 2) == pytest.approx(0.001, rel=0.01)


def test_a_handler_that_becomes_a_model_is_measured_as_one() -> None:
    dispatcher = serving(HANDLER)
    dispatcher.set_policy(MODEL, Immediate(), 0.0)
    serve_two(dispatcher, [400, 400], times=30)
    assert dispatcher.latency.corrections(["m"]) == {}


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_batch_of_a_resized_instance_is_no_measurement(before: int, after: int) -> None:
    dispatcher = serving(MODEL)
    dispatcher.instance_ready("body", before, 8, 0.0)
    dispatcher.arrive([Request(LANE, 0.0, 5.0)], 0.0)
    dispatcher.instance_ready("body", after, 8, 0.05)
    dispatcher.finished("body", 1, [200], 3.0)
    assert [dispatcher.latency.seconds("m", cores, 1) for cores in (1, 2)] == [0.1, 0.05]
    dispatcher.arrive([Request(LANE, 3.0, 9.0)], 3.0)
    dispatcher.finished("body", 2, [200], 6.0)
    assert (dispatcher.latency.seconds("m", after, 1) or 0.0) > 1.0, "the next one does"
