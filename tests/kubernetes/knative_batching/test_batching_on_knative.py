"""Batches on a cluster with Knative: a ksvc of our classes, HAProxy, the gateway's pods, queue-proxies and pods of a real image.

The gateway is installed as it is, from deploy/knative/gateway. Both classes are processes of this one, and reach pods from there;
Knative is as it is installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from deploy.test_cluster import build, models, settings
from deploy.test_cluster.client import Kubectl
from deploy.test_cluster.clusters import Cluster
from deploy.test_cluster.phases import CannotBeHad
from deploy.test_cluster.routes import SERVING, condition
from gnomon_cli.knative import KnativeOptions, KnativeService
from gnomon_platforms.knative.ingress.__main__ import gateway_place
from gnomon_platforms.knative.scaling.autoscaler import AutoscalerOptions
from tests.kubernetes.coordinator_node.test_driver_on_the_cluster import inside
from tests.kubernetes.installation.forms import overlaid
from tests.kubernetes.knative_batching.conftest import ENV, SECRET
from tests.kubernetes.knative_batching.gateways import SYSTEM, Gateways
from tests.kubernetes.knative_ingress.conftest import Ingresses, controller, haproxy

__all__ = ["haproxy"]

pytestmark = pytest.mark.timeout(900)  # a busy machine takes its time to start pods
GATEWAY = "gnomon-gateway"
K = "autoscaling.knative.dev/"
LIMIT_S = 240.0
CALLERS = 16

_LOG = logging.getLogger(__name__)


@pytest.fixture
def images(cluster: Cluster, haproxy: None) -> tuple[str, str]:
    """A function's that echoes, and the gateway's."""
    if not Path("/sys/class/net", settings.INTERFACE).exists():
        pytest.skip("pods of this cluster have no way from here: make cluster boots one that has")
    config = cluster.core.read_namespaced_config_map("config-observability", SYSTEM).data or {}
    if config.get("metrics-protocol") != "prometheus":
        pytest.skip("its activators do not tell what waits at them")
    try:
        function = models.small(cluster, "gnomon-echo", "GNOMON_TEST_FUNCTION_IMAGE")
        return function, models.small(cluster, "gnomon-gateway", "GNOMON_GATEWAY_IMAGE")
    except CannotBeHad as reason:
        pytest.skip(str(reason))


@pytest.fixture
def gateways(cluster: Cluster, compiled: build.Programs, images: tuple[str, str], tmp_path: Path) -> Iterator[Gateways]:
    """The gateway as an operator installs it; gone afterwards."""
    if any(one.metadata.name == GATEWAY for one in cluster.apps.list_namespaced_deployment(SYSTEM).items):
        pytest.skip("a gateway is installed on this cluster already")
    kubectl = Kubectl(compiled.folder / "kubectl", cluster.kubeconfig)
    overlay = overlaid(tmp_path, "knative/gateway", {"gnomon-gateway": images[1]})
    try:
        kubectl("apply", "-k", str(overlay))
        kubectl("rollout", "status", f"deployment/{GATEWAY}", "-n", SYSTEM, f"--timeout={LIMIT_S:.0f}s", limit_s=LIMIT_S + 10)
        yield Gateways(cluster)
    finally:
        kubectl("delete", "-k", str(overlay), "--ignore-not-found", "--timeout=180s", limit_s=200)


@contextlib.asynccontextmanager
async def classes(cluster: Cluster, namespace: str) -> AsyncIterator[Ingresses]:
    """Both classes. The ingress leads where its manifest says."""
    scaled = AutoscalerOptions(namespace=namespace)
    autoscaler = KnativeService(
        KnativeOptions(kubeconfig=cluster.kubeconfig, scaled=scaled, lease_namespace=namespace), Random(1)
    )
    try:
        await autoscaler.start()
        async with controller(cluster, namespace, gateway=gateway_place(f"{GATEWAY}:80", SYSTEM)) as ingresses:
            yield ingresses
    finally:
        await autoscaler.stop()


def ksvc(image: str, ingress_class: str) -> dict[str, Any]:
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
        "metadata": {"name": "echo", "annotations": {"networking.knative.dev/ingress-class": ingress_class}},
        "spec": {"template": {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}},
    }


async def until(true: Any, what: str) -> float:
    began_s = time.monotonic()
    while not await asyncio.to_thread(true):
        assert time.monotonic() - began_s < LIMIT_S, f"after {LIMIT_S:.0f} s still waiting for {what}"
        await asyncio.sleep(0.1)
    return time.monotonic() - began_s


class Users:
    """Whoever calls the function by way of the ingress. An answer is right that is what was sent."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url
        self._ended = False
        self.answered = 0
        self.lost: Counter[int] = Counter()
        """By caller, the answers that were not right."""

    async def once(self, body: bytes) -> tuple[int, bytes]:
        try:
            async with self._session.post(self._url, data=body) as answer:
                return answer.status, await answer.read()
        except aiohttp.ClientError as error:
            return 0, repr(error).encode()

    async def at_once(self, count: int) -> None:
        bodies = [b"%d" % number for number in range(count)]
        answers = await asyncio.gather(*map(self.once, bodies))
        assert list(answers) == [(200, body) for body in bodies]

    async def keep_asking(self) -> None:
        """Sixteen, each again as soon as it has its answer, until they are told to end."""
        await asyncio.gather(*(self._ask_on(number) for number in range(CALLERS)))

    def end(self) -> None:
        self._ended = True

    async def more(self, count: int) -> None:
        goal = self.answered + count
        await until(lambda: self.answered >= goal, f"{count} more answers")

    async def _ask_on(self, caller: int) -> None:
        number = 0
        while not self._ended:
            number += 1
            body = b"%d/%d" % (caller, number)
            if await self.once(body) == (200, body):
                self.answered += 1
            else:
                self.lost[caller] += 1


