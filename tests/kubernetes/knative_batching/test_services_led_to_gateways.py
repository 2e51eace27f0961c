"""A batched Revision on a cluster with Knative is called as any other, and its requests come to the gateway.

    caller ▶ Envoy, or kube-proxy ▶ Service REVISION ▶ EndpointSlice of ours ▶ gateway ▶ queue-proxy ▶ pod

The class runs in this process. Gateways are processes of the machine, at addresses of their own on the cluster's interface; a pod
object that no kubelet looks after stands for each, as the class sees it.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from prometheus_client.parser import text_string_to_metric_families

from gnomon_platforms.knative.resources import ACTIVATOR_METRICS_PORT, GATEWAY_LABELS, GATEWAY_PORT
from tests.cluster import envoy, settings
from tests.cluster.client import Cluster
from tests.cluster.knative import SERVING, condition
from tests.cluster.phases import CannotBeHad
from tests.kubernetes.knative_autoscaler.test_on_knative import ANNOTATION, Ksvc, Load, knative, service

__all__ = ["knative", "service"]

pytestmark = pytest.mark.timeout(900)  # a busy machine takes its time to start pods
SYSTEM = "knative-serving"
RULES_S = 1.0
"""How long a node's rules may take to follow an EndpointSlice: until then it leads where it led before."""
ADDRESSES = ("10.243.0.11", "10.243.0.12")
INGRESS_ADDRESS = "10.243.0.13"
BATCHES = {"gnomon/max-batch": "8", "gnomon/scheduler": "fixed", "gnomon/max-wait-ms": "20"}


@dataclass
class Gateways:
    """Processes of the gateway, each with the pod that stands for it."""

    cluster: Cluster
    namespace: str
    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def begin(self, address: str) -> None:
        """Start one, and let its pod be ready when it is."""
        arguments = f"--host={address} --port={GATEWAY_PORT} --page-port={ACTIVATOR_METRICS_PORT} --namespace={self.namespace}"
        command = [Path(sys.executable).with_name("gnomon"), "serve", "--platform=knative", "--gateway", *arguments.split()]
        command += [f"--kubeconfig={self.cluster.kubeconfig}"]
        with (self.folder / f"{address}.log").open("a") as log:
            self.processes[address] = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        name = pod_name(address)
        labels = dict(shadow.split("=") for shadow in GATEWAY_LABELS.split(","))
        spec = {"schedulerName": "nobody", "containers": [{"name": "gateway", "image": "dev.local/none:v1"}]}
        self.cluster.core.create_namespaced_pod(SYSTEM, {"metadata": {"name": name, "labels": labels}, "spec": spec})

    def answers(self, address: str) -> bool:
        with (
            contextlib.suppress(OSError),
            closing(http.client.HTTPConnection(address, ACTIVATOR_METRICS_PORT, timeout=5)) as page,
        ):
            page.request("GET", "/healthz")
            return page.getresponse().status == 200
        return False

    def ready(self, address: str, *, ready: bool = True) -> None:
        """The pod's status as its kubelet reports it."""
        conditions = [{"type": "Ready", "status": str(ready)}]
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
        self.cluster.core.patch_namespaced_pod_status(pod_name(address), SYSTEM, {"status": status})

    def kill(self, address: str) -> None:
        process = self.processes.pop(address)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        for address in ADDRESSES:
            with contextlib.suppress(client.ApiException):
                self.cluster.core.delete_namespaced_pod(pod_name(address), SYSTEM, grace_period_seconds=0)

    def answered(self) -> int:
        """How many requests went through those that run."""
        return sum(samples_of(address) for address in self.processes)


def samples_of(address: str) -> int:
    """The requests that went out in batches from the gateway at this address."""
    with closing(http.client.HTTPConnection(address, ACTIVATOR_METRICS_PORT, timeout=30)) as page:
        page.request("GET", "/metrics")
        families = text_string_to_metric_families(page.getresponse().read().decode())
    return round(sum(sample.value for family in families for sample in family.samples if sample.name == "gnomon_batch_size_sum"))


def pod_name(address: str) -> str:
    return f"gateway-{address.replace('.', '-')}"


@pytest.fixture
def gateways(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Gateways]:
    """None yet; all of them are gone afterwards, with their addresses."""
    if not Path("/sys/class/net", settings.INTERFACE).exists() or os.geteuid():
        pytest.skip("addresses for gateways are added to the interface of the cluster that make cluster boots, as root")
    for address in (*ADDRESSES, INGRESS_ADDRESS):
        subprocess.run(["ip", "address", "replace", f"{address}/32", "dev", settings.INTERFACE], check=True)
    made = Gateways(cluster, namespace, tmp_path)
    yield made
    made.end()
    for address in (*ADDRESSES, INGRESS_ADDRESS):
        subprocess.run(["ip", "address", "delete", f"{address}/32", "dev", settings.INTERFACE], check=False)


