"""An instance that is resized counts with the cores that it has, from when its platform says that it has them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gnomon_core.scaling import Resize
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
