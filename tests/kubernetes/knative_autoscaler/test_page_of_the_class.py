"""The class's HTTP pages: the present Bodies, and metrics of its connection to the API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.cluster.client import Cluster
from tests.kubernetes.knative_autoscaler.played_knative import REVISION, PlayedKnative
from tests.kubernetes.knative_autoscaler.test_reconciler import QUICK, K, running, until


@pytest.fixture
async def user() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_page_names_the_node_of_each_body(
    knative_kinds: Cluster, knative: PlayedKnative, user: aiohttp.ClientSession
) -> None:
    async with running(knative_kinds, knative) as service:
        knative.revision("f-00001", {**QUICK, K + "min-scale": "2"}, replicas=2)
        await until(lambda: knative.condition("f-00001", "Ready")["status"] == "True", "Ready")
        url = f"http://127.0.0.1:{service.port}/instances/{knative.namespace}/"

        async def page() -> list[dict[str, object]]:
            async with user.get(url + "f-00001") as answer:
                found: list[dict[str, object]] = json.loads(await answer.text())
                return found

        while [row["state"] for row in await page()] != ["ready", "ready"]:  # noqa: ASYNC110 - nobody tells when
            await asyncio.sleep(0.05)
        bodies = await page()
        pods = knative_kinds.core.list_namespaced_pod(knative.namespace, label_selector=f"{REVISION}=f-00001").items
        assert {body["pod"]: body["node"] for body in bodies} == {pod.metadata.name: pod.spec.node_name for pod in pods}
        assert {(body["kind"], json.dumps(body["shadows"])) for body in bodies} == {("body", "[]")}
        async with user.get(url + "another") as answer:
            assert answer.status == 404
        # As decisions, they are no business of whoever can reach the port.
        async with user.get(url + "f-00001", headers={"Host": "evil.example"}) as answer:
            assert answer.status == 403


async def test_metrics_report_requests_to_the_api_server(
    knative_kinds: Cluster, knative: PlayedKnative, user: aiohttp.ClientSession
) -> None:
    async with running(knative_kinds, knative) as service:
        knative.revision("f-00001", {**QUICK, K + "min-scale": "2"})
        await until(lambda: knative.replicas("f-00001") == 2, "two pods")
        async with user.get(f"http://127.0.0.1:{service.port}/metrics") as answer:
            lines = (await answer.text()).splitlines()
    assert "gnomon_leading 1.0" in lines
    figures = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    assert figures["gnomon_kubernetes_silence_seconds"] < 90.0
    scaled = 'gnomon_kubernetes_requests_total{outcome="200",resource="deployments/scale",verb="PATCH"}'
    assert figures[scaled] >= 1.0
