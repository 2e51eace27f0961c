"""A dispatcher with some instances, requests for it, and what its effects say."""

from __future__ import annotations

from gnomon_core.interfaces import SchedulingPolicy
from gnomon_core.pairs import Pair
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.dispatcher import Answer, Dispatcher, Effect, Send
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.queueing.queue import LaneKey, Request
from gnomon_gateway.scheduling.policies import Immediate

EVENTS = LaneKey("events", "f")
TENSORS = LaneKey("tensors", "f")


class Proportional:
    """A latency model by which each sample takes `sample_s` on one core."""

    def __init__(self, sample_s: float) -> None:
        self._sample_s = sample_s

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        del variant, pair
        return self._sample_s * batch / body_cores


def make(policy: SchedulingPolicy | None = None, *, instances: int = 1, max_batch: int = 4) -> Dispatcher:
    dispatcher = Dispatcher(Settings(queue_max_requests=10), policy or Immediate(), LearnedLatency(), 0.0)
    for number in range(instances):
        dispatcher.instance_ready(f"i{number}", 1, max_batch, 0.0)
    return dispatcher


def request(at_s: float = 0.0, deadline_s: float = 30.0, **options: object) -> Request:
    return Request(EVENTS, at_s, deadline_s, **options)  # type: ignore[arg-type]


def sent(effects: list[Effect]) -> list[list[Request]]:
    return [list(effect.batch.requests) for effect in effects if isinstance(effect, Send)]


def errors(effects: list[Effect]) -> list[str | None]:
    return [effect.error.code if effect.error else None for effect in effects if isinstance(effect, Answer)]
