"""A burst on a cluster of two nodes: each has room for one instance, and what lies between them was declared to the gateways.

The Body gets a Shadow from the other node's pool, by policy, profile and that price. Gateways and both nodes' coordinators are
real processes, on a real API server; Body, pools and Shadows are processes as well, and the kubelets are played.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from tests.cluster.client import Cluster, until
from tests.integration.coordinator_node.node import Node
from tests.integration.coordinator_node.test_body_and_shadow import pool_processes
from tests.kubernetes.openfaas.conftest import gone
from tests.kubernetes.openfaas.kubelet import Kubelet
from tests.kubernetes.replicas.bodies import LABELS, BodyKubelet, coordinator_pod, put_models, two_nodes
from tests.kubernetes.replicas.bursts import (
    CALLERS,
    FUNCTION,
    begin,
    decisions,
    gave_up,
    helped,
    helped_more,
    pair_of,
    was_ended,
)
from tests.kubernetes.replicas.conftest import Gateways

pytestmark = [pytest.mark.torch, pytest.mark.timeout(500)]
CORES = 2
"""Of each node: one for an instance, and what is left beside the coordinator's pod is less than another."""
SHADOW = f"gnomon {FUNCTION}.openfaas"[:15]


@pytest.fixture
def nodes() -> Iterator[dict[str, Node]]:
    with two_nodes(200) as made:
        yield made


@pytest.fixture
def sample_s(nodes: dict[str, Node]) -> float:
    """How long a sample of the model takes, by the profile that the gateways have."""
    return put_models(nodes)


@pytest.fixture
def options(nodes: dict[str, Node], sample_s: float) -> list[str]:
    del sample_s
    models, token = nodes["node-a"].models, nodes["node-a"].folder / "token"
    between = ["--network-gbps", "100", "--network-rtt-ms", "0.1"]
    return ["--models", str(models), "--coordinator-token", str(token), *between]


@pytest.fixture
def kubelet(controlled: Cluster, nodes: dict[str, Node]) -> Iterator[Kubelet]:
    """The kubelet of one of the nodes; the other one is there as well."""
    played = [BodyKubelet(controlled.api, node, cores=CORES, second_octet=1 + place) for place, node in enumerate(nodes.values())]
    for played_node in played:
        played_node.start()
    for node in nodes.values():
        node.warm()
    with contextlib.ExitStack() as pods:
        for node in nodes.values():
            pods.enter_context(coordinator_pod(controlled, node))
        yield played[0]
        controlled.apps.delete_collection_namespaced_deployment("openfaas-fn", propagation_policy="Background")
        until(lambda: not controlled.core.list_namespaced_pod("openfaas-fn").items, "the pods to end")
    for played_node in played:
        played_node.stop()
    gone(controlled)


async def test_a_burst_on_a_full_node_gets_its_shadow_from_another(
    gateways: Gateways, nodes: dict[str, Node], sample_s: float
) -> None:
    """Sixteen callers always wait. Within the objective, six samples' time, a Body answers six of them, and a pair more."""
    callers = await begin(gateways, "b", sample_s)
    running = asyncio.create_task(callers.run())
    await gateways.eventually(lambda: helped(gateways, "b") >= 20, "no Shadow answers in the owner's batches")
    body, shadow = await pair_of(gateways, "b")
    assert {body["node"], shadow["node"]} == set(nodes), "they are on two nodes"
    home, away = nodes[body["node"]], nodes[shadow["node"]]
    assert not pool_processes(home, SHADOW)
    assert any(f"on {shadow['node']}" in decision["reason"] for decision in decisions(gateways, "a")), "a decision says so"

    # Killed, it costs no answer; and as the burst goes on, the Body gets another.
    await gateways.eventually(lambda: bool(pool_processes(away, SHADOW)), "no Shadow is on the other node")
    killed = set(pool_processes(away, SHADOW))
    for process in killed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    await gateways.eventually(lambda: bool(set(pool_processes(away, SHADOW)) - killed), "there is no other")
    await helped_more(gateways, "b", "the next one answers nothing")
    assert set(callers.answers) <= set(LABELS), callers.answers

    # The leader is killed, and the next one goes on with what there is.
    _, shadow = await pair_of(gateways, "b")
    os.kill(gateways.pid("a"), signal.SIGKILL)
    await gateways.end("a")
    await gateways.eventually(lambda: gateways.leader() == "b", "nobody leads")
    await gateways.shared_by("b", members=1)
    await gateways.eventually(lambda: bool(decisions(gateways, "b")), "the next leader decides nothing")
    await helped_more(gateways, "b", "the pair works no more")
    _, still = await pair_of(gateways, "b")
    assert still["node"] == away.name
    assert still["id"] == shadow["id"] or gave_up(home, shadow["id"]) or was_ended(gateways, "b", shadow["id"])
    callers.end()
    await running
    wrong = {answer: count for answer, count in callers.answers.items() if answer not in LABELS}
    assert set(wrong) <= {"broken off", "replica_lost"}, "what the killed gateway held, and nothing else"
    assert sum(wrong.values()) <= CALLERS
