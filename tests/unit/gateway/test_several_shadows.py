"""Bodies with more than one Shadow, as the gateway counts them."""

from __future__ import annotations

import json

import pytest

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.pairs import Pair, together
from gnomon_core.wire import Frame, Kind
from gnomon_gateway.dispatch.fleet import Sizing, Workers
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.metrics import PairMetrics
from gnomon_gateway.functions.profiles import ProfiledLatency
from gnomon_gateway.queueing.request import Batch, LaneKey, Request
from tests.made_up_models import BlockPlan, made_up_profile

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


def test_the_cores_of_all_shadows_count_where_the_smallest_instance_is_looked_for() -> None:
    workers = Workers(Sizing(LearnedLatency(), 1.0, ()))
    for name in ("two", "one"):
        workers.add(name, 1, 4)
    workers.pair(workers.by_id["two"], BOTH)
    workers.pair(workers.by_id["one"], ONE)
    assert [slot.instance_id for slot in workers.view(solo=False).idle] == ["one", "two"]
    assert workers.capacity().pair == ONE


def test_what_several_shadows_computed_adds_up_and_runs_do_not() -> None:
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
    metrics.done(batch, Frame(Kind.RESULT, head=json.dumps({"pair": [{**one, "samples": 7} for one in said]}).encode()), 1.1)
    assert metrics.offloaded == 13, "an instance may claim anything, at most its batch is believed"
