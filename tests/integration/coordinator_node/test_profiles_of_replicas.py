"""The measurements of a function's model, at every gateway of a cluster: the one that leads, those that follow, the next leader.

The API server is played: nothing happens in it. Models and profiles are files of a folder, as they are in the gateways' volume.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gnomon_autoscaler.registry import BUILT_IN
from gnomon_cli.commands.serve_options import knative_options
from gnomon_core.blocks import Layers
from gnomon_core.errors import GnomonError
from gnomon_core.functions import read_deployment
from gnomon_core.interfaces import ModelEntry, StoredFunction
from gnomon_core.profiles import LatencyTable, Loading, ModelProfile, Network
from gnomon_gateway.functions import manager
from gnomon_gateway.functions.deployments import OtherReplicas
from gnomon_gateway.functions.logs import LogBook
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.profiles import LatencyModels
from gnomon_gateway.store import SqliteStore
from gnomon_platforms.kubernetes.client import Api
from gnomon_platforms.nodes.models import ServedModels
from gnomon_platforms.openfaas.observed import OpenFaasOptions
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from gnomon_profiler.repository import DirectoryRepository
from gnomon_server.scaling import ScalingAdapter
from tests.integration.coordinator_node.node import put_model
from tests.integration.coordinator_node.test_leaders import Held
from tests.integration.kubernetes_platform.scripted import serving
from tests.waiting import until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
SPEC = read_deployment(
    {"service": "line", "image": "gnomon/body", "annotations": {"gnomon/model": "line@1", "gnomon/autoscaler": "asyfunc"}}
)
RESIZING = {"gnomon/model": "line@1", "gnomon/autoscaler": "asyfunc", "gnomon/burst-cores": "resize"}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    put_model(DirectoryRepository(folder))
    return folder


@pytest.fixture
def api() -> Iterator[Api]:
    with serving(Held("uid-held")) as made:
        yield made


def measure(models: Path) -> ModelProfile:
    """Store a profile that prices the network; what is told of it on a cluster between whose nodes nothing was declared."""
    entry = DirectoryRepository(models).get("line@1")
    assert entry.layers is not None
    layers, table = Layers.from_json(json.loads(entry.layers.read_bytes())), LatencyTable({1: {1: 0.1}})
    tables = (table,) * len(layers.blocks)
    priced = ModelProfile("line@1", layers, table, tables, {"shared": Loading(0, 0)}, 0, 0, 0, 0, 0, network=Network(0, 0))
    folder = models / "profiles" / "line@1"
    folder.mkdir(parents=True)
    (folder / "m.json").write_text(json.dumps(priced.to_json()))
    return replace(priced, network=None)


def platform_of(api: Api, models: Path, *, following: bool = False) -> OpenFaasPlatform:
    """A gateway's, without any coordinator's token."""
    served = ServedModels(DirectoryRepository(models), models, models / "profiles")
    return OpenFaasPlatform(api, OpenFaasOptions(models=served), following=following)


class Replica:
    """A gateway that follows until it leads, or leads from its start."""

    def __init__(self, api: Api, models: Path, folder: Path, *, leads: bool = False) -> None:
        self.other_replicas = OtherReplicas(leads=leads)
        self.logs = LogBook(lambda: 0.0)
        self.platform = platform_of(api, models, following=not leads)
        self.store = SqliteStore(folder / "functions.db")
        self.store.put_function(StoredFunction(SPEC, 1, 0.0))
        scaling = ScalingAdapter(BUILT_IN, lambda: self.platform.capabilities, self.other_replicas)
        self.manager = Manager(
            self.store,
            self.platform,
            scaling,
            LatencyModels(),
            self.logs,
            now=lambda: 0.0,
            other_replicas=self.other_replicas,
        )

    async def start(self) -> None:
        await self.platform.start(self.manager.instances)
        await self.manager.start()

    async def lead(self) -> None:
        await self.platform.lead()
        self.other_replicas.leads = True
        await self.manager.lead()

    def profile(self) -> ModelProfile | None:
        """The profiles that the dispatcher and the leader's policy use."""
        runtime = self.manager.directory.lookup("line")
        assert runtime is not None
        return runtime.profile()

    async def stop(self) -> None:
        await self.manager.stop()
        await self.platform.stop()
        self.store.close()


async def test_every_replica_has_the_profile_from_its_start_and_when_it_leads(api: Api, models: Path, tmp_path: Path) -> None:
    measured = measure(models)
    replica = Replica(api, models, tmp_path)
    await replica.start()
    assert replica.profile() == measured
    await replica.lead()
    assert replica.profile() == measured
    await replica.stop()


async def test_a_new_leader_goes_by_what_was_measured_meanwhile(api: Api, models: Path, tmp_path: Path) -> None:
    replica = Replica(api, models, tmp_path)
    await replica.start()
    assert replica.profile() is None
    measured = measure(models)
    await replica.lead()
    assert replica.profile() == measured
    await replica.stop()


def test_a_profile_needs_no_coordinator(api: Api, models: Path) -> None:
    """Without one a Body may still grow for a burst, and a plan may still choose cores."""
    platform = platform_of(api, models)
    assert platform.profile(SPEC) is None
    measured = measure(models)
    spec = read_deployment({"service": "line", "image": "gnomon/body", "annotations": RESIZING})
    assert platform.profile(spec) == measured
    scaling = ScalingAdapter(BUILT_IN, lambda: platform.capabilities)
    assert scaling.check(spec.settings) == "adaptive"
    scaling.check_profile(spec.settings, platform.profile(spec))


def test_declared_network_prices_remote_shadows(models: Path) -> None:
    measured, network = measure(models), Network.of(10, 0.2)
    served = ServedModels(DirectoryRepository(models), models, models / "profiles", network=network)
    # Both ends' software takes nothing here.
    assert served.profile(SPEC) == replace(measured, network=network)


def test_knatives_class_has_the_same_price_by_the_same_options(models: Path) -> None:
    measured = measure(models)
    given = {"kubeconfig": None, "policies": (), "host": "127.0.0.1", "port": 0, "namespaces": ()}
    events = {"models": str(models), "state": "", "coordinator_token": None}
    for gbps, network in ((None, None), (10.0, Network.of(10, 0.2))):
        found = knative_options({**given, **events, "network_gbps": gbps, "network_rtt_ms": 0.2}).scaled.models
        assert found is not None
        assert found.models.profile(SPEC) == replace(measured, network=network)


@pytest.mark.parametrize("leads", [True, False])
async def test_a_replica_goes_by_what_is_measured_while_it_serves(
    api: Api, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, leads: bool
) -> None:
    monkeypatch.setattr(manager, "REREAD_S", 0.01)
    replica = Replica(api, models, tmp_path, leads=leads)
    await replica.start()
    assert replica.profile() is None
    measured = measure(models)
    await until(lambda: replica.profile() == measured)
    await replica.stop()


def test_a_repository_that_does_not_answer_takes_no_profile_back(models: Path) -> None:
    class Unreachable(DirectoryRepository):
        away = False

        def get(self, reference: str) -> ModelEntry:
            if self.away:
                raise GnomonError(503, "repository_unreachable", "It does not answer.", "Try again.")
            return super().get(reference)

    measured, repository = measure(models), Unreachable(models)
    served = ServedModels(repository, models, models / "profiles")
    assert served.profile(SPEC) == measured
    repository.away = True
    assert served.profile(SPEC) == measured
    assert ServedModels(repository, models, models / "profiles").profile(SPEC) is None, "of what it never said, nothing is known"
