"""A burst on a cluster with two gateways: one decides that the Body gets a Shadow, the other makes batches for both.

Load, policy, profile, the node's coordinator and the owner's batches are the real ones; Body, pool and Shadow are processes.
Then the gateway that has decided it is killed, and the pair works on for the next one.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from deploy.test_cluster.clusters import Cluster, until
from tests.integration.coordinator_node.node import Node
from tests.kubernetes.openfaas.kubelet import Kubelet
from tests.kubernetes.replicas.bodies import LABELS, MAX_BATCH, MODEL, SLOWER, BodyKubelet, coordinator_pod, photograph, put_model
from tests.kubernetes.replicas.conftest import Gateways

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]
CALLERS = 16
FUNCTION = "shot"
BATCHES = re.compile(r"^gnomon_pair_batches_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)


@pytest.fixture
def node() -> Iterator[Node]:
    folder = Path(tempfile.mkdtemp(prefix="gnomon-"))
    made = Node(folder, at="127.0.9.200:7468")
    yield made
    made.close()
    shutil.rmtree(folder)


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


class Callers:
    """Clients who ask for the same photograph again and again, through whichever gateway is healthy."""

    def __init__(self, gateways: Gateways) -> None:
        self._gateways, self._chance = gateways, random.Random(7)
        self._ended = False
        self.answers: Counter[str] = Counter()

    async def run(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout()) as session, asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(self._call_on(session, photograph()))

    def end(self) -> None:
        self._ended = True

    async def more(self, count: int) -> None:
        """Wait until so many more have been classified."""
        goal = sum(self.answers[label] for label in LABELS) + count
        async with asyncio.timeout(120):
            while sum(self.answers[label] for label in LABELS) < goal:  # noqa: ASYNC110 - a counter of many tasks
                await asyncio.sleep(0.02)

    async def _call_on(self, session: aiohttp.ClientSession, picture: bytes) -> None:
        while not self._ended:
            port = self._chance.choice(list(self._gateways.sent_to.values()) or [1])
            try:
                async with session.post(f"http://127.0.0.1:{port}/function/{FUNCTION}", data=picture) as answer:
                    document = await answer.json(content_type=None)
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.01)
            except aiohttp.ClientError:
                self.answers["broken off"] += 1
            else:
                self.answers[document["label"] if answer.status == 200 else document["error"]["code"]] += 1


async def detail(gateways: Gateways, name: str) -> dict[str, Any]:
    """The function as this gateway tells of it, or whoever leads."""
    answer = await asyncio.to_thread(gateways.processes[name].call, "GET", f"/gnomon/functions/{FUNCTION}")
    return dict(answer.json()) if answer.status == 200 else {}


def decisions(gateways: Gateways, name: str) -> list[dict[str, Any]]:
    """What has been decided, the newest first."""
    return list(gateways.processes[name].call("GET", f"/gnomon/functions/{FUNCTION}/decisions").json())


def pair_batches(gateways: Gateways, name: str) -> float:
    """How many batches this gateway has sent to a Body with its Shadow."""
    found = BATCHES.search(gateways.processes[name].call("GET", "/metrics").data.decode())
    return float(found[1]) if found else 0.0


def shadow_rows(node: Node) -> set[str]:
    """The Shadows on the node that work for a Body."""
    return {row["id"] for row in node.state()["shadows"] if row["paired"] and row["state"] == "ready"}


async def test_a_burst_gets_a_shadow_which_outlives_the_leader(gateways: Gateways, node: Node, sample_s: float) -> None:
    """Sixteen callers always wait. Within the objective, six samples' time, a Body answers six of them, and a pair twelve."""
    annotations = {
        "gnomon/model": f"{MODEL}@1",
        "gnomon/autoscaler": "asyfunc",
        "gnomon/max-batch": str(MAX_BATCH),
        "gnomon/slo-ms": str(round(1000 * 6 * sample_s / SLOWER)),
        "gnomon/deadline-ms": "60000",
    }
    document = {"service": FUNCTION, "image": "body:1", "labels": {"com.openfaas.scale.max": "1"}, "annotations": annotations}
    answer = await asyncio.to_thread(gateways.processes["b"].call, "POST", "/system/functions", document)
    assert answer.status == 202, answer.data
    b = gateways.processes["b"]
    await gateways.eventually(lambda: b.status(FUNCTION).get("availableReplicas") == 1, "its pod never served")
    assert gateways.leader() == "a"

    callers = Callers(gateways)
    running = asyncio.create_task(callers.run())
    await gateways.eventually(lambda: pair_batches(gateways, "b") >= 20, "the owner sends no batches to a pair")
    assert pair_batches(gateways, "a") == 0, "the leader owns no queue"
    [shadow] = shadow_rows(node)
    seen = await detail(gateways, "b")
    assert [(one["id"], one["state"]) for one in seen["shadows"]] == [(shadow, "ready")]
    assert [one["shadow"] for one in seen["bodies"]] == [shadow]
    assert set(callers.answers) <= set(LABELS), callers.answers

    os.kill(gateways.pid("a"), signal.SIGKILL)
    await gateways.end("a")
    await callers.more(100)
    await gateways.eventually(lambda: gateways.leader() == "b", "nobody leads")
    await gateways.shared_by("b", members=1)
    # The next leader knows the pair, and has decided since.
    await gateways.eventually(lambda: bool(decisions(gateways, "b")), "the next leader decides nothing")
    assert not decisions(gateways, "b")[-1]["reason"].startswith("0.00 rps"), "it was told of the load before"
    before = pair_batches(gateways, "b")
    await gateways.eventually(lambda: pair_batches(gateways, "b") >= before + 20, "the pair works no more")
    seen = await detail(gateways, "b")
    assert [(one["id"], one["state"]) for one in seen["shadows"]] == [(shadow, "ready")]
    assert shadow_rows(node) == {shadow}
    callers.end()
    await running
    wrong = {told: count for told, count in callers.answers.items() if told not in LABELS}
    assert set(wrong) <= {"broken off", "replica_lost"}, "what the killed one held, and nothing else"
    assert sum(wrong.values()) <= CALLERS
