"""Bodies of Revisions and their Shadows, on a real API server with a real coordinator: the class decides, the gateway batches.

Load, policy, profile, the node's coordinator, the gateway's batches are the real ones; Bodies, pool and Shadow are processes.
What stands in for queue-proxy counts requests and passes them on.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gnomon_coordinator.node.pod_sockets import SOCKET
from gnomon_core.wire import decode
from gnomon_platforms.knative.autoscaler.shadows import ModelOptions
from gnomon_platforms.nodes.coordinators import NodeOptions
from gnomon_platforms.nodes.models import ServedModels
from gnomon_profiler.repository import DirectoryRepository
from gnomon_server.knative_autoscaler import KnativeService
from gnomon_server.knative_gateway import KnativeGateway
from tests.cluster.client import Cluster
from tests.integration.coordinator_node.node import TOKEN as NODE_TOKEN
from tests.integration.coordinator_node.node import Body, Node
from tests.kubernetes.knative_autoscaler.played_knative import PA, Application, PlayedKnative
from tests.kubernetes.knative_autoscaler.test_reconciler import QUICK, running, until
from tests.kubernetes.knative_batching.conftest import ENV, SECRET, QueueProxy
from tests.kubernetes.knative_batching.conftest import TOKEN as BATCH_TOKEN
from tests.kubernetes.knative_batching.test_serving_revisions import serving
from tests.kubernetes.openfaas.kubelet import WORKER
from tests.kubernetes.replicas.bodies import LABELS, MODEL, NODES, coordinator_pod, node_at, put_model
from tests.kubernetes.replicas.bursts import Callers, gave_up, hurried, shadow_rows

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]
REVISION = "shot-00001"
VOLUME = {"name": "coordinator", "csi": {"driver": "node.gnomon", "readOnly": True}}
CORES = {"cpu": "8", "memory": "16Gi", "pods": "110"}


class BodyPod(QueueProxy):
    """A pod of a Revision: a Body with the socket of its own volume."""

    def __init__(self, played: Bodies, uid: str, address: str) -> None:
        self._played, node = played, played.on
        self._volume = node.pod(uid) if played.mounted else None
        named = {"GNOMON_MODEL": f"{MODEL}@1", "GNOMON_BATCH_TOKEN": BATCH_TOKEN}
        socket = Path("/nowhere") if self._volume is None else self._volume.target / SOCKET
        self.body = Body(node.folder, uid, socket, node.models, b"", at=f"{address}:8080", **named)
        node.started.append(self.body)
        super().__init__(address, self._pass_on)

    def end(self) -> None:
        super().end()
        self.body.kill()
        if self._volume is not None:
            self._played.on.kubelet.unpublish(self._volume)

    def _pass_on(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        headers = {"Authorization": environ.get("HTTP_AUTHORIZATION", ""), "Content-Type": environ.get("CONTENT_TYPE", "")}
        with closing(http.client.HTTPConnection(self.body.host, self.body.address, timeout=60)) as connection:
            connection.request(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["wsgi.input"].read(), headers)
            answer = connection.getresponse()
            data = answer.read()
        if environ["PATH_INFO"] == "/gnomon/batch":
            self._played.helped += sum(row["outcome"] == "answered" for row in decode(data).head_json().get("pair", []))
        start(f"{answer.status} {answer.reason}", [("Content-Type", answer.headers.get("Content-Type", ""))])
        return [data]


class Bodies(PlayedKnative):
    """Pods of Revisions are Bodies on one node."""

    on: Node
    mounted = True
    helped = 0
    """Runs of batches of which a Shadow was given a share, and has computed it in time."""

    def begin(self, revision: str, pod: str, address: str) -> Application:
        del revision
        uid = self._cluster.core.read_namespaced_pod(pod, self.namespace).metadata.uid
        return BodyPod(self, uid, address)


@pytest.fixture
def node() -> Iterator[Node]:
    with node_at(f"127.0.9.{210 + WORKER}") as made:
        yield made


@pytest.fixture
def sample_s(node: Node) -> float:
    """Execution time of one sample by the model's profile."""
    return put_model(node.models)


