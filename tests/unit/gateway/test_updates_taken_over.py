"""An update that the leader before has stored is served by the next one, whenever that hears of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.seam_values import StoredFunction
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.lifecycle.elsewhere import Elsewhere
from gnomon_gateway.lifecycle.manager import Manager
from gnomon_gateway.lifecycle.surroundings import Surroundings
from gnomon_gateway.logs import LogBook, LogQuery
from gnomon_gateway.store.sqlite import SqliteStore
from tests.unit.gateway.shadow_stage import Scaling, Scripted


def deployment(**environment: str) -> FunctionSpec:
    return read_deployment({"service": "fn", "image": "i", "envVars": environment})


class Replica:
    """One of several gateways, which follows another until `leads`; their store says what that one writes."""

    def __init__(self, folder: Path) -> None:
        self.leads = False
        self.store = SqliteStore(folder / "functions.db")
        self.log = LogBook(lambda: 0.0)
        self.manager = Manager(
            Surroundings(
                self.store, Scripted(), Scaling(), LearnedLatency(), self.log, _is_there, lambda: 0.0,
                elsewhere=Elsewhere(lambda: self.leads),
            )
        )  # fmt: skip

    def write(self, spec: FunctionSpec, version: int) -> None:
        """The other one does."""
        self.store.put_function(StoredFunction(spec, version, 0.0))

    def serves(self, spec: FunctionSpec) -> bool:
        status = self.manager.status(spec.key)
        return status is not None and status.spec.raw == spec.raw


async def _is_there(_: str) -> None:
    pass


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[Replica]:
    made = Replica(tmp_path)
    made.write(deployment(a="1"), 1)
    await made.manager.start()
    yield made
    await made.manager.stop()
    made.store.close()


@pytest.mark.parametrize("version", [1, 2], ids=["its settings", "its instances"])
async def test_what_the_leader_before_has_changed_is_served_by_the_next(replica: Replica, version: int) -> None:
    """It was heard of too late, or not at all."""
    replica.write(deployment(a="2"), version)
    replica.leads = True
    await replica.manager.follow(deployment().key)
    await replica.manager.lead()
    assert replica.serves(deployment(a="2"))


async def test_a_later_version_that_is_heard_of_after_that_is_served_too(replica: Replica) -> None:
    replica.leads = True
    await replica.manager.lead()
    replica.write(deployment(a="2"), 2)
    await replica.manager.follow(deployment().key)
    assert replica.serves(deployment(a="2"))


async def test_a_store_that_is_behind_what_the_leader_has_written_takes_nothing_back(replica: Replica) -> None:
    replica.leads = True
    await replica.manager.lead()
    await replica.manager.update(deployment(a="2"))
    replica.write(deployment(a="1"), 1)
    await replica.manager.follow(deployment().key)
    assert replica.serves(deployment(a="2"))


async def test_one_that_cannot_be_served_keeps_nobody_from_leading(replica: Replica) -> None:
    replica.write(read_deployment({"service": "fn", "image": "i", "secrets": ["gone"]}), 2)
    replica.leads = True
    await replica.manager.lead()
    lines = [one.text for one in replica.log.lines(LogQuery(deployment().key))]
    assert any("cannot be served: secret 'gone' is not in" in text for text in lines)
    assert replica.serves(deployment(a="1"))
