"""A service of Knative with its stock autoscaler, reached through our ingress class."""

from __future__ import annotations

import asyncio
import collections
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kubernetes import client

from deploy.test_cluster.clusters import Cluster
from deploy.test_cluster.settings import INTERFACE
from tests.kubernetes.knative_ingress.conftest import controller

SERVING = ("serving.knative.dev", "v1")
LIMIT_S = 180.0


@pytest.fixture(autouse=True)
def reachable(cluster: Cluster, haproxy: None) -> None:
    """HAProxy runs beside the tests, and reaches pods from there."""
    if not Path("/sys/class/net", INTERFACE).exists():
        pytest.skip("pods of this cluster have no way from here: make cluster boots one that has")
    try:
        cluster.core.read_namespace("knative-serving")
    except client.ApiException as error:
        if error.status != 404:
            raise
        pytest.skip("this cluster has no Knative")


def service(image: str, answer: str, ingress_class: str) -> dict[str, Any]:
    container = {"image": image, "env": [{"name": "ANSWER", "value": answer}]}
    return {
        "apiVersion": "/".join(SERVING),
        "kind": "Service",
        "metadata": {"name": "answers", "annotations": {"networking.knative.dev/ingress-class": ingress_class}},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


class Flow:
    """Requests one after the other, on one connection, and what became of them."""

    def __init__(self, client: aiohttp.ClientSession, url: str, *, pause_s: float = 0.0) -> None:
        self._client, self._url, self._pause_s = client, url, pause_s
        self.answers: collections.Counter[str] = collections.Counter()
        self._told = asyncio.Event()

    async def run(self) -> None:
        while True:
            try:
                async with self._client.post(self._url, data=b"x") as answer:
                    said = await answer.text() if answer.status == 200 else str(answer.status)
            except aiohttp.ClientError as error:
                said = repr(error)
            self.answers[said] += 1
            self._told.set()
            await asyncio.sleep(self._pause_s)

    async def until(self, said: str, count: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            while self.answers[said] < count:
                self._told.clear()
                await self._told.wait()


async def test_a_service_is_ready_and_is_rolled_out_without_a_lost_request(
    cluster: Cluster, namespace: str, answer_image: str
) -> None:
    services = (*SERVING, namespace, "services")
    async with controller(cluster, namespace) as ours:
        first = service(answer_image, "first", ours.ingress_class)
        await asyncio.to_thread(cluster.custom.create_namespaced_custom_object, *services, first)

        def ready() -> bool:
            found = cluster.custom.get_namespaced_custom_object(*services, "answers")
            conditions = found.get("status", {}).get("conditions", [])
            return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

        await ours.until(ready, "the service to be Ready")
        url = f"http://answers.{namespace}.svc.cluster.local/"
        connector = aiohttp.UnixConnector(ours.binds.local.removeprefix("unix@"))
        async with aiohttp.ClientSession(connector=connector) as session:
            flow = Flow(session, url)
            flowing = asyncio.create_task(flow.run())
            await flow.until("first", 50)
            second = service(answer_image, "second", ours.ingress_class)
            await asyncio.to_thread(cluster.custom.patch_namespaced_custom_object, *services, "answers", second)
            await flow.until("second", 50)
            flowing.cancel()
        assert set(flow.answers) == {"first", "second"}
        await asyncio.to_thread(cluster.custom.delete_namespaced_custom_object, *services, "answers")