@pytest.fixture
def played_as() -> type[PlayedKnative]:
    return Bodies


@pytest.fixture
def bodies(knative_kinds: Cluster, node: Node, knative: PlayedKnative) -> Iterator[Bodies]:
    """The node, its coordinator, and a namespace whose pods are Bodies there."""
    assert isinstance(knative, Bodies)
    knative.on, knative.node = node, node.name
    core = knative_kinds.core
    if NODES not in {namespace.metadata.name for namespace in core.list_namespace().items}:
        core.create_namespace({"metadata": {"name": NODES}})
        core.create_namespaced_service_account(NODES, {"metadata": {"name": "default"}})
    core.create_node({"metadata": {"name": node.name}})
    ready = [{"type": "Ready", "status": "True"}]
    core.patch_node_status(node.name, {"status": {"capacity": CORES, "allocatable": CORES, "conditions": ready}})
    secret = {"metadata": {"name": SECRET}, "stringData": {SECRET: BATCH_TOKEN}}
    core.create_namespaced_secret(knative.namespace, secret)
    yield knative
    core.delete_node(node.name)


@contextlib.asynccontextmanager
async def scaling(cluster: Cluster, knative: PlayedKnative, node: Node) -> AsyncIterator[KnativeService]:
    """The class with the node's models."""
    models = ServedModels(DirectoryRepository(node.models), node.models, node.models / "profiles")
    async with running(cluster, knative, models=ModelOptions(models, NodeOptions(NODE_TOKEN))) as service:
        yield service


def asyfunc(sample_s: float) -> dict[str, str]:
    return {**QUICK, "autoscaling.knative.dev/max-scale": "1", **hurried(sample_s)}


def callers_of(gateway: KnativeGateway, bodies: Bodies) -> Callers:
    """Callers of a Revision, whose requests come as the ingress sends them on."""
    url = f"http://{gateway.server.host}:{gateway.server.port}/"
    return Callers(lambda: url, {"Knative-Serving-Revision": REVISION, "Knative-Serving-Namespace": bodies.namespace})


def events(cluster: Cluster, knative: PlayedKnative) -> list[str]:
    """The events of the Revision's Deployment."""
    found = cluster.core.list_namespaced_event(knative.namespace).items
    return [
        event.message
        for event in found
        if event.reason == "BodiesAlone" and event.involved_object.name == f"{REVISION}-deployment"
    ]


async def some_shadows(node: Node) -> set[str]:
    """The Shadows that work on the node, from the first reading that has some."""
    found: set[str] = set()

    def look() -> bool:
        found.update(shadow_rows(node))
        return bool(found)

    await until(look, "a Shadow")
    return found


