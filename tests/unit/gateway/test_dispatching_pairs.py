"""Bodies with Shadows, on timelines. Alone t(b) = 20·b ms; with the Shadow 8 + 12·b ms. The objective is 100 ms."""

from __future__ import annotations

from gnomon_core.pairs import Pair
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.dispatcher import Answer, Dispatcher, Effect, Send
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.queueing.request import LaneKey, Request
from gnomon_gateway.scheduling.adaptive import AdaptivePaper
from gnomon_gateway.scheduling.basic import Immediate

LANE = LaneKey("tensors", "m")
PAIR = Pair(1, (1, 2), (0, 1, 1, 2, 2, 3, 3, 4))
OTHER = Pair(1, (1,), (0, 1, 1, 2, 2, 3, 3, 4))
SETTINGS = Settings(model="m", max_batch=8, slo_s=0.1, deadline_s=5.0)


class Foretold:
    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        if (variant, body_cores) != ("m", 1):
            return None
        return 0.02 * batch if pair is None else 0.008 + 0.012 * batch


def make(*, sized: bool = True, latency: LearnedLatency | None = None) -> Dispatcher:
    dispatcher = Dispatcher(
        SETTINGS, Immediate(), latency or LearnedLatency(Foretold()), 0.0, sized_by=("m", "m/events") if sized else ()
    )
    dispatcher.instance_ready("body", 1, 8, 0.0)
    return dispatcher


def request(at_s: float = 0.0, **options: object) -> Request:
    return Request(LANE, at_s, at_s + 5.0, **options)  # type: ignore[arg-type]


def arrive(dispatcher: Dispatcher, count: int, at_s: float = 0.0) -> list[Effect]:
    effects: list[Effect] = []
    for _ in range(count):
        effects += dispatcher.arrive([request(at_s)], at_s)
    return effects


def sizes(effects: list[Effect]) -> list[int]:
    return [effect.batch.size for effect in effects if isinstance(effect, Send)]


def largest(dispatcher: Dispatcher, name: str = "body") -> int:
    return dispatcher.workers.by_id[name].slot.max_batch


def test_the_largest_batch_is_what_meets_the_objective_alone_and_together() -> None:
    dispatcher = make()
    assert largest(dispatcher) == 5  # t(5) = 100 ms
    dispatcher.pair_changed("body", PAIR, 0.1)
    assert largest(dispatcher) == 7  # 8 + 7·12 = 92 ms, 104 ms for 8
    dispatcher.pair_changed("body", None, 0.2)
    assert largest(dispatcher) == 5


def test_without_a_profile_an_instance_takes_what_it_is_said_to() -> None:
    assert largest(make(sized=False)) == 8
    assert largest(make(latency=LearnedLatency())) == 8


def test_where_not_even_one_sample_meets_the_objective_batches_stay_large() -> None:
    dispatcher = make()
    dispatcher.instance_ready("slow", 1, 8, 0.0)
    dispatcher.set_policy(Settings(model="m", max_batch=8, slo_s=0.01), Immediate(), 0.0)
    assert largest(dispatcher) == largest(dispatcher, "slow") == 8


def test_a_shadow_that_comes_changes_the_next_batch_and_loses_nothing() -> None:
    dispatcher = make()
    assert sizes(arrive(dispatcher, 10)) == [1]
    assert sizes(dispatcher.pair_changed("body", PAIR, 0.01)) == []  # the batch that runs goes on
    effects = dispatcher.finished("body", 1, [200], 0.02)
    assert sizes(effects) == [7]
    second = next(effect.batch for effect in effects if isinstance(effect, Send))
    assert second.pair == PAIR
    assert second.expected_end_s == 0.02 + 0.092
    assert sizes(dispatcher.pair_changed("body", None, 0.03)) == []
    effects = dispatcher.finished("body", 2, [200] * 7, 0.11)
    assert sizes(effects) == [2]
    assert sum(isinstance(effect, Answer) for effect in effects) == 7


def test_a_body_that_dies_with_its_shadow_loses_only_its_batch() -> None:
    dispatcher = make()
    dispatcher.pair_changed("body", PAIR, 0.0)
    arrive(dispatcher, 5)
    lost = [effect for effect in dispatcher.instance_gone("body", 0.01) if isinstance(effect, Answer)]
    assert [effect.error.code for effect in lost if effect.error] == ["instance_lost"]
    assert dispatcher.pair_changed("body", None, 0.01) == []
    assert sizes(dispatcher.instance_ready("next", 1, 8, 0.02)) == [4]
    assert dispatcher.workers.by_id["next"].pair is None


def test_what_was_measured_while_the_shadow_changed_is_not_believed() -> None:
    latency = LearnedLatency(Foretold())
    dispatcher = make(latency=latency)
    arrive(dispatcher, 1)
    dispatcher.pair_changed("body", PAIR, 0.01)
    dispatcher.finished("body", 1, [200], 1.0)
    arrive(dispatcher, 1, 1.0)
    dispatcher.pair_changed("body", OTHER, 1.1)
    dispatcher.pair_changed("body", Pair(1, (1, 2), PAIR.split), 1.2)  # as before, and yet it was another in between
    dispatcher.finished("body", 2, [200], 2.0)
    assert latency.seconds("m", 1, 1) == 0.02
    assert latency.seconds("m", 1, 1, PAIR) == 0.02


def test_served_latencies_correct_the_largest_batch() -> None:
    dispatcher = make()
    now_s = 0.0
    for number in range(1, 30):  # the machine is twice as slow as its profile says
        arrive(dispatcher, 1, now_s)
        now_s += 0.04
        dispatcher.finished("body", number, [200], now_s)
    assert largest(dispatcher) == 2


def test_smaller_instances_come_first_and_a_shadow_makes_a_larger_one() -> None:
    dispatcher = make()
    dispatcher.instance_ready("other", 1, 8, 0.0)
    assert [slot.instance_id for slot in dispatcher.workers.view(solo=False).idle] == ["body", "other"]
    dispatcher.pair_changed("body", PAIR, 0.0)
    view = dispatcher.workers.view(solo=False)
    assert [(slot.instance_id, slot.max_batch, slot.pair) for slot in view.idle] == [("other", 5, None), ("body", 7, PAIR)]
    capacity = dispatcher.workers.capacity()
    assert (capacity.samples, capacity.batch, capacity.size, capacity.pair) == (12, 5, 1, None)


def test_as_printed_adaptive_waits_for_a_larger_batch_where_a_shadow_helps() -> None:
    def leaves_with(pair: Pair | None) -> int:
        dispatcher = Dispatcher(SETTINGS, AdaptivePaper(0.1), LearnedLatency(Foretold()), 0.0, sized_by=("m",))
        dispatcher.instance_ready("body", 1, 8, 0.0)
        dispatcher.pair_changed("body", pair, 0.0)
        for number in range(20):
            now_s = number * 0.004  # 250 requests/s
            if sent := sizes(dispatcher.arrive([request(now_s)], now_s)):
                return sent[0]
        return 0

    # Alone: 4 samples, the oldest for 12 ms, t = 80 ms: 92·5/4 = 115. Together: 5, 16 ms, 68 ms: 84·6/5 = 100.8.
    assert (leaves_with(None), leaves_with(PAIR)) == (4, 5)
