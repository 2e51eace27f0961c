"""The class `gnomon` on a cluster with Knative: from create to Ready, and 1 to N to 0 to 1 without a lost request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import aiohttp
import pytest

from gnomon_platforms.knative.autoscaler.cluster import AutoscalerOptions
from gnomon_server.knative_autoscaler import KnativeOptions, KnativeService
from tests.cluster.client import Cluster
from tests.cluster.knative import SERVING, answer_for_ingress, condition

SCALING = ("autoscaling.internal.knative.dev", "v1alpha1")
ANNOTATION = "autoscaling.knative.dev/"
PLENTY, LEAST_REQUESTS = 1700, 2000
LIMIT_S = 240.0

_LOG = logging.getLogger(__name__)


@pytest.fixture(autouse=True)
def knative(cluster: Cluster, with_knative: None) -> None:
    config = cluster.core.read_namespaced_config_map("config-observability", "knative-serving").data or {}
    if config.get("metrics-protocol") != "prometheus":
        pytest.skip("its activators do not tell what waits at them: metrics-protocol in config-observability is not prometheus")


@pytest.fixture
async def service(cluster: Cluster, namespace: str) -> AsyncIterator[KnativeService]:
    options = KnativeOptions(
        kubeconfig=cluster.kubeconfig, scaled=AutoscalerOptions(namespace=namespace), lease_namespace=namespace
    )
    running = KnativeService(options, Random(1))
    await running.start()
    yield running
    await running.stop()


@dataclass
class Load:
    """Requests at a steady rate to a Revision's public Service, as an ingress sends them. Whatever is not a 200 is lost."""

    url: str
    headers: dict[str, str]
    sent: int = 0
    lost: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, rate_rps: float, seconds: float) -> None:
        """Open loop: what is due is sent, whatever became of what was sent before."""
        # A connection of its own for each request: one that is kept would stay with a pod that ends.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
            began_s = time.monotonic()
            for number in range(round(rate_rps * seconds)):
                await asyncio.sleep(max(0.0, began_s + number / rate_rps - time.monotonic()))
                task = asyncio.create_task(self._one(session))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            while self._tasks:
                await asyncio.gather(*self._tasks)

    async def _one(self, session: aiohttp.ClientSession) -> None:
        self.sent += 1
        began_s = time.monotonic()
        try:
            async with session.get(self.url, headers=self.headers, timeout=aiohttp.ClientTimeout(total=120)) as answer:
                body = await answer.text()
                if answer.status != 200 or body != "ours":
                    self.lost.append(f"{answer.status} {body[:100]}")
        except (aiohttp.ClientError, TimeoutError) as error:
            self.lost.append(repr(error))
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)


