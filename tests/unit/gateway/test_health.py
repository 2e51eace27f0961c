"""Whether an instance still answers is asked only where its channel does not know."""

from __future__ import annotations

import asyncio

import pytest

from gnomon_core.settings import Settings
from gnomon_core.wire import Frame
from gnomon_gateway.dispatch.dispatcher import Dispatcher
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions import function_runtime
from gnomon_gateway.functions.function_runtime import Health
from gnomon_gateway.scheduling.policies import Immediate


class Played:
    """The channel of an idle instance that answers canaries as it is told."""

    unread = ()

    def __init__(self, *, answers: bool = True) -> None:
        self.answers = answers
        self.asked = asyncio.Event()

    def run(self, frame: Frame, done: object, stream: object = None) -> None:
        raise AssertionError(frame, done, stream)

    def cancel(self, batch_id: int) -> None:
        raise AssertionError(batch_id)

    async def probe(self, timeout_s: float) -> bool:
        del timeout_s
        self.asked.set()
        return self.answers


class Informed(Played):
    """One that may know without asking."""

    knows = True

    def is_known_healthy(self) -> bool:
        return self.knows


class Stage:
    """A function with these instances, watched."""

    def __init__(self, **channels: Played) -> None:
        self.frozen: list[str] = []
        dispatcher = Dispatcher(Settings(), Immediate(), LearnedLatency(), 0.0)
        for name in channels:
            dispatcher.instance_ready(name, 1, 1, 0.0)
        self.health = Health(dispatcher, channels, lambda name, _: self.frozen.append(name))


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_runtime, "PROBE_EVERY_S", 0.005)


async def test_healthy_instance_is_not_probed_while_it_is_known() -> None:
    asked, known = Played(), Informed()
    stage = Stage(asked=asked, known=known)
    stage.health.start()
    for _ in range(3):
        asked.asked.clear()
        await asyncio.wait_for(asked.asked.wait(), 20)
    assert not known.asked.is_set()
    known.knows = False
    await asyncio.wait_for(known.asked.wait(), 20)
    stage.health.stop()
    assert stage.frozen == []


async def test_unanswered_probe_is_reported_once() -> None:
    silent, asked = Informed(answers=False), Played()
    silent.knows = False
    stage = Stage(silent=silent, asked=asked)
    stage.health.start()
    for _ in range(3):
        asked.asked.clear()
        await asyncio.wait_for(asked.asked.wait(), 20)
    stage.health.stop()
    assert stage.frozen == ["silent"]


async def test_a_thousand_functions_are_checked_at_a_few_common_times(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, at_s = asyncio.get_running_loop(), set[float]()
    monkeypatch.setattr(function_runtime, "PROBE_EVERY_S", 3.0)
    stages = [Stage() for _ in range(1000)]
    with monkeypatch.context() as patched:
        patched.setattr(loop, "call_at", lambda when_s, _: at_s.add(when_s))
        for number, stage in enumerate(stages):
            patched.setattr(loop, "time", lambda begun_s=100 + 0.003 * number: begun_s)
            stage.health.start()
    assert len(at_s) <= 31
    assert (min(at_s), max(at_s)) == (pytest.approx(103.0), pytest.approx(106.0))