def led_to(cluster: Cluster, ours: Ksvc) -> set[str]:
    """The addresses at which the Revision's public Service is answered."""
    slices: Any = client.DiscoveryV1Api(cluster.api)
    named = f"kubernetes.io/service-name={ours.revision}"
    found = slices.list_namespaced_endpoint_slice(ours.namespace, label_selector=named).items
    return {address for endpoint_slice in found for each in endpoint_slice.endpoints or () for address in each.addresses}


def pods_of(cluster: Cluster, ours: Ksvc) -> set[str]:
    named = f"serving.knative.dev/revision={ours.revision}"
    return {pod.status.pod_ip for pod in cluster.core.list_namespaced_pod(ours.namespace, label_selector=named).items}


def activators(cluster: Cluster) -> set[str]:
    found = cluster.core.list_namespaced_pod(SYSTEM, label_selector="app=activator").items
    return {pod.status.pod_ip for pod in found}


async def begun(gateways: Gateways, ours: Ksvc, *addresses: str) -> None:
    for address in addresses:
        await asyncio.to_thread(gateways.begin, address)
    for address in addresses:
        await ours.until(lambda address=address: gateways.answers(address), f"the gateway at {address}")
        await asyncio.to_thread(gateways.ready, address)


@pytest.mark.usefixtures("service")
async def test_a_batched_revision_is_called_through_its_service_from_zero_to_zero_and_while_gateways_come_and_go(
    cluster: Cluster, namespace: str, answer_image: str, gateways: Gateways
) -> None:
    first, second = ADDRESSES
    window = {ANNOTATION + "window": "6s", ANNOTATION + "max-scale": "2"}
    ours = Ksvc(cluster, namespace, answer_image, {**window, **BATCHES})
    await ours.ready()
    load = ours.load()

    # Without a gateway it is a Revision as any other, and to batch costs nothing but the batches.
    await load.run(20.0, 1.0)
    assert load.lost == []
    await begun(gateways, ours, first, second)
    await ours.until(lambda: led_to(cluster, ours) == {first, second}, "its Service to lead to both gateways, and to nobody else")
    await asyncio.sleep(RULES_S)
    sent = load.sent
    await load.run(40.0, 3.0)
    assert load.lost == []
    assert await asyncio.to_thread(gateways.answered) == load.sent - sent

    # To zero, and what comes then waits in a gateway and wakes it.
    for _ in range(2):
        await ours.until(lambda: ours.replicas() == 0, "no pods")
        assert await asyncio.to_thread(led_to, cluster, ours) == {first, second}
        await load.run(40.0, 0.5)
        assert load.lost == []

    # One gateway dies: the kubelet says so, and the other has all requests.
    await asyncio.to_thread(gateways.kill, first)
    await asyncio.to_thread(gateways.ready, first, ready=False)
    await ours.until(lambda: led_to(cluster, ours) == {second}, "its Service to lead to the other gateway")
    await asyncio.sleep(RULES_S)
    await load.run(40.0, 1.0)
    assert load.lost == []

    # Both are gone: its Service leads to its pods, at zero to activators, and it is served all the same.
    await asyncio.to_thread(gateways.kill, second)
    await asyncio.to_thread(gateways.ready, second, ready=False)
    elsewhere = await asyncio.to_thread(activators, cluster)
    await ours.until(lambda: led_to(cluster, ours) <= elsewhere | pods_of(cluster, ours), "its Service to lead past the gateways")
    await asyncio.sleep(RULES_S)
    await load.run(40.0, 1.0)
    assert load.lost == []
    await ours.until(lambda: ours.replicas() == 0, "no pods")
    await ours.until(lambda: led_to(cluster, ours) == elsewhere, "its Service to lead to activators")
    await load.run(40.0, 0.5)
    assert load.lost == []

    # They are back.
    await asyncio.to_thread(gateways.end)
    await begun(gateways, ours, first)
    await ours.until(lambda: led_to(cluster, ours) == {first}, "its Service to lead to the new gateway")
    await asyncio.sleep(RULES_S)
    await load.run(40.0, 1.0)
    assert load.lost == []
    assert await asyncio.to_thread(gateways.answered) == 40


