"""Batches on a cluster with Knative: a ksvc of our classes, HAProxy, the gateway, queue-proxies and pods of a real image.

Both classes and the gateway are processes of this one, and reach pods from there; Knative is as it is installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from deploy.test_cluster import models, recipes, settings
from deploy.test_cluster.clusters import Cluster
from deploy.test_cluster.phases import CannotBeHad, Phases
from deploy.test_cluster.routes import SERVING, condition
from gnomon_cli.knative import KnativeOptions, KnativeService
from gnomon_cli.knative_gateway import KnativeGateway, KnativeGatewayOptions
from gnomon_platforms.knative.ingress.backends import Endpoint, GatewayPlace
from gnomon_platforms.knative.scaling.autoscaler import AutoscalerOptions
from tests.kubernetes.knative_batching.conftest import ENV, SECRET
from tests.kubernetes.knative_ingress.conftest import Ingresses, controller, haproxy

__all__ = ["haproxy"]

pytestmark = pytest.mark.timeout(900)  # a busy machine takes its time to start pods
SYSTEM = "knative-serving"
K = "autoscaling.knative.dev/"
LIMIT_S = 240.0

_LOG = logging.getLogger(__name__)


@pytest.fixture
def image(cluster: Cluster, haproxy: None) -> str:
    if not Path("/sys/class/net", settings.INTERFACE).exists():
        pytest.skip("pods of this cluster have no way from here: make cluster boots one that has")
    config = cluster.core.read_namespaced_config_map("config-observability", SYSTEM).data or {}
    if config.get("metrics-protocol") != "prometheus":
        pytest.skip("its activators do not tell what waits at them")
    if named := os.environ.get("GNOMON_TEST_FUNCTION_IMAGE"):
        return named
    running = models.ours(cluster)
    if running is None:
        pytest.skip("this cluster has no image of ours: GNOMON_TEST_FUNCTION_IMAGE")
    try:
        [archive] = recipes.archives(settings.folders(), Phases(silent=True), ["gnomon-echo"])
        models.put(running, archive)
    except CannotBeHad as reason:
        pytest.skip(str(reason))
    return settings.image("gnomon-echo")


@contextlib.asynccontextmanager
async def parts(cluster: Cluster, namespace: str) -> AsyncIterator[tuple[KnativeGateway, Ingresses]]:
    """The gateway, both classes, and a pod's object by which the autoscaler finds the gateway."""
    name = f"gateway-{secrets.token_hex(3)}"
    gateway = KnativeGateway(
        KnativeGatewayOptions(kubeconfig=cluster.kubeconfig, namespace=namespace, host=settings.NODE_ADDRESS), Random(3)
    )
    await gateway.start()
    scaled = AutoscalerOptions(namespace=namespace)
    autoscaler = KnativeService(
        KnativeOptions(kubeconfig=cluster.kubeconfig, scaled=scaled, lease_namespace=namespace), Random(1)
    )
    labels = {"app.kubernetes.io/name": "gnomon", "app.kubernetes.io/component": "knative-gateway"}
    spec = {"containers": [{"name": "gateway", "image": "dev.local/none:v1"}], "nodeSelector": {"nobody": "here"}}
    cluster.core.create_namespaced_pod(SYSTEM, {"metadata": {"name": name, "labels": labels}, "spec": spec})
    ready = {"phase": "Running", "podIP": settings.NODE_ADDRESS, "conditions": [{"type": "Ready", "status": "True"}]}
    cluster.core.patch_namespaced_pod_status(name, SYSTEM, {"status": ready})
    place = GatewayPlace(Endpoint(settings.NODE_ADDRESS, gateway.server.port))
    try:
        await autoscaler.start()
        async with controller(cluster, namespace, gateway=place) as ingresses:
            yield gateway, ingresses
    finally:
        await autoscaler.stop()
        await gateway.stop()
        cluster.core.delete_namespaced_pod(name, SYSTEM, grace_period_seconds=0)


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


async def test_a_ksvc_gets_batches_and_goes_to_zero_and_back_without_a_lost_request(
    cluster: Cluster, namespace: str, image: str, caplog: pytest.LogCaptureFixture
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

    async with parts(cluster, namespace) as (gateway, ingresses):
        cluster.custom.create_namespaced_custom_object(*services, ksvc(image, ingresses.ingress_class))
        _LOG.info("created to Ready: %.1f s", await until(ready, "the ksvc to be Ready"))
        connector = aiohttp.UnixConnector(ingresses.binds.local.removeprefix("unix@"), limit=0)
        timeout = aiohttp.ClientTimeout(total=LIMIT_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as user:

            async def call(body: bytes) -> tuple[int, bytes]:
                async with user.post(f"http://echo.{namespace}.svc.cluster.local/", data=body) as answer:
                    return answer.status, await answer.read()

            async def calls(count: int) -> None:
                bodies = [b"%d" % number for number in range(count)]
                answers = await asyncio.gather(*(call(body) for body in bodies))
                assert list(answers) == [(200, body) for body in bodies]

            for _ in range(4):
                await calls(64)
            metrics = gateway.manager.runtimes()[0].metrics
            assert metrics.batch_sizes.total > 4 * sum(metrics.batch_sizes.counts), "mostly batches of more than four"
            assert "one by one" not in caplog.text, "pods were sent batches as such"

            for _ in range(2):
                _LOG.info("to zero: %.1f s", await until(lambda: replicas() == 0, "no pods"))
                began_s = time.monotonic()
                await calls(20)
                _LOG.info("from zero: %.1f s", time.monotonic() - began_s)
        await asyncio.to_thread(cluster.custom.delete_namespaced_custom_object, *services, "echo")
