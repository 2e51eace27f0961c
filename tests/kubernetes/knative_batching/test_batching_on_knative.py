"""Batches on a cluster with Knative: a ksvc of our class with pods of a real image, under load and what goes wrong.

    users ─▶ Envoy ─▶ gateway's pods ─▶ queue-proxy ▶ pod        autoscaler's pods ask gateways and queue-proxies

All of deploy/knative is installed as it is, and so is Knative.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kubernetes import client

from tests.cluster import build, envoy, models, settings
from tests.cluster.client import Cluster, Kubectl
from tests.cluster.knative import NETWORKING, SERVING, condition
from tests.cluster.phases import CannotBeHad
from tests.kubernetes.coordinator_node.test_driver_on_the_cluster import inside
from tests.kubernetes.installation.forms import overlaid
from tests.kubernetes.knative_batching.conftest import ENV, SECRET
from tests.kubernetes.knative_batching.gateways import SYSTEM, Gateways, Replicas, evict
from tests.kubernetes.knative_batching.users import LIMIT_S, Users

pytestmark = pytest.mark.timeout(900)  # a busy machine takes its time to start pods
DEPLOYMENTS = ("gnomon-autoscaler", "gnomon-gateway")
AUTOSCALERS_LEASE = "gnomon-knative-autoscaler"
K = "autoscaling.knative.dev/"

_LOG = logging.getLogger(__name__)


@dataclass
class Images:
    """A function's that echoes, and ours."""

    echo: str
    gateway: str


@pytest.fixture
def images(cluster: Cluster) -> Images:
    if not Path("/sys/class/net", settings.INTERFACE).exists():
        pytest.skip("pods of this cluster have no way from here: make cluster boots one that has")
    if os.geteuid():
        pytest.skip("processes of pods are killed, which takes root on the cluster's node")
    config = cluster.core.read_namespaced_config_map("config-observability", SYSTEM).data or {}
    if config.get("metrics-protocol") != "prometheus":
        pytest.skip("its activators do not tell what waits at them")
    try:
        envoy.program()
        return Images(
            models.small(cluster, "gnomon-echo", "GNOMON_TEST_FUNCTION_IMAGE"),
            models.small(cluster, "gnomon-gateway", "GNOMON_GATEWAY_IMAGE"),
        )
    except CannotBeHad as reason:
        pytest.skip(str(reason))


@dataclass
class Installation:
    """Gateways and autoscaler class, as an operator installs them."""

    cluster: Cluster

    @property
    def gateways(self) -> Gateways:
        return Gateways(self.cluster)

    @property
    def autoscalers(self) -> Replicas:
        return Replicas(self.cluster, "knative-autoscaler")

    @property
    def all(self) -> tuple[Replicas, ...]:
        return self.gateways, self.autoscalers

    def scaling(self) -> str:
        """The autoscaler that leads, as its Lease says."""
        lease: Any = client.CoordinationV1Api(self.cluster.api).read_namespaced_lease(AUTOSCALERS_LEASE, SYSTEM)
        return str(lease.spec.holder_identity or "")


@pytest.fixture
def installation(cluster: Cluster, compiled: build.Programs, images: Images, tmp_path: Path) -> Iterator[Installation]:
    """All of deploy/knative; gone afterwards."""
    if {deployment.metadata.name for deployment in cluster.apps.list_namespaced_deployment(SYSTEM).items} & {*DEPLOYMENTS}:
        pytest.skip("something of ours is installed on this cluster already")
    kubectl = Kubectl(compiled.folder / "kubectl", cluster.kubeconfig)
    overlay = overlaid(tmp_path, "knative", {"gnomon-gateway": images.gateway})
    try:
        kubectl("apply", "-k", str(overlay))
        for name in DEPLOYMENTS:
            rolled = ("rollout", "status", f"deployment/{name}", "-n", SYSTEM, f"--timeout={LIMIT_S:.0f}s")
            kubectl(*rolled, limit_s=LIMIT_S + 10)
        (tmp_path / "envoy").mkdir()
        with envoy.ingress(cluster, tmp_path / "envoy", settings.NODE_ADDRESS):
            yield Installation(cluster)
    finally:
        kubectl("delete", "-k", str(overlay), "--ignore-not-found", "--timeout=180s", limit_s=200)
        kubectl("delete", "lease", AUTOSCALERS_LEASE, "-n", SYSTEM, "--ignore-not-found")


def ksvc(image: str) -> dict[str, Any]:
    annotations = {
        K + "class": "gnomon",
        K + "window": "8s",
        K + "target": "8",
        K + "max-scale": "3",
        "gnomon/max-batch": "8",
        "gnomon/scheduler": "fixed",
        "gnomon/max-wait-ms": "200",
    }
    resources = {"requests": {"cpu": "50m"}}
    container = {
        "image": image,
        "env": [{"name": "GNOMON_HANDLER_FOLDER", "value": "/home/app/function"}, *ENV],
        "readinessProbe": {"httpGet": {"path": "/_/ready"}, "periodSeconds": 1},
        "resources": resources,
    }
    return {
        "apiVersion": "/".join(SERVING),
        "kind": "Service",
        "metadata": {"name": "echo", "annotations": {"networking.knative.dev/ingress-class": envoy.CLASS}},
        "spec": {"template": {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}},
    }


