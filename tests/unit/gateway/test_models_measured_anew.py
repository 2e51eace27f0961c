"""A model that is measured, or measured anew, while its function serves: its batches, and its policy, go by that from then on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from gnomon_core.blocks import Block, Layers
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import InstanceState
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_core.profiles import LatencyTable, Loading, ModelProfile
from gnomon_core.scaling import CreateBody, SetBufferPlan
from gnomon_gateway.functions import manager
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.functions.manager import MOST_REREADS, Manager
from gnomon_gateway.functions.profiles import LatencyModels
from gnomon_gateway.store import SqliteStore
from gnomon_server.process import WORKER_THREADS
from tests.unit.gateway.stage import NAME, Scaling, Scripted, Silent
from tests.virtual_clock import VirtualClock
from tests.waiting import until

MODEL, OTHER = "m@1", "n@1"
LAYERS = Layers("digest", ("y",), (Block("all", 0, 1, ("x",), ("y",), ("w",), 1000, 8, splittable=True),), {"x": 1})


def deployment(name: str = "fn", model: str = MODEL, **labels: str) -> FunctionSpec:
    """Batches of eight samples, where they are known to end within a tenth of a second, or nothing is known."""
    annotations = {"gnomon/model": model, "gnomon/max-batch": "8", "gnomon/slo-ms": "100"}
    return read_deployment({"service": name, "image": "i", "annotations": annotations, "labels": labels})


def profile(sample_s: float, model: str = MODEL) -> ModelProfile:
    table = LatencyTable({1: {1: sample_s, 8: 8 * sample_s}})
    return ModelProfile(model, LAYERS, table, (table,), {"shared": Loading(0, 0)}, 0, 0, 0, 0, 0)


class Measuring(Scripted):
    """A platform whose models are measured when the test says so.

    Of `unreadable` ones it can say nothing now, and `hanging` ones are not read before `answers` is set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.measured: dict[str, ModelProfile] = {}
        self.unreadable: set[str] = set()
        self.hanging: set[str] = set()
        self.answers = threading.Event()
        self.asked = 0
        self.hangs: list[str] = []

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        model = spec.settings.model or ""
        self.asked += 1
        if model in self.hanging:
            self.hangs.append(model)
            self.answers.wait()
        if model in self.unreadable:
            raise GnomonError(503, "repository_unreachable", "It does not answer.", "Try again.")
        return self.measured.get(model)


class Stage:
    """A gateway with one function, which has one Body."""

    def __init__(self, folder: Path) -> None:
        self.platform, models = Measuring(), LatencyModels()
        self.latency = models.learned
        self.corrections = models.keep(folder / "corrections.json", "here", VirtualClock())
        self.store = SqliteStore(folder / "functions.db")
        self.manager = Manager(
            self.store,
            self.platform,
            Scaling(),
            models,
            now=lambda: 0.0,
        )

    async def begin(self) -> None:
        await self.manager.start()
        await self.manager.deploy(deployment())
        await self.manager.instances.apply(NAME, [CreateBody(1)])
        body = self.platform.there["b1"] = replace(self.platform.there["b1"], state=InstanceState.READY)
        self.manager.instances.instance_ready(body, Silent())

    def runtime(self, name: str = "fn") -> FunctionRuntime:
        runtime = self.manager.directory.lookup(name)
        assert runtime is not None
        return runtime

    @property
    def largest(self) -> int:
        """The largest batch that its Body gets."""
        return self.runtime().largest_batches()["b1"]

    def serves(self, sample_s: float, batch: int = 1) -> None:
        """Enough batches to say something of its model."""
        for _ in range(40):
            self.latency.observe(MODEL, 1, batch, sample_s * batch)

    async def several_looks(self) -> None:
        """Return when it has been asked again, and again, what was measured."""
        after = self.platform.asked + 3
        await until(lambda: self.platform.asked >= after, "nobody asks")


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(manager, "REREAD_S", 0.01)
    made = Stage(tmp_path)
    await made.begin()
    yield made
    made.platform.answers.set()
    await made.manager.stop()
    made.store.close()


async def test_a_model_that_is_measured_later_bounds_batches_without_a_request(stage: Stage) -> None:
    assert stage.largest == 8
    stage.platform.measured[MODEL] = profile(0.04)
    await until(lambda: stage.largest == 2, "80 ms are within the objective, and 120 are not")


async def test_policy_sees_a_new_profile_of_an_idle_function(stage: Stage) -> None:
    seen = stage.manager.instances
    before, load = seen.stamp(NAME), seen.load(NAME)
    assert load is not None
    assert load.profile is None
    stage.platform.measured[MODEL] = profile(0.04)
    await until(lambda: seen.stamp(NAME) != before, "a function at rest is to be looked at again")
    load = seen.load(NAME)
    assert load is not None
    assert load.profile == profile(0.04)


