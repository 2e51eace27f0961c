"""Shadows of pods: the platform on a real control plane; a node's coordinator, its pool and a Body are processes beside it.

The kubelet is played: it gives the Body's pod its volume, and a pod of the DaemonSet the address of the coordinator.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.pairs import Pair
from gnomon_platforms.kubernetes.client import connect
from gnomon_platforms.nodes.coordinators import NodeOptions
from gnomon_platforms.nodes.models import ServedModels
from gnomon_platforms.openfaas.observed import OpenFaasOptions
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from gnomon_profiler.repository import DirectoryRepository
from tests.cluster import build
from tests.cluster.client import Cluster
from tests.contracts.test_platform import deployment, instance_of
from tests.integration.coordinator_node.node import TOKEN, Node
from tests.kubernetes.access import asked, moment
from tests.kubernetes.openfaas.as_gateway import ACCOUNT, DEPLOY, FUNCTIONS, MAY, installed_account
from tests.kubernetes.openfaas.kubelet import Kubelet, condition
from tests.platform_testing import Recorder
from tests.waiting import eventually, until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
NODES = "gnomon-nodes"
LABELS = {"app.kubernetes.io/name": "gnomon", "app.kubernetes.io/component": "coordinator"}


@pytest.fixture
def node() -> Iterator[Node]:
    folder = Path(tempfile.mkdtemp(prefix="gnomon-"))
    made = Node(folder)
    yield made
    made.close()
    shutil.rmtree(folder)


@pytest.fixture
def daemon(controlled: Cluster, kubelet: Kubelet, node: Node) -> Iterator[str]:
    """The DaemonSet's pod on the node, ready at this machine's address. Its name."""
    core = controlled.core
    if NODES not in {namespace.metadata.name for namespace in core.list_namespace().items}:
        core.create_namespace({"metadata": {"name": NODES}})
    requests = {"coordinator": {"cpu": "20m"}, "pool": {"cpu": "100m"}}
    containers = [{"name": name, "image": "x", "resources": {"requests": given}} for name, given in requests.items()]
    spec = {"nodeName": kubelet.name, "containers": containers, "automountServiceAccountToken": False}
    core.create_namespaced_pod(NODES, {"metadata": {"name": "coordinator-x", "labels": LABELS}, "spec": spec})
    yield "coordinator-x"
    core.delete_namespaced_pod("coordinator-x", NODES, grace_period_seconds=0)


@dataclass
class Begun:
    platform: OpenFaasPlatform
    listener: Recorder
    cluster: Cluster
    node: Node
    daemon: str

    async def serve(self) -> None:
        """The DaemonSet's pod is ready, and its pool warm."""
        await asyncio.to_thread(self.node.warm)
        status = {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
        status |= {"conditions": [condition("Ready", met=True)]}
        await asyncio.to_thread(self.cluster.core.patch_namespaced_pod_status, self.daemon, NODES, {"status": status})

    async def body(self) -> Instance:
        """A Body that serves, in a pod of its own."""
        spec = deployment(annotations={"gnomon/model": "line@1", "gnomon/max-batch": "8"})
        instance = await self.platform.create(instance_of(spec))
        await self.listener.channel(instance.id)
        pod = self.platform._records[instance.id].pod
        assert pod is not None
        await asyncio.to_thread(self.node.body, pod.uid)
        return instance

    async def has_come(self) -> None:
        """The platform knows of a Body on the node."""
        pairs = self.platform._coordinators.shadows if self.platform._coordinators is not None else None
        assert pairs is not None
        await until(lambda: bool(pairs.connections.states["node-a"]["bodies"]), "its Body has not come")

    def seen(self, instance_id: str) -> Instance:
        [found] = [instance for instance in self.platform.instances("echo.openfaas-fn") if instance.id == instance_id]
        return found

    def pool_asks_for(self) -> str:
        pod: Any = self.cluster.core.read_namespaced_pod(self.daemon, NODES)
        return str(next(container for container in pod.spec.containers if container.name == "pool").resources.requests["cpu"])


@contextlib.asynccontextmanager
async def starting(kubeconfig: Path, cluster: Cluster, node: Node, daemon: str) -> AsyncIterator[Begun]:
    """The platform, connected as whom a kubeconfig says."""
    api = await asyncio.to_thread(connect, kubeconfig)
    models, nodes = ServedModels(DirectoryRepository(node.models), node.models), NodeOptions(TOKEN, port=node.port)
    options = OpenFaasOptions(namespace=FUNCTIONS, adopting_s=0.0, start_timeout_s=60.0, models=models, nodes=nodes)
    platform, listener = OpenFaasPlatform(api, options, epoch=lambda: 3), Recorder()
    await platform.start(listener)
    yield Begun(platform, listener, cluster, node, daemon)
    await platform.stop()
    api.close()


@pytest.fixture
async def begun(controlled: Cluster, kubelet: Kubelet, node: Node, daemon: str) -> AsyncIterator[Begun]:
    async with starting(controlled.kubeconfig, controlled, node, daemon) as made:
        yield made


async def test_a_pods_body_has_a_shadow_where_its_nodes_coordinator_is_connected(begun: Begun) -> None:
    platform, listener, node = begun.platform, begun.listener, begun.node
    pair = Pair(2, tuple(node.blocks), (0, 1, 1, 2))
    assert not platform.nodes()[0].pairs
    with pytest.raises(GnomonError) as refused:
        await platform.create_shadow("echo-none", pair)
    assert refused.value.code == "no_such_body"

    await begun.serve()
    await until(lambda: platform.nodes()[0].pairs, "no coordinator is connected")
    body = await begun.body()
    await begun.has_come()
    [before] = platform.nodes()
    shadow = await platform.create_shadow(body.id, pair)
    assert (shadow.kind, shadow.partner, shadow.node) == (InstanceKind.SHADOW, body.id, "node-a")
    [after] = platform.nodes()
    assert after.free_cores == pytest.approx(before.free_cores - 2)
    await until(lambda: begun.seen(body.id).partner == shadow.id, "no pair")
    assert begun.seen(body.id).shadows == {shadow.id: pair}
    assert begun.seen(shadow.id).state is InstanceState.READY
    assert [pair.id for pair in listener.pairs][-1] == body.id
    # The pool's pod asks for the Shadow's cores from some time on, and they are counted once.
    cores = min(2, node.state()["pool"]["cpus"])
    requested = await asyncio.to_thread(lambda: _eventually(begun, f"{1000 * cores + 100}m"))
    assert requested == f"{1000 * cores + 100}m"
    [still] = platform.nodes()
    assert still.free_cores == pytest.approx(after.free_cores)

    with pytest.raises(GnomonError) as no_body:
        await platform.promote_shadow(shadow.id)
    assert no_body.value.code == "no_such_shadow"
    await platform.destroy(shadow.id)
    assert await listener.reason(shadow.id) == "stopped"
    assert begun.seen(body.id).partner is None
    assert await asyncio.to_thread(lambda: _eventually(begun, "100m")) == "100m"
    assert platform.nodes()[0].free_cores == pytest.approx(before.free_cores)


async def test_a_body_that_is_destroyed_takes_its_shadow_along(begun: Begun) -> None:
    platform, listener, node = begun.platform, begun.listener, begun.node
    await begun.serve()
    await until(lambda: platform.nodes()[0].pairs, "no coordinator is connected")
    body = await begun.body()
    await begun.has_come()
    shadow = await platform.create_shadow(body.id, Pair(1, tuple(node.blocks), (0, 1)))
    await until(lambda: begun.seen(body.id).partner == shadow.id, "no pair")
    await platform.destroy(body.id)

    assert "Body has gone" in await listener.reason(shadow.id)
    await until(lambda: node.state()["shadows"] == [], "the node remembers it")


async def test_node_role_grants_exactly_what_the_gateway_uses(
    controlled: Cluster, node: Node, daemon: str, compiled: build.Programs, tmp_path: Path
) -> None:
    access = DEPLOY / "coordinator" / "access.yaml"
    may, began = {use for use in asked(access) if use.namespace == NODES}, moment()
    with installed_account(controlled, compiled, tmp_path, access) as kubeconfig:
        async with starting(kubeconfig, controlled, node, daemon) as begun:
            await begun.serve()
            await until(lambda: begun.platform.nodes()[0].pairs, "no coordinator is connected")
            body = await begun.body()
            await begun.has_come()
            shadow = await begun.platform.create_shadow(body.id, Pair(1, tuple(node.blocks), (0, 1)))
            await until(lambda: begun.seen(body.id).partner == shadow.id, "no pair")
            await asyncio.to_thread(_eventually, begun, "1100m")
            await begun.platform.destroy(shadow.id)
            await asyncio.to_thread(_eventually, begun, "100m")
            await begun.platform.destroy(body.id)
    found = await asyncio.to_thread(ACCOUNT.uses, controlled, may | MAY, began)
    assert found.refused == set(), "the roles lack this"
    assert found.all - may - MAY == set(), "this is used, and no role says so"
    assert may - found.all == set(), "this is asked for, and never used"


def _eventually(begun: Begun, wanted: str) -> str:

    eventually(lambda: begun.pool_asks_for() == wanted, f"the pool asks for {begun.pool_asks_for()}")
    return begun.pool_asks_for()