async def test_a_burst_gets_a_shadow_that_outlives_the_leader_and_another_one_when_the_coordinator_is_killed(
    knative_kinds: Cluster, bodies: Bodies, node: Node, sample_s: float
) -> None:
    """Sixteen callers always wait. Within the objective, six samples' time, a Body answers six of them, and a pair twelve."""
    await asyncio.to_thread(node.warm)
    with coordinator_pod(knative_kinds, node):
        async with serving(knative_kinds, bodies) as gateway, contextlib.AsyncExitStack() as first:
            await first.enter_async_context(scaling(knative_kinds, bodies, node))
            bodies.revision(REVISION, asyfunc(sample_s), env=ENV, volumes=[VOLUME])
            await until(lambda: bodies.condition(REVISION, "Ready")["status"] == "True", "Ready")
            callers = callers_of(gateway, bodies)
            calling = asyncio.create_task(callers.run())
            await until(lambda: bodies.helped >= 20, "batches that both share")
            # Nobody but the Body itself tells the gateway that its batches are the pair's.
            runtime = gateway.manager.directory.lookup(f"{REVISION}.{bodies.namespace}")
            assert runtime is not None
            of_pairs = runtime.metrics.pairs
            await until(lambda: of_pairs.batches >= 20 and of_pairs.offloaded > 0, "batches that are made for both")
            assert bodies.condition(REVISION, "Shadows")["status"] == "True"
            assert bodies.condition(REVISION, "ScalingPolicy")["reason"] == "asyfunc"
            assert not events(knative_kinds, bodies)
            killed = await some_shadows(node)

            # The coordinator is killed: the Body answers on. The next one knows of no Shadow, and the class has it make another.
            await asyncio.to_thread(node.agent.kill)
            await callers.more(50)
            await asyncio.to_thread(node.begin_agent)
            await until(lambda: bool(shadow_rows(node) - killed), "another Shadow")
            before = bodies.helped
            await until(lambda: bodies.helped >= before + 20, "the next one helps")
            had = await some_shadows(node)

            # The next leader finds it, and nobody hears of the change.
            await first.aclose()
            async with scaling(knative_kinds, bodies, node) as second:
                name = f"{REVISION}.{bodies.namespace}"

                def paired() -> bool:
                    load = second.platform.load(name)
                    return load is not None and any(instance.shadows for instance in load.instances)

                async with asyncio.timeout(60):
                    while not paired():  # noqa: ASYNC110 - on the loop, where the platform lives
                        await asyncio.sleep(0.05)
                has = await asyncio.to_thread(shadow_rows, node)
                assert has == had or any(gave_up(node, shadow) for shadow in had)
                before = bodies.helped
                await until(lambda: bodies.helped >= before + 20, "the pair works no more")
                # Given to another class it is nobody's here: its Body works alone, and holds nothing of its node.
                change = {"metadata": {"annotations": {"autoscaling.knative.dev/class": "kpa.autoscaling.knative.dev"}}}
                patch = knative_kinds.custom.patch_namespaced_custom_object
                await asyncio.to_thread(patch, *PA, bodies.namespace, "podautoscalers", REVISION, change)  # type: ignore[call-arg]
                await until(lambda: not shadow_rows(node), "its Shadow ends")
                await until(
                    lambda: {shadow.pair for shadow in runtime.dispatcher.workers.by_id.values()} == {None}, "batches for one"
                )
                callers.end()
                await calling
            assert set(callers.answers) <= set(LABELS), callers.answers


async def test_bodies_work_alone_and_say_so_where_pods_have_no_volume(
    knative_kinds: Cluster, bodies: Bodies, node: Node, sample_s: float
) -> None:
    bodies.mounted = False
    await asyncio.to_thread(node.warm)
    with coordinator_pod(knative_kinds, node):
        async with serving(knative_kinds, bodies) as gateway, scaling(knative_kinds, bodies, node):
            bodies.revision(REVISION, asyfunc(sample_s), env=ENV)
            await until(lambda: bodies.condition(REVISION, "Ready")["status"] == "True", "Ready")
            await until(lambda: bodies.condition(REVISION, "Shadows").get("reason") == "VolumesDisabled", "the condition")
            callers = callers_of(gateway, bodies)
            calling = asyncio.create_task(callers.run())
            await until(lambda: sum(callers.answers.values()) > 200, "answers")
            callers.end()
            await calling
            assert set(callers.answers) <= set(LABELS), callers.answers
            assert bodies.condition(REVISION, "ScalingPolicy")["reason"] == "asyfunc"
            assert not node.state()["shadows"], "none was even wished for"
            [said] = events(knative_kinds, bodies)
            assert "kubernetes.podspec-volumes-csi is not enabled" in said

            config = {"metadata": {"name": "config-features"}, "data": {"kubernetes.podspec-volumes-csi": "enabled"}}
            knative_kinds.core.create_namespaced_config_map(bodies.system, config)
            await until(lambda: bodies.condition(REVISION, "Shadows").get("reason") == "NoVolume", "what is missing now")
