"""A burst on a cluster with two gateways: one decides that the Body gets a Shadow, the other makes batches for both.

Load, policy, profile, the node's coordinator and the owner's batches are the real ones; Body, pool and Shadow are processes.
Then the gateway that has decided it is killed, and the pair works on for the next one.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from tests.cluster.client import Cluster, until
from tests.integration.coordinator_node.node import Node
from tests.kubernetes.openfaas.kubelet import WORKER, Kubelet
from tests.kubernetes.replicas.bodies import LABELS, BodyKubelet, coordinator_pod, node_at, put_model
from tests.kubernetes.replicas.bursts import (
    CALLERS,
    begin,
    decisions,
    gave_up,
    helped,
    helped_more,
    pair_of,
    shadow_rows,
    was_ended,
)
from tests.kubernetes.replicas.conftest import Gateways

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]


@pytest.fixture
def node() -> Iterator[Node]:
    with node_at(f"127.0.9.{200 + 2 * WORKER}") as made:
        yield made


@pytest.fixture
def sample_s(node: Node) -> float:
    """How long a sample of the model takes, by its profile."""
    return put_model(node.models)


@pytest.fixture
def options(node: Node, sample_s: float) -> list[str]:
    del sample_s
    return ["--models", str(node.models), "--coordinator-token", str(node.folder / "token")]


@pytest.fixture
def kubelet(controlled: Cluster, node: Node) -> Iterator[Kubelet]:
    """The node, its coordinator, and pods that are Bodies."""
    played = BodyKubelet(controlled.api, node)
    played.start()
    node.warm()
    with coordinator_pod(controlled, node):
        yield played
        controlled.apps.delete_collection_namespaced_deployment("openfaas-fn", propagation_policy="Background")
        until(lambda: not controlled.core.list_namespaced_pod("openfaas-fn").items, "the pods to end")
    played.stop()


async def test_a_burst_gets_a_shadow_which_outlives_the_leader(gateways: Gateways, node: Node, sample_s: float) -> None:
    """Sixteen callers always wait. Within the objective, six samples' time, a Body answers six of them, and a pair twelve."""
    callers = await begin(gateways, "b", sample_s)
    assert gateways.leader() == "a"

    running = asyncio.create_task(callers.run())
    await gateways.eventually(lambda: helped(gateways, "b") >= 20, "no Shadow answers in the owner's batches")
    assert helped(gateways, "a") == 0, "the leader owns no queue"
    assert set(callers.answers) <= set(LABELS), callers.answers

    _, shadow = await pair_of(gateways, "b")
    os.kill(gateways.pid("a"), signal.SIGKILL)
    await gateways.end("a")
    await callers.more(100)
    await gateways.eventually(lambda: gateways.leader() == "b", "nobody leads")
    await gateways.shared_by("b", members=1)
    # The next leader knows the pair, and has decided since.
    await gateways.eventually(lambda: bool(decisions(gateways, "b")), "the next leader decides nothing")
    assert not decisions(gateways, "b")[-1]["reason"].startswith("0.00 rps"), "it was told of the load before"
    await helped_more(gateways, "b", "the pair works no more")
    _, still = await pair_of(gateways, "b")
    rows = shadow_rows(node)
    # The Body may have given it up on a busy machine, or the next leader ended it in the lull that the kill has made.
    if not gave_up(node, shadow["id"]) and not was_ended(gateways, "b", shadow["id"]):
        assert (still["id"], rows) == (shadow["id"], {shadow["id"]})
    callers.end()
    await running
    wrong = {answer: count for answer, count in callers.answers.items() if answer not in LABELS}
    assert set(wrong) <= {"broken off", "replica_lost"}, "what the killed one held, and nothing else"
    assert sum(wrong.values()) <= CALLERS
