"""An update that the leader before has stored is served by the next one, whenever that hears of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.interfaces import LogQuery, StoredFunction
from gnomon_core.profiles import ModelProfile
from gnomon_gateway.functions.deployments import OtherReplicas
from gnomon_gateway.functions.logs import LogBook
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.profiles import LatencyModels
from gnomon_gateway.store import SqliteStore
from tests.unit.gateway.shadow_stage import Scaling, Scripted
from tests.unit.gateway.test_models_measured_anew import MODEL, OTHER, profile
from tests.waiting import until


def deployment(**environment: str) -> FunctionSpec:
    return read_deployment({"service": "fn", "image": "i", "envVars": environment})


class Slow(Scripted):
    """A platform that reads the profiles of some models, once asked for, when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.slow, self.asked, self.may_go = "", threading.Event(), threading.Event()
        self.broken: Exception | None = None

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        model = spec.settings.model
        if self.broken is not None:
            raise self.broken
        if model is not None and model == self.slow:
            self.asked.set()
            self.may_go.wait(10)
        return None if model is None else profile(0.04 if model == MODEL else 0.03, model)


class Replica:
    """One of several gateways, which follows another until `other_replicas.leads`; their store says what that one writes."""

    def __init__(self, folder: Path) -> None:
        self.other_replicas = OtherReplicas(leads=False)
        self.store = SqliteStore(folder / "functions.db")
        self.log = LogBook(lambda: 0.0)
        self.platform = Slow()
        self.manager = Manager(
            self.store,
            self.platform,
            Scaling(),
            LatencyModels(),
            self.log,
            now=lambda: 0.0,
            other_replicas=self.other_replicas,
        )

    def write(self, spec: FunctionSpec, version: int) -> None:
        """The other one does."""
        self.store.put_function(StoredFunction(spec, version, 0.0))

    def serves(self, spec: FunctionSpec) -> bool:
        status = self.manager.status(spec.key)
        return status is not None and status.spec.raw == spec.raw


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[Replica]:
    made = Replica(tmp_path)
    made.write(deployment(a="1"), 1)
    await made.manager.start()
    yield made
    await made.manager.stop()
    made.store.close()


@pytest.mark.parametrize("version", [1, 2], ids=["its settings", "its instances"])
async def test_update_of_the_previous_leader_is_served_by_the_next(replica: Replica, version: int) -> None:
    """The update was received too late, or not at all."""
    replica.write(deployment(a="2"), version)
    replica.other_replicas.leads = True
    await replica.manager.follow(deployment().key)
    await replica.manager.lead()
    assert replica.serves(deployment(a="2"))


async def test_a_later_version_that_is_heard_of_after_that_is_served_too(replica: Replica) -> None:
    replica.other_replicas.leads = True
    await replica.manager.lead()
    replica.write(deployment(a="2"), 2)
    await replica.manager.follow(deployment().key)
    assert replica.serves(deployment(a="2"))


async def test_stale_store_reverts_nothing_that_the_leader_wrote(replica: Replica) -> None:
    replica.other_replicas.leads = True
    await replica.manager.lead()
    await replica.manager.update(deployment(a="2"))
    replica.write(deployment(a="1"), 1)
    await replica.manager.follow(deployment().key)
    assert replica.serves(deployment(a="2"))


async def test_unserveable_function_does_not_block_leading(replica: Replica) -> None:
    replica.write(read_deployment({"service": "fn", "image": "i", "secrets": ["gone"]}), 2)
    replica.other_replicas.leads = True
    await replica.manager.lead()
    lines = [line.text for line in replica.log.lines(LogQuery(deployment().key))]
    assert any("cannot be served: secret 'gone' is not in" in text for text in lines)
    assert replica.serves(deployment(a="1"))


async def test_a_new_leader_goes_by_the_profile_of_what_a_function_serves_by_then(replica: Replica) -> None:
    """Its model is exchanged while the last one's profile is read."""
    replica.write(read_deployment({"service": "fn", "image": "i", "annotations": {"gnomon/model": MODEL}}), 2)
    await replica.manager.follow(deployment().key)
    replica.other_replicas.leads, replica.platform.slow = True, MODEL
    leading = asyncio.create_task(replica.manager.lead())
    await until(replica.platform.asked.is_set)
    await replica.manager.update(read_deployment({"service": "fn", "image": "i", "annotations": {"gnomon/model": OTHER}}))
    replica.platform.may_go.set()
    await leading
    runtime = replica.manager.directory.lookup("fn")
    assert runtime is not None
    assert runtime.profile() == profile(0.03, OTHER)


@pytest.mark.parametrize("broken", [OSError(116, "Stale file handle"), GnomonError(503, "repository_unreachable", "Away.")])
@pytest.mark.parametrize("changed", [False, True])
async def test_a_repository_that_cannot_be_read_keeps_nobody_from_leading(
    replica: Replica, broken: Exception, *, changed: bool
) -> None:
    """The last profile holds. A volume of the network may be away for that moment, and a leader begins only once."""
    measured = read_deployment({"service": "fn", "image": "i", "annotations": {"gnomon/model": MODEL}})
    replica.write(measured, 2)
    await replica.manager.follow(measured.key)
    if changed:
        replica.write(read_deployment({"service": "fn", "image": "i", "annotations": {"gnomon/model": OTHER}}), 3)
    replica.other_replicas.leads, replica.platform.broken = True, broken
    await replica.manager.lead()
    runtime = replica.manager.directory.lookup("fn")
    assert runtime is not None
    assert runtime.profile() == profile(0.04)
