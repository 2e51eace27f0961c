"""Batches of a Body and its Shadows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.pairs import Pair, together
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_core.wire import Frame, Kind
from gnomon_gateway.dispatch.dispatcher import Answer, Dispatcher, Effect, Send
from gnomon_gateway.dispatch.fleet import Sizing, Workers
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.profiles import ProfiledLatency
from gnomon_gateway.metrics import PairMetrics
from gnomon_gateway.queueing.queue import Batch, LaneKey, Request
from gnomon_gateway.scheduling.policies import AdaptivePaper, Immediate
from gnomon_gateway.v2.inference import join, most_samples, split
from tests.made_up_models import BlockPlan, made_up_profile

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


def test_measurements_during_a_change_are_dropped() -> None:
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


ONE, TWO = Pair(1, (0, 1), (0, 1, 1, 1)), Pair(2, (0, 1), (0, 0, 1, 2))
BOTH = together((ONE, TWO))
# 0.1 s a sample on one core, half of that on two.
PROFILE = made_up_profile((BlockPlan(0.5, 1000), BlockPlan(0.5, 1000)), (0.1, 0.2, 0.3, 0.4), cores=(1, 2))


def test_a_body_names_its_shadows_in_their_order() -> None:
    alone = Instance("b", "f", 1, "n", 1, 0, InstanceState.READY, 0.0)
    body = alone.working_with({"s1": ONE, "s2": TWO})
    assert (body.partner, body.others, body.pair) == ("s1", ("s2",), BOTH)
    assert list(body.shadows.items()) == [("s1", ONE), ("s2", TWO)]
    assert body.working_with({"s2": TWO}).pair == TWO
    assert body.working_with({}) == alone
    assert alone.shadows == {}


def test_latency_is_that_of_all_of_them_together() -> None:
    profiled = ProfiledLatency()
    profiled.put("m", PROFILE)
    latency = LearnedLatency(profiled)
    # Four samples: the Body one, the first Shadow one, and two on two cores.
    four_s = max(0.1, PROFILE.whole.at(2, 2) or 0.0)
    assert latency.seconds("m", 1, 4, BOTH) == pytest.approx(four_s)
    assert latency.seconds("m", 1, 4, ONE) == pytest.approx(0.3)
    latency.observe("m", 1, 4, 1.0, BOTH)
    assert latency.seconds("m", 1, 4, ONE) == pytest.approx(0.3), "what one Shadow does has a curve of its own"


def test_smallest_instance_counts_the_cores_of_its_shadows() -> None:
    workers = Workers(Sizing(LearnedLatency(), 1.0, ()))
    for name in ("two", "one"):
        workers.add(name, 1, 4)
    workers.pair(workers.by_id["two"], BOTH)
    workers.pair(workers.by_id["one"], ONE)
    assert [slot.instance_id for slot in workers.view(solo=False).idle] == ["one", "two"]
    assert workers.capacity().pair == ONE


def test_shares_of_several_shadows_add_up() -> None:
    """Two runs of a batch of eight: each Shadow computes its samples in both."""
    lane = LaneKey("tensors", "m")
    batch = Batch(1, "b", lane, tuple(Request(lane, 1.0, 9.0) for _ in range(8)), 1.0)
    batch.pair, batch.expected_end_s = BOTH, 1.2
    said = [
        {"shadow": shadow, "outcome": "answered", "samples": samples, "waited_ms": 1.0}
        for _ in range(2)
        for shadow, samples in (("s1", 3), ("s2", 2))
    ]
    metrics = PairMetrics()
    metrics.done(batch, Frame(Kind.RESULT, head=json.dumps({"pair": said}).encode()), 1.1)
    assert (metrics.offloaded, metrics.hand_overs["answered"]) == (5, 4)
    metrics.done(
        batch, Frame(Kind.RESULT, head=json.dumps({"pair": [{**hand_over, "samples": 7} for hand_over in said]}).encode()), 1.1
    )
    assert metrics.offloaded == 13, "an instance may claim anything, at most its batch is believed"


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    samples=st.integers(1, 40),
    max_batch=st.integers(1, 12),
    seed=st.randoms(use_true_random=False),
)
def test_the_parts_of_a_body_joined_are_the_body(sizes: list[int], samples: int, max_batch: int, seed: object) -> None:
    body = seed.randbytes(samples * sum(sizes))  # type: ignore[attr-defined]
    parts = split(sizes, memoryview(body), samples, max_batch)
    assert all(1 <= count <= max_batch for count, _ in parts)
    assert [count for count, _ in parts[:-1]] == [max_batch] * (len(parts) - 1)
    assert sum(count for count, _ in parts) == samples
    assert join(sizes, [part for _, part in parts], [count for count, _ in parts]) == body


def test_each_part_has_its_samples_of_every_tensor() -> None:
    body = b"AaBbCc" + b"123"  # two bytes and one byte a sample
    assert [(count, bytes(part)) for count, part in split([2, 1], memoryview(body), 3, 2)] == [(2, b"AaBb12"), (1, b"Cc3")]


def test_an_answer_of_another_length_is_not_joined() -> None:
    with pytest.raises(ValueError, match="3 bytes for 2 samples"):
        join([2], [b"AaB", b"C"], [2, 1])


def test_largest_request_is_a_batch_or_some_hundred_samples() -> None:
    small, photo = ModelSignature("m", "1", (TensorSpec("x", "FP32", (2,)),), ()), TensorSpec("x", "FP32", (3, 224, 224))
    assert [most_samples(small, max_batch) for max_batch in (1, 1000)] == [256, 1000]
    assert [most_samples(replace(small, inputs=(photo,)), max_batch) for max_batch in (1, 32)] == [13, 32]
    assert most_samples(replace(small, inputs=(photo, photo)), 1) == 8