def state(installation: Installation, namespace: str) -> str:
    """The function's objects and the gateways' logs, for the report of a failure."""
    objects = [
        f"{kind} {item['metadata']['name']} of {item['metadata']['creationTimestamp']}: "
        f"{item.get('status', {}).get('conditions')}"
        for group, kind in ((SERVING, "services"), (SERVING, "revisions"), (NETWORKING, "ingresses"))
        for item in installation.cluster.custom.list_namespaced_custom_object(*group, namespace, kind)["items"]
    ]
    return "\n".join([*objects, installation.gateways.logs()[-4000:]])


async def until(true: Any, what: str) -> float:
    began_s = time.monotonic()
    while not await asyncio.to_thread(true):
        assert time.monotonic() - began_s < LIMIT_S, f"after {LIMIT_S:.0f} s still waiting for {what}"
        await asyncio.sleep(0.1)
    return time.monotonic() - began_s


async def drained(installation: Installation, namespace: str, users: Users) -> None:
    """A node is drained on which are one replica of each part and all pods of the function: others come, and nobody notices."""
    cluster = installation.cluster
    leaving = []
    for part in installation.all:
        first, other = await asyncio.to_thread(part.pods)
        leaving.append((part, first, other))
    pods = (await asyncio.to_thread(cluster.core.list_namespaced_pod, namespace)).items
    for pod in [pod for pod in pods if pod.metadata.deletion_timestamp is None]:
        assert await asyncio.to_thread(evict, cluster, pod), "Knative gives Revisions no budget"
    for _, first, other in leaving:
        await until(lambda first=first: evict(cluster, first), "the budget to know of both")  # type: ignore[misc]
        assert not await asyncio.to_thread(evict, cluster, other), "one of two has to stay"
    for part, first, _ in leaving:
        await until(
            lambda part=part, first=first: not part.there(first.metadata.name) and part.both_ready(),  # type: ignore[misc]
            f"another {part.component} in its place",
        )
    await users.more(100)
    assert users.wrong_answers == [], (
        f"requests failed while a node was drained: {users.failures()}; {await asyncio.to_thread(state, installation, namespace)}"
    )


async def killed(installation: Installation, users: Users) -> None:
    """A process of each part is killed, all at once: of the autoscaler the one that leads. What they held is lost."""
    leader = await asyncio.to_thread(installation.scaling)
    victims = []
    for part in installation.all:
        pods = await asyncio.to_thread(part.pods)
        [victim, *_] = [pod for pod in pods if leader.startswith(pod.metadata.name)] or pods
        victims.append((part, victim.metadata.name, await asyncio.to_thread(inside, victim)))
    for _, _, process in victims:
        os.kill(int(process.parent.name), signal.SIGKILL)
    for part, name, _ in victims:
        again = f"{part.component} to be started again"
        await until(lambda part=part, name=name: part.restarts(name) == 1 and part.both_ready(), again)  # type: ignore[misc]
    await users.more(100)
    await until(lambda: installation.scaling() not in ("", leader), "another one to lead")


async def test_a_ksvc_gets_batches_through_drains_and_kills_and_goes_to_zero_and_back_without_a_lost_request(
    cluster: Cluster, namespace: str, images: Images, installation: Installation
) -> None:
    cluster.core.create_namespaced_secret(namespace, {"metadata": {"name": SECRET}, "stringData": {SECRET: "t0ken"}})
    services = (*SERVING, namespace, "services")
    revision = ""

    def ready() -> bool:
        nonlocal revision
        found = cluster.custom.get_namespaced_custom_object(*services, "echo")
        revision = found.get("status", {}).get("latestReadyRevisionName", "")
        return condition(found) == "True"

    def replicas() -> int:
        return int(cluster.apps.read_namespaced_deployment(f"{revision}-deployment", namespace).spec.replicas)

    cluster.custom.create_namespaced_custom_object(*services, ksvc(images.echo))
    _LOG.info("created to Ready: %.1f s", await until(ready, "the ksvc to be Ready"))
    host = {"Host": f"echo.{namespace}.svc.cluster.local"}
    options: dict[str, Any] = {"headers": host, "timeout": aiohttp.ClientTimeout(total=LIMIT_S)}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), **options) as session:
        users = Users(session, f"http://{settings.NODE_ADDRESS}/")
        for _ in range(4):
            await users.at_once(64)
        figures = await asyncio.to_thread(installation.gateways.figures)
        assert figures["gnomon_batch_size_sum"] > 4 * figures["gnomon_batch_size_count"], "mostly batches of more than four"
        assert "one by one" not in await asyncio.to_thread(installation.gateways.logs), "pods were sent batches as such"

        calling = asyncio.create_task(users.keep_asking())
        await users.more(100)
        await drained(installation, namespace, users)
        await killed(installation, users)
        users.end()
        await calling
        # Envoy hears of it as soon as the kubelet has said that a gateway is gone; what came to it before is lost as well.
        assert set(users.lost.values()) <= {1, 2}, ("what the killed ones held, and nothing else", users.wrong_answers)
        _LOG.info("%d answered while pods came and went, %d lost", users.answered, users.lost.total())

        _LOG.info("to zero: %.1f s", await until(lambda: replicas() == 0, "no pods"))
        began_s = time.monotonic()
        await users.at_once(20)
        _LOG.info("from zero: %.1f s", time.monotonic() - began_s)
    await asyncio.to_thread(cluster.custom.delete_namespaced_custom_object, *services, "echo")  # type: ignore[call-arg]