class Ksvc:
    """A ksvc of our class."""

    def __init__(self, cluster: Cluster, namespace: str, image: str, annotations: dict[str, str], **more: Any) -> None:
        self.cluster, self.namespace = cluster, namespace
        container = {"image": image, "env": [{"name": "ANSWER", "value": "ours"}], **more}
        given = {ANNOTATION + "class": "gnomon", **annotations}
        self.body = {
            "apiVersion": "/".join(SERVING),
            "kind": "Service",
            "metadata": {"name": "ours"},
            "spec": {"template": {"metadata": {"annotations": given}, "spec": {"containers": [container]}}},
        }
        self.revision = ""

    async def ready(self) -> float:
        """Create it; how long it took until it was ready."""
        began_s = time.monotonic()
        custom = self.cluster.custom
        create = partial(custom.create_namespaced_custom_object, *SERVING, self.namespace, "services", self.body)
        await asyncio.to_thread(create)
        await asyncio.to_thread(answer_for_ingress, self.cluster, self.namespace, "ours")

        def is_ready() -> bool:
            found: dict[str, Any] = custom.get_namespaced_custom_object(*SERVING, self.namespace, "services", "ours")
            self.revision = found.get("status", {}).get("latestReadyRevisionName", "")
            return condition(found) == "True"

        await self.until(is_ready, "the ksvc to be Ready")
        return time.monotonic() - began_s

    async def until(self, true: Any, what: str, limit_s: float = LIMIT_S) -> float:
        """Wait; how long it took."""
        began_s = time.monotonic()
        while not await asyncio.to_thread(true):
            assert time.monotonic() - began_s < limit_s, f"after {limit_s:.0f} s still waiting for {what}: {self.pa()}"
            await asyncio.sleep(0.1)
        return time.monotonic() - began_s

    def pa(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.custom.get_namespaced_custom_object(
            *SCALING, self.namespace, "podautoscalers", self.revision
        )
        return found

    def replicas(self) -> int:
        found = self.cluster.apps.read_namespaced_deployment(f"{self.revision}-deployment", self.namespace)
        return int(found.spec.replicas)

    def actual(self) -> int:
        return int(self.pa().get("status", {}).get("actualScale", -1))

    def load(self) -> Load:
        address = self.cluster.core.read_namespaced_service(self.revision, self.namespace).spec.cluster_ip
        headers = {"Knative-Serving-Namespace": self.namespace, "Knative-Serving-Revision": self.revision}
        return Load(f"http://{address}/", headers)


@pytest.mark.timeout(900)  # a busy machine takes its time to start pods
async def test_from_one_to_several_to_none_and_back_without_a_lost_request(
    cluster: Cluster, namespace: str, answer_image: str, service: KnativeService, record_property: Any
) -> None:
    annotations = {
        ANNOTATION + "metric": "rps",
        ANNOTATION + "target": "40",
        ANNOTATION + "window": "8s",
        ANNOTATION + "max-scale": "4",
    }
    ours = Ksvc(cluster, namespace, answer_image, annotations)
    figures: dict[str, float] = {"created to Ready": await ours.ready()}
    load = ours.load()

    # 70 requests a second at 70 % of 40 each: 3 pods.
    began_s, most = time.monotonic(), 1
    while load.sent < PLENTY or most < 3:
        assert time.monotonic() - began_s < LIMIT_S, f"no third pod: {ours.pa()}"
        await load.run(70.0, 2.0)
        if most < 3 <= await asyncio.to_thread(ours.actual):
            most, figures["1 to 3 pods"] = 3, time.monotonic() - began_s
    figures["to 0 after the last request"] = await ours.until(lambda: ours.replicas() == 0, "no pods")
    await ours.until(lambda: ours.actual() == 0, "the pods to be gone")

    woken = asyncio.create_task(load.run(20.0, 5.0))
    figures["request to scale from zero"] = await ours.until(lambda: ours.replicas() >= 1, "a pod again")
    await woken
    # And what comes while it is on its way to zero again, at any moment of it.
    while load.sent < LEAST_REQUESTS:
        await load.run(25.0, 1.0)
        await asyncio.sleep(2.5)
    figures["slowest answer"] = load.slowest_s
    for name, value in figures.items():
        record_property(name, round(value, 2))
        _LOG.info("%s: %.2f s", name, value)
    _LOG.info("%d requests, %d lost", load.sent, len(load.lost))
    assert load.lost == []
    said = {condition["type"]: condition for condition in ours.pa()["status"]["conditions"]}["ScalingPolicy"]
    assert said["reason"] == "kpa"
    assert "rps" in said["message"]
    # And what was decided can be read, with the reason.
    decided = service.autoscaler.decisions(f"{ours.revision}.{namespace}")
    assert any("rps" in decision.reason and (decision.desired or 0) >= 3 for decision in decided)


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("service")
async def test_pods_get_their_cores_in_place_without_a_restart_or_a_lost_request(
    cluster: Cluster, namespace: str, answer_image: str
) -> None:
    """A kubelet's own pods, each beside a queue-proxy: a fifth of a core by the template, and one as their Revision says."""
    small = {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}}
    one_pod = {ANNOTATION + "min-scale": "1", ANNOTATION + "max-scale": "1", "gnomon/cores": "1"}
    ours = Ksvc(cluster, namespace, answer_image, one_pod, resources=small)
    await ours.ready()
    pods = partial(cluster.core.list_namespaced_pod, namespace, label_selector=f"serving.knative.dev/revision={ours.revision}")

    def given() -> list[tuple[str, str, int]]:
        """By pod, its cores as its node says, and how often its container was restarted."""
        statuses = ((pod.metadata.uid, status) for pod in pods().items for status in pod.status.container_statuses or ())
        serving = [(uid, status) for uid, status in statuses if status.name != "queue-proxy" and status.resources is not None]
        return [(uid, status.resources.limits["cpu"], status.restart_count) for uid, status in serving]

    load = ours.load()
    running = asyncio.create_task(load.run(20.0, 5.0))
    await ours.until(lambda: [(cores, restarts) for _, cores, restarts in given()] == [("1", 0)], "one core")
    [(uid, _, _)] = await asyncio.to_thread(given)
    await running
    assert load.lost == []
    assert await asyncio.to_thread(given) == [(uid, "1", 0)]


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("service")
async def test_a_template_may_keep_the_api_servers_token_out_of_its_pods(
    cluster: Cluster, namespace: str, answer_image: str
) -> None:
    """Knative takes the field without a feature; a pod of its own has the token else."""
    ours = Ksvc(cluster, namespace, answer_image, {ANNOTATION + "min-scale": "1", ANNOTATION + "max-scale": "1"})
    ours.body["spec"]["template"]["spec"]["automountServiceAccountToken"] = False
    await ours.ready()
    [pod] = cluster.core.list_namespaced_pod(namespace, label_selector=f"serving.knative.dev/revision={ours.revision}").items
    mounted = [volume_mount.mount_path for container in pod.spec.containers for volume_mount in container.volume_mounts or ()]
    assert "/var/run/secrets/kubernetes.io/serviceaccount" not in mounted
