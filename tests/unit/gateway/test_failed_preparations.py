"""A platform that cannot make a function ready: the command fails, and nothing has changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import InstanceState
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_core.interfaces import LogQuery
from gnomon_core.scaling import CreateBody
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.profiles import LatencyModels
from gnomon_gateway.logs import LogBook
from gnomon_gateway.store import SqliteStore
from tests.unit.gateway.shadow_stage import NAME, Scaling, Scripted, Silent
from tests.waiting import until

KEY = FunctionKey("fn")


def deployment(process: str) -> FunctionSpec:
    return read_deployment({"service": "fn", "image": "i", "envProcess": process})


class Moody(Scripted):
    """Makes a function ready, or does not."""

    fails = False
    takes: asyncio.Event | None = None

    async def prepare(self, spec: FunctionSpec) -> None:
        if self.takes is not None:
            await self.takes.wait()
        if self.fails:
            raise GnomonError(503, "not_published", f"{spec.key} cannot be published.")


class Stage:
    def __init__(self, folder: Path) -> None:
        self.platform, self.store, self.logs = Moody(), SqliteStore(folder / "functions.db"), LogBook(lambda: 0.0)
        self.manager = self.another()

    def another(self) -> Manager:
        """A gateway that starts with what is stored."""
        return Manager(
            self.store,
            self.platform,
            Scaling(),
            LatencyModels(LearnedLatency()),
            self.logs,
            fetch_model=_is_there,
            now=lambda: 0.0,
        )

    def stored(self) -> list[str | None]:
        return [function.spec.env_process for function in self.store.functions()]


async def _is_there(_: str) -> None:
    pass


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(tmp_path)
    yield made
    await made.manager.stop()
    made.store.close()


async def test_what_could_not_be_deployed_is_not_there_and_can_be_deployed_later(stage: Stage) -> None:
    stage.platform.fails = True
    with pytest.raises(GnomonError, match="cannot be published"):
        await stage.manager.deploy(deployment("first"))
    assert (stage.stored(), stage.manager.status(KEY)) == ([], None)
    stage.platform.fails = False
    await stage.manager.deploy(deployment("first"))
    assert stage.stored() == ["first"]


async def test_an_update_that_failed_left_everything_as_it_was_and_replaces_the_instances_when_it_is_asked_for_again(
    stage: Stage,
) -> None:
    await stage.manager.deploy(deployment("first"))
    await stage.manager.instances.apply(NAME, [CreateBody(1)])
    body = stage.platform.there["b1"] = replace(stage.platform.there["b1"], state=InstanceState.READY)
    stage.manager.instances.instance_ready(body, Silent())
    stage.platform.fails = True
    with pytest.raises(GnomonError, match="cannot be published"):
        await stage.manager.update(deployment("second"))
    status = stage.manager.status(KEY)
    assert status is not None
    assert (stage.stored(), status.spec.env_process) == (["first"], "first")
    stage.platform.fails = False
    await stage.manager.update(deployment("second"))
    assert stage.stored() == ["second"]
    assert stage.platform.there["b2"].version > body.version


@pytest.mark.parametrize("fails", [False, True])
async def test_after_a_restart_requests_are_let_in_before_what_was_deployed_is_prepared(stage: Stage, *, fails: bool) -> None:
    """Importing libraries takes seconds: what comes meanwhile waits for an instance, and is not refused."""
    await stage.manager.deploy(deployment("first"))
    stage.platform.takes, stage.platform.fails = asyncio.Event(), fails
    again = stage.another()
    await again.start()
    try:
        assert again.lookup("fn") is not None
        stage.platform.takes.set()
        if fails:
            query = LogQuery(KEY)
            await until(lambda: any("could not be prepared" in line.text for line in stage.logs.lines(query)))
        assert again.lookup("fn") is not None
    finally:
        await again.stop()
