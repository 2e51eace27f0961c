"""A burst on a Revision whose node is full, on a real API server with two real coordinators: the Shadow is on the other node.

What lies between the nodes was declared as an operator does it, and the class decides by policy, profile and that price. Bodies,
pools and Shadows are processes; what stands in for queue-proxy counts requests and passes them on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from gnomon_cli.commands.serve_options import knative_options
from gnomon_core.fleet import InstanceKind
from gnomon_server.knative_autoscaler import KnativeService
from tests.cluster.client import Cluster
from tests.integration.coordinator_node.node import Node
from tests.integration.coordinator_node.test_body_and_shadow import pool_processes
from tests.kubernetes.knative_autoscaler.played_knative import PlayedKnative
from tests.kubernetes.knative_autoscaler.test_reconciler import ONE_CORE, running, until
from tests.kubernetes.knative_autoscaler.test_shadows_on_knative import REVISION, VOLUME, Bodies, asyfunc, callers_of
from tests.kubernetes.knative_batching.conftest import ENV, SECRET
from tests.kubernetes.knative_batching.conftest import TOKEN as BATCH_TOKEN
from tests.kubernetes.knative_batching.test_serving_revisions import serving
from tests.kubernetes.replicas.bodies import LABELS, NODES, coordinator_pod, put_models, two_nodes
from tests.kubernetes.replicas.bursts import gave_up

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]
CORES = {"cpu": "2", "memory": "16Gi", "pods": "110"}
"""Of each node: one for a Body, and what is left beside the coordinator's pod is less than another."""
OTHERS = {"key": "dedicated", "value": "others", "effect": "NoSchedule"}
SHADOW = f"gnomon {REVISION}"[:15]


@pytest.fixture
def nodes() -> Iterator[dict[str, Node]]:
    with two_nodes(220) as made:
        yield made


@pytest.fixture
def sample_s(nodes: dict[str, Node]) -> float:
    """How long a sample of the model takes, by the profile that the class has."""
    return put_models(nodes)


@pytest.fixture
def played_as() -> type[PlayedKnative]:
    return Bodies


@pytest.fixture
def bodies(knative_kinds: Cluster, nodes: dict[str, Node], knative: PlayedKnative) -> Iterator[Bodies]:
    """Both nodes with their coordinators, and a namespace whose pods are Bodies on the first of them."""
    assert isinstance(knative, Bodies)
    knative.on, knative.node = nodes["node-a"], "node-a"
    core = knative_kinds.core
    if NODES not in {namespace.metadata.name for namespace in core.list_namespace().items}:
        core.create_namespace({"metadata": {"name": NODES}})
        core.create_namespaced_service_account(NODES, {"metadata": {"name": "default"}})
    secret = {"metadata": {"name": SECRET}, "stringData": {SECRET: BATCH_TOKEN}}
    core.create_namespaced_secret(knative.namespace, secret)
    status = {"capacity": CORES, "allocatable": CORES, "conditions": [{"type": "Ready", "status": "True"}]}
    with contextlib.ExitStack() as pods:
        for name, node in nodes.items():
            core.create_node({"metadata": {"name": name}})
            pods.callback(core.delete_node, name)
            core.patch_node_status(name, {"status": status})
            node.warm()
            pods.enter_context(coordinator_pod(knative_kinds, node))
        yield knative


@contextlib.asynccontextmanager
async def scaling(cluster: Cluster, knative: PlayedKnative, node: Node) -> AsyncIterator[KnativeService]:
    """The class with a node's models, as its options say."""
    about = {"kubeconfig": cluster.kubeconfig, "policies": (), "host": "127.0.0.1", "port": 0, "namespaces": ()}
    with_models = {"models": str(node.models), "state": "", "coordinator_token": node.folder / "token"}
    between = {"network_gbps": 100.0, "network_rtt_ms": 0.1}
    async with running(cluster, knative, models=knative_options({**about, **with_models, **between}).scaled.models) as service:
        yield service


def far_pairs(home: Node, away: Node) -> set[str]:
    """The Shadows of which both nodes tell: a Body of the one works with a process of the other."""
    remote_ids = {row["id"] for row in home.state()["shadows"] if row.get("elsewhere") and row["paired"]}
    return remote_ids & {row["id"] for row in away.state()["shadows"] if row.get("afar") and row["state"] == "ready"}


async def one_far_pair(home: Node, away: Node) -> str:
    """The Shadow that works there, in one reading in which there is one."""
    found: list[str] = []

    def look() -> bool:
        found.extend(far_pairs(home, away))
        return bool(found)

    await until(look, "no Body works with a Shadow on the other node")
    return found[0]


async def test_a_burst_on_a_full_node_gets_its_shadow_from_another_where_its_pods_may_be(
    knative_kinds: Cluster, bodies: Bodies, nodes: dict[str, Node], sample_s: float
) -> None:
    """Sixteen callers always wait. Within the objective, six samples' time, a Body answers six of them, and a pair more."""
    home, away, name = nodes["node-a"], nodes["node-b"], f"{REVISION}.{bodies.namespace}"
    core = knative_kinds.core
    core.patch_node(away.name, {"spec": {"taints": [OTHERS]}})
    async with serving(knative_kinds, bodies) as gateway, contextlib.AsyncExitStack() as first:
        service = await first.enter_async_context(scaling(knative_kinds, bodies, home))
        bodies.revision(REVISION, asyfunc(sample_s), env=ENV, volumes=[VOLUME], **ONE_CORE)
        await until(lambda: bodies.condition(REVISION, "Ready")["status"] == "True", "Ready")
        callers = callers_of(gateway, bodies)
        calling = asyncio.create_task(callers.run())

        # Pods of the Revision do not tolerate that the other node is others': neither does a Shadow for them.
        def refused() -> bool:
            return any("may not be on node-b" in decision.error for decision in service.autoscaler.decisions(name))

        await until(refused, "it is refused there")
        assert away.state()["shadows"] == []
        await asyncio.to_thread(core.patch_node, away.name, {"spec": {"taints": []}})
        await until(lambda: bodies.helped >= 20, "batches that both share")
        await one_far_pair(home, away)
        assert not pool_processes(home, SHADOW)
        assert any(f"on {away.name}" in decision.reason for decision in service.autoscaler.decisions(name)), "a decision says so"

        # Killed, it costs no answer; and as the burst goes on, the Body gets another.
        killed = set(pool_processes(away, SHADOW))
        for process in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        await until(lambda: bool(set(pool_processes(away, SHADOW)) - killed), "there is another")
        before = bodies.helped
        await until(lambda: bodies.helped >= before + 20, "the next one helps")

        # The next leader finds it, and nobody hears of the change.
        had = await one_far_pair(home, away)
        await first.aclose()
        async with scaling(knative_kinds, bodies, home) as second:

            def found() -> bool:
                load = second.platform.load(name)
                shadows = (
                    [] if load is None else [instance for instance in load.instances if instance.kind is InstanceKind.SHADOW]
                )
                return any(shadow.node == away.name for shadow in shadows)

            async with asyncio.timeout(60):
                while not found():  # noqa: ASYNC110 - on the loop, where the platform lives
                    await asyncio.sleep(0.05)
            assert await one_far_pair(home, away) == had or gave_up(home, had)
            before = bodies.helped
            await until(lambda: bodies.helped >= before + 20, "the pair works on")
            callers.end()
            await calling
        assert set(callers.answers) <= set(LABELS), callers.answers
