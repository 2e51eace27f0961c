"""Instances of another size or concurrency."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gnomon_core.scaling import Resize
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.dispatcher import Dispatcher, Drained, Effect, Send
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.scheduling.policies import Immediate
from tests.unit.gateway.dispatching import errors, request, sent
from tests.unit.gateway.shadow_stage import NAME, Scripted, Silent, Stage


class Resizing(Scripted):
    """Gives cores at once, as a process has them, or when a test says so, as a pod has them once its kubelet has come to it."""

    def __init__(self) -> None:
        super().__init__()
        self.at_once = True

    async def resize(self, instance_id: str, cores: int) -> None:
        if self.at_once and instance_id in self.there:
            self.there[instance_id] = replace(self.there[instance_id], cores=cores)


@pytest.fixture
async def platform() -> Resizing:
    return Resizing()


@pytest.fixture
async def stage(platform: Resizing) -> AsyncIterator[Stage]:
    made = Stage(platform)
    await made.begin()
    yield made
    made.deployed.runtime.close()


def believed(stage: Stage) -> int:
    """The cores that batches are made for, and latencies learned by."""
    return stage.deployed.runtime.dispatcher.workers.by_id["b1"].cores


async def test_cores_that_are_there_at_once_are_believed_at_once(stage: Stage) -> None:
    await stage.instances.apply(NAME, [Resize("b1", 2)])
    assert believed(stage) == 2


async def test_cores_that_are_to_come_are_believed_when_they_have(stage: Stage, platform: Resizing) -> None:
    platform.at_once = False
    await stage.instances.apply(NAME, [Resize("b1", 2)])
    assert believed(stage) == 1
    body = platform.there["b1"] = replace(platform.there["b1"], cores=2)
    stage.instances.instance_ready(body, Silent())
    assert believed(stage) == 2


async def test_a_resize_of_one_that_has_gone_changes_nothing(stage: Stage) -> None:
    stage.gone("b1")
    stage.platform.there.clear()
    await stage.instances.apply(NAME, [Resize("b1", 2)])
    assert stage.deployed.runtime.largest_batches() == {}


def make(**concurrency: int) -> Dispatcher:
    dispatcher = Dispatcher(Settings(queue_max_requests=20), Immediate(), LearnedLatency(), 0.0)
    for name, count in concurrency.items():
        dispatcher.instance_ready(name, 2, 1, 0.0, concurrency=count)
    return dispatcher


def places(effects: list[Effect]) -> list[tuple[str, int]]:
    return [(effect.batch.instance_id, effect.batch.id) for effect in effects if isinstance(effect, Send)]


def test_instance_gets_at_most_its_concurrency() -> None:
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


def test_instance_is_drained_after_its_last_batch() -> None:
    dispatcher = make(a=2)
    effects = dispatcher.arrive([request(), request(), request()], 0.0)
    assert dispatcher.drain("a", 0.0) == []
    (_, first), (_, second) = places(effects)
    assert Drained("a") not in dispatcher.finished("a", first, [200], 1.0)
    effects = dispatcher.finished("a", second, [200], 1.0)
    assert Drained("a") in effects
    assert not sent(effects)


def test_unread_batches_of_a_dead_instance_wait_again() -> None:
    dispatcher = make(a=3)
    dispatcher.arrive([request() for _ in range(3)], 0.0)
    effects = dispatcher.instance_gone("a", 1.0, unread={1, 3})
    assert errors(effects) == ["instance_lost"]
    assert dispatcher.counters(1.0).queued == 2


def test_admission_counts_on_all_its_places() -> None:
    dispatcher = make(a=4)
    assert dispatcher.workers.capacity().samples == 4
    assert [place.idle for place in dispatcher.workers.places(0.0)] == [True] * 4
    dispatcher.arrive([request()], 0.0)
    assert [place.idle for place in dispatcher.workers.places(0.0)] == [False, True, True, True]
    assert dispatcher.workers.view(solo=False).room == 3, "adaptive need not wait for company here"
