"""Instances that execute several batches at once, as the dispatcher uses them."""

from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.dispatcher import Dispatcher, Drained, Effect, Send
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.scheduling.basic import Immediate
from tests.unit.gateway.dispatching import errors, request, sent


def make(**concurrency: int) -> Dispatcher:
    dispatcher = Dispatcher(Settings(queue_max_requests=20), Immediate(), LearnedLatency(), 0.0)
    for name, count in concurrency.items():
        dispatcher.instance_ready(name, 2, 1, 0.0, concurrency=count)
    return dispatcher


def places(effects: list[Effect]) -> list[tuple[str, int]]:
    return [(effect.batch.instance_id, effect.batch.id) for effect in effects if isinstance(effect, Send)]


def test_it_gets_as_many_at_once_as_it_executes_and_the_rest_waits() -> None:
    dispatcher = make(a=3)
    effects = dispatcher.arrive([request() for _ in range(5)], 0.0)
    assert len(sent(effects)) == 3
    assert dispatcher.counters(0.0).queued == 2
    [(name, first), *_] = places(effects)
    assert len(sent(dispatcher.finished(name, first, [200], 1.0))) == 1


def test_requests_go_to_the_instance_that_executes_fewest() -> None:
    dispatcher = make(a=4, b=4)
    effects = [effect for _ in range(6) for effect in dispatcher.arrive([request()], 0.0)]
    assert [name for name, _ in places(effects)] == ["a", "b", "a", "b", "a", "b"]
    of_b = [batch for name, batch in places(effects) if name == "b"]
    for batch in of_b[:2]:
        dispatcher.finished("b", batch, [200], 1.0)
    effects = [effect for _ in range(2) for effect in dispatcher.arrive([request()], 1.0)]
    assert [name for name, _ in places(effects)] == ["b", "b"]


def test_an_instance_is_as_busy_as_one_however_much_it_executes() -> None:
    dispatcher = make(a=4)
    effects = dispatcher.arrive([request(), request()], 0.0)
    for (name, batch), at_s in zip(places(effects), (1.0, 2.0), strict=True):
        dispatcher.finished(name, batch, [200], at_s)
    load = dispatcher.counters(5.0)
    assert (load.busy_core_s, load.concurrency_s) == (2 * 2.0, 3.0)


def test_it_is_drained_when_its_last_batch_has_ended() -> None:
    dispatcher = make(a=2)
    effects = dispatcher.arrive([request(), request(), request()], 0.0)
    assert dispatcher.drain("a", 0.0) == []
    (_, first), (_, second) = places(effects)
    assert Drained("a") not in dispatcher.finished("a", first, [200], 1.0)
    effects = dispatcher.finished("a", second, [200], 1.0)
    assert Drained("a") in effects
    assert not sent(effects)


def test_its_end_fails_what_it_executed_and_what_it_never_read_waits_again() -> None:
    dispatcher = make(a=3)
    dispatcher.arrive([request() for _ in range(3)], 0.0)
    effects = dispatcher.instance_gone("a", 1.0, unread=True)
    assert errors(effects) == ["instance_lost"] * 2
    assert dispatcher.counters(1.0).queued == 1


def test_admission_counts_on_all_its_places() -> None:
    dispatcher = make(a=4)
    assert dispatcher.workers.capacity().samples == 4
    assert [place.idle for place in dispatcher.workers.places(0.0)] == [True] * 4
    dispatcher.arrive([request()], 0.0)
    assert [place.idle for place in dispatcher.workers.places(0.0)] == [False, True, True, True]
    assert dispatcher.workers.view(solo=False).room == 3, "adaptive need not wait for company here"