@pytest.mark.usefixtures("service")
async def test_a_revision_may_ask_for_batches_while_it_serves_and_for_none_again_without_a_lost_request(
    cluster: Cluster, namespace: str, answer_image: str, gateways: Gateways
) -> None:
    gateway = ADDRESSES[0]
    ours = Ksvc(cluster, namespace, answer_image, {ANNOTATION + "min-scale": "1", ANNOTATION + "max-scale": "1"})
    await ours.ready()
    await begun(gateways, ours, gateway)

    def annotate(annotations: dict[str, Any]) -> None:
        patch = {"metadata": {"annotations": annotations}}
        cluster.custom.patch_namespaced_custom_object(*SERVING, namespace, "revisions", ours.revision, patch)

    load = ours.load()
    calling = asyncio.create_task(load.run(20.0, 15.0))
    await asyncio.to_thread(annotate, BATCHES)
    await ours.until(lambda: led_to(cluster, ours) == {gateway}, "its Service to lead to the gateway")
    await asyncio.sleep(1.0)
    await asyncio.to_thread(annotate, dict.fromkeys(BATCHES))
    elsewhere = await asyncio.to_thread(activators, cluster)
    await ours.until(
        lambda: gateway not in led_to(cluster, ours) and led_to(cluster, ours) <= elsewhere | pods_of(cluster, ours),
        "its Service to lead where Knative says",
    )
    await calling
    assert load.lost == []
    assert await asyncio.to_thread(gateways.answered) > 0


class Routed(Ksvc):
    """A ksvc of the ingress class of `tests.cluster.envoy`, which is called by its host."""

    async def ready(self) -> float:
        """Create it; how long it took until it was ready, which the ingress says."""
        self.body["metadata"]["annotations"] = {"networking.knative.dev/ingress-class": envoy.CLASS}
        custom = self.cluster.custom
        await asyncio.to_thread(custom.create_namespaced_custom_object, *SERVING, self.namespace, "services", self.body)  # type: ignore[call-arg]

        def is_ready() -> bool:
            found: dict[str, Any] = custom.get_namespaced_custom_object(*SERVING, self.namespace, "services", "ours")
            self.revision = found.get("status", {}).get("latestReadyRevisionName", "")
            return condition(found) == "True"

        return await self.until(is_ready, "the ksvc to be Ready")

    def load(self) -> Load:
        return Load(f"http://{INGRESS_ADDRESS}/", {"Host": f"ours.{self.namespace}.svc.cluster.local"})


@pytest.mark.usefixtures("service")
async def test_a_revision_batches_behind_an_ingress_that_knows_nothing_of_us(
    cluster: Cluster, namespace: str, answer_image: str, gateways: Gateways, tmp_path: Path
) -> None:
    """Envoy, by routes and endpoints as Knative's ingress controllers write them; nothing but annotations of the ksvc is ours."""
    try:
        envoy.program()
    except CannotBeHad as reason:
        pytest.skip(str(reason))
    first, second = ADDRESSES
    ours = Routed(cluster, namespace, answer_image, {ANNOTATION + "window": "6s", ANNOTATION + "max-scale": "2", **BATCHES})
    await begun(gateways, ours, first, second)
    (tmp_path / "envoy").mkdir()
    with envoy.ingress(cluster, tmp_path / "envoy", INGRESS_ADDRESS):
        # The gateway answers the ingress's probe, or it would not be Ready.
        await ours.ready()
        await ours.until(lambda: led_to(cluster, ours) == {first, second}, "its Service to lead to both gateways")
        await asyncio.sleep(RULES_S)
        load, before = ours.load(), await asyncio.to_thread(gateways.answered)
        await load.run(40.0, 3.0)
        assert load.lost == []
        assert await asyncio.to_thread(gateways.answered) - before == load.sent

        await ours.until(lambda: ours.replicas() == 0, "no pods")
        await load.run(40.0, 0.5)
        assert load.lost == []

        # A gateway leaves as on an upgrade while requests come: it is not ready any more, and ends a while later.
        calling = asyncio.create_task(load.run(40.0, 6.0))
        await asyncio.to_thread(gateways.ready, first, ready=False)
        await ours.until(lambda: led_to(cluster, ours) == {second}, "its Service to lead to the other gateway")
        await asyncio.sleep(2 * RULES_S)
        await asyncio.to_thread(gateways.kill, first)
        await calling
        assert load.lost == []

        # Without any it is served as Knative serves it.
        calling = asyncio.create_task(load.run(40.0, 6.0))
        await asyncio.to_thread(gateways.ready, second, ready=False)
        await ours.until(lambda: second not in led_to(cluster, ours), "its Service to lead past the gateways")
        await asyncio.sleep(2 * RULES_S)
        await asyncio.to_thread(gateways.kill, second)
        await calling
        assert load.lost == []
