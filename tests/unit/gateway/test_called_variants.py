"""Tensors and events of one model: what nobody calls is never measured, and must not decide for what is called.

Foretold are 20·b ms for both; the objective is 100 ms. The machine is twice as quick as that.
"""

from __future__ import annotations

import time

from gnomon_core.functions import FunctionKey
from gnomon_core.pairs import Pair
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_gateway.dispatch.dispatcher import Dispatcher, Send
from gnomon_gateway.dispatch.fleet import QUIET_S
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.queueing.request import LaneKey, Request
from gnomon_gateway.scheduling.basic import Immediate
from tests.unit.gateway.test_profiled_latency import PROFILE

TENSORS, EVENTS, STREAM = LaneKey("tensors", "m"), LaneKey("events", "m/events"), LaneKey("stream", "m/events", solo=True)
SETTINGS = Settings(model="m", max_batch=8, slo_s=0.1, deadline_s=5.0)


class Foretold:
    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        del variant, body_cores, pair
        return 0.02 * batch


class Served:
    """An instance that takes a batch of one after the other."""

    def __init__(self) -> None:
        self.now_s, self.batches = 0.0, 0
        self.dispatcher = Dispatcher(SETTINGS, Immediate(), LearnedLatency(Foretold()), 0.0, sized_by=("m", "m/events"))
        self.dispatcher.instance_ready("body", 1, 8, 0.0)

    def serve(self, lane: LaneKey, count: int = 1, *, taking_s: float = 0.01) -> None:
        for _ in range(count):
            self.dispatcher.arrive([Request(lane, self.now_s, self.now_s + 5.0)], self.now_s)
            self.now_s, self.batches = self.now_s + taking_s, self.batches + 1
            self.dispatcher.finished("body", self.batches, [200], self.now_s)

    @property
    def largest(self) -> int:
        return self.dispatcher.workers.by_id["body"].slot.max_batch


def test_what_nobody_calls_does_not_hold_batches_to_the_profile() -> None:
    served = Served()
    assert served.largest == 5, "before the first request both count: t(5) = 100 ms"
    served.serve(TENSORS, 30)
    assert served.largest == 8
    served.serve(STREAM)
    assert served.largest == 8, "one that streams is alone in its batch, however long that takes"


def test_with_its_first_request_a_variant_counts_and_then_by_what_it_takes() -> None:
    served = Served()
    served.serve(TENSORS, 30)
    served.dispatcher.instance_ready("other", 1, 8, served.now_s)
    served.dispatcher.arrive([Request(EVENTS, served.now_s, served.now_s + 5.0)], served.now_s)
    assert {worker.slot.max_batch for worker in served.dispatcher.workers.by_id.values()} == {5}
    served = Served()
    served.serve(TENSORS, 30)
    served.serve(EVENTS, 30)
    assert served.largest == 8


def test_a_variant_that_was_tried_once_counts_for_five_minutes_and_again_when_it_is_called() -> None:
    """Its only batch was cold, and took three times as long as foretold: no more than one sample would be in time."""
    served = Served()
    served.serve(TENSORS, 30)
    served.serve(EVENTS, taking_s=0.06)
    tried_s = served.now_s
    assert served.largest < 8
    served.serve(TENSORS, 30)
    assert served.largest < 8
    served.now_s = tried_s + QUIET_S
    served.serve(TENSORS)
    assert served.largest == 8
    served.dispatcher.arrive([Request(EVENTS, served.now_s, served.now_s + 5.0)], served.now_s)
    assert served.largest < 8


def test_what_waits_is_called_however_long_it_waits() -> None:
    served = Served()
    served.serve(TENSORS, 30)
    served.dispatcher.arrive([Request(TENSORS, served.now_s, served.now_s + 1e6)], served.now_s)
    served.dispatcher.arrive([Request(EVENTS, served.now_s, served.now_s + 1e6)], served.now_s)
    served.now_s, served.batches = served.now_s + QUIET_S, served.batches + 1
    effects = served.dispatcher.finished("body", served.batches, [200], served.now_s)
    assert [effect.batch.lane for effect in effects if isinstance(effect, Send)] == [EVENTS]
    assert served.largest == 5


async def test_policies_are_told_the_latency_of_what_is_called() -> None:
    signature = ModelSignature("m", "1", (TensorSpec("x", "FP32", (4,)),), (TensorSpec("y", "FP32", (2,)),))
    latency = LearnedLatency(Foretold())
    runtime = FunctionRuntime(FunctionKey("fn"), SETTINGS, Immediate(), latency, signature=signature, profile=PROFILE)
    for _ in range(30):
        latency.observe("m", 1, 1, 0.01)
    assert runtime.latency_s()[0] == 0.02, "before the first request whichever is longer"
    now_s = time.monotonic()
    runtime.dispatcher.arrive([Request(runtime.tensor_lane, now_s, now_s + 5.0)], now_s)
    assert runtime.latency_s()[0] < 0.011
    runtime.close()