async def replaced(gateways: Gateways, users: Users) -> None:
    """One of both pods is drained away, the other one's process killed, while everybody asks."""
    calling = asyncio.create_task(users.keep_asking())
    await users.more(100)
    first, other = await asyncio.to_thread(gateways.pods)
    await until(lambda: gateways.evict(first), "the budget to know of both")
    assert not await asyncio.to_thread(gateways.evict, other), "one of two has to stay"
    await until(lambda: not gateways.there(first.metadata.name) and gateways.both_ready(), "another one in its place")
    await users.more(100)
    assert not users.lost, "nobody noticed"

    process = await asyncio.to_thread(inside, other)
    os.kill(int(process.parent.name), signal.SIGKILL)
    await until(lambda: gateways.restarts(other.metadata.name) == 1 and gateways.both_ready(), "it to be started again")
    await users.more(100)
    users.end()
    await calling
    assert set(users.lost.values()) <= {1}, "what the killed one held, and nothing else"


async def test_a_ksvc_gets_batches_while_gateways_come_and_go_and_goes_to_zero_and_back_without_a_lost_request(
    cluster: Cluster, namespace: str, images: tuple[str, str], gateways: Gateways
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

    async with classes(cluster, namespace) as ingresses:
        cluster.custom.create_namespaced_custom_object(*services, ksvc(images[0], ingresses.ingress_class))
        _LOG.info("created to Ready: %.1f s", await until(ready, "the ksvc to be Ready"))
        connector = aiohttp.UnixConnector(ingresses.binds.local.removeprefix("unix@"), limit=0)
        timeout = aiohttp.ClientTimeout(total=LIMIT_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            users = Users(session, f"http://echo.{namespace}.svc.cluster.local/")
            for _ in range(4):
                await users.at_once(64)
            figures = await asyncio.to_thread(gateways.figures)
            assert figures["gnomon_batch_size_sum"] > 4 * figures["gnomon_batch_size_count"], "mostly batches of more than four"
            assert "one by one" not in await asyncio.to_thread(gateways.logs), "pods were sent batches as such"
            await replaced(gateways, users)
            _LOG.info("%d answered while gateways came and went, %d lost", users.answered, users.lost.total())

            _LOG.info("to zero: %.1f s", await until(lambda: replicas() == 0, "no pods"))
            began_s = time.monotonic()
            await users.at_once(20)
            _LOG.info("from zero: %.1f s", time.monotonic() - began_s)
        await asyncio.to_thread(cluster.custom.delete_namespaced_custom_object, *services, "echo")