async def test_observations_before_a_new_profile_are_dropped(stage: Stage) -> None:
    """Else what is foretold of its sizes, its cores and its pairs would never be looked at."""
    stage.serves(0.001)
    stage.platform.measured[MODEL] = profile(0.04)
    await until(lambda: stage.largest == 2)
    assert stage.latency.seconds(MODEL, 1, 1) == pytest.approx(0.04)
    stage.serves(0.02)
    assert stage.latency.corrections([MODEL]) == pytest.approx({1: 0.5}, rel=0.01)


async def test_new_profile_discards_corrections_of_the_last(stage: Stage) -> None:
    stage.platform.measured[MODEL] = profile(0.04)
    await until(lambda: stage.largest == 2)
    stage.serves(0.08)
    assert stage.latency.corrections([MODEL]) == pytest.approx({1: 2.0}, rel=0.01)
    stage.platform.measured[MODEL] = profile(0.019)
    await until(lambda: stage.largest == 5)
    assert stage.latency.corrections([MODEL]) == {}
    assert stage.latency.seconds(MODEL, 1, 1) == pytest.approx(0.019)
    assert stage.corrections.to_json()["variants"] == {}, "nor after a restart"


async def test_a_plan_of_its_batches_stays(stage: Stage) -> None:
    await stage.manager.instances.apply(NAME, [SetBufferPlan(4, 0.01)])
    stage.platform.measured[MODEL] = profile(0.01)
    await until(lambda: stage.runtime().profile() is not None)
    assert stage.largest == 4
    stage.platform.measured[MODEL] = profile(0.04)
    await until(lambda: stage.largest == 2, "what is planned is the most that it may be")


async def test_an_equal_profile_changes_nothing_that_was_learned(stage: Stage) -> None:
    stage.platform.measured[MODEL] = profile(0.04)
    await until(lambda: stage.largest == 2)
    stage.serves(0.02)
    stage.platform.measured[MODEL] = profile(0.04)
    await stage.several_looks()
    assert stage.latency.corrections([MODEL]) == pytest.approx({1: 0.5}, rel=0.01)


async def test_unreadable_profile_keeps_the_old_one(stage: Stage) -> None:
    stage.platform.measured[MODEL] = profile(0.04)
    await until(lambda: stage.largest == 2)
    await stage.manager.deploy(deployment("other", OTHER))
    stage.platform.unreadable.add(MODEL)
    await stage.several_looks()
    stage.platform.measured[OTHER] = profile(0.03, OTHER)
    await until(lambda: stage.runtime("other").profile() == profile(0.03, OTHER))
    assert stage.largest == 2


async def test_profile_that_hangs_delays_no_other_and_no_command_and_is_used_when_it_comes(stage: Stage) -> None:
    await stage.manager.deploy(deployment("other", OTHER))
    stage.platform.hanging.add(MODEL)
    await until(lambda: stage.platform.hangs)
    stage.platform.measured = {MODEL: profile(0.04), OTHER: profile(0.03, OTHER)}
    await until(lambda: stage.runtime("other").profile() == profile(0.03, OTHER))
    await stage.several_looks()
    assert stage.platform.hangs == [MODEL], "a thread waits for it already"
    await stage.manager.scale(FunctionKey("fn"), 1)
    stage.platform.answers.set()
    await until(lambda: stage.largest == 2)


async def test_function_whose_profile_hangs_can_be_removed(stage: Stage) -> None:
    stage.platform.hanging.add(MODEL)
    await until(lambda: stage.platform.hangs)
    await stage.manager.remove(FunctionKey("fn"))
    assert stage.manager.directory.lookup("fn") is None


async def test_profiles_that_hang_leave_threads_for_everything_else(stage: Stage) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(WORKER_THREADS))
    models = [f"hangs{number}@1" for number in range(2 * MOST_REREADS)]
    for number, model in enumerate(models):
        await stage.manager.deploy(deployment(f"fn{number}", model))
    stage.platform.hanging.update(models)
    await until(lambda: len(stage.platform.hangs) == MOST_REREADS)
    await asyncio.sleep(0.1)
    assert len(stage.platform.hangs) == MOST_REREADS
    stage.platform.answers.set()
    await until(lambda: len(stage.platform.hangs) >= 2 * MOST_REREADS)


async def test_new_leader_takes_functions_over_although_their_profiles_hang(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "REREAD_LIMIT_S", 0.05)
    stage.platform.hanging.add(MODEL)
    async with asyncio.timeout(60.0):
        await stage.manager.lead()
    assert stage.largest == 8


async def test_an_update_sizes_batches_by_what_was_measured_before_it(tmp_path: Path) -> None:
    """At once: the next batch may be the one that is too large."""
    stage = Stage(tmp_path)
    await stage.begin()
    stage.platform.measured[MODEL] = profile(0.04)
    await stage.manager.update(deployment(team="vision"))
    assert stage.largest == 2
    await stage.manager.stop()
    stage.store.close()
