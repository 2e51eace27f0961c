"""The class `gnomon` on a real API server: what it writes, its pages, and that it goes on after anything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from random import Random
from typing import Any, cast

import aiohttp
import pytest
from kubernetes import client

from gnomon_core.functions import FunctionKey
from gnomon_platforms.knative.autoscaler.cluster import AutoscalerOptions
from gnomon_platforms.knative.autoscaler.shadows import ModelOptions
from gnomon_platforms.kubernetes import conflicting_autoscalers
from gnomon_platforms.kubernetes import events as recorded
from gnomon_platforms.kubernetes.client import connect
from gnomon_platforms.kubernetes.conflicting_autoscalers import ConflictingAutoscalers
from gnomon_server.knative_autoscaler import KnativeOptions, KnativeService
from tests.cluster.client import Cluster
from tests.kubernetes.kinds import SCALED_OBJECTS, conflicting_autoscaler, define
from tests.kubernetes.knative_autoscaler.played_knative import PA, REVISION, SERVING, SKS, PlayedKnative

K = "autoscaling.knative.dev/"
QUICK = {K + "window": "4s", K + "target": "10", K + "target-burst-capacity": "-1", K + "panic-threshold-percentage": "1000"}
"""With activators always in the way, there is nobody to be asked: there are no addresses of Services here."""
PATIENCE_S = 90.0


@contextlib.asynccontextmanager
async def running(
    cluster: Cluster, knative: PlayedKnative, models: ModelOptions | None = None, **options: Any
) -> AsyncIterator[KnativeService]:
    scaled = AutoscalerOptions(namespace=knative.namespace, system_namespace=knative.system, models=models)
    options.setdefault("lease_namespace", knative.system)
    service = KnativeService(KnativeOptions(kubeconfig=cluster.kubeconfig, scaled=scaled, **options), Random(7))
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


async def until(true: Callable[[], Any], what: str) -> float:
    """Wait for what the API server says; how long it took."""
    began_s = time.monotonic()
    while not await asyncio.to_thread(true):
        assert time.monotonic() - began_s < PATIENCE_S, f"still waiting for {what}"
        await asyncio.sleep(0.05)
    return time.monotonic() - began_s


def scales(knative: PlayedKnative, name: str) -> tuple[int | None, int | None]:
    """How many pods are wanted, and ready, as its status says."""
    status = knative.pa(name)["status"]
    return status.get("desiredScale"), status.get("actualScale")


def grace(cluster: Cluster, knative: PlayedKnative, **data: str) -> None:
    named = {"scale-to-zero-grace-period": "1s", **{key.replace("_", "-"): text for key, text in data.items()}}
    cluster.core.create_namespaced_config_map(knative.system, {"metadata": {"name": "config-autoscaler"}, "data": named})


async def test_a_revision_becomes_ready_follows_its_load_and_comes_back_from_zero(
    knative_kinds: Cluster, knative: PlayedKnative
) -> None:
    grace(knative_kinds, knative)
    async with running(knative_kinds, knative) as service:
        knative.revision("f-00001", QUICK)
        await until(lambda: knative.condition("f-00001", "Ready")["status"] == "True", "Ready")
        made = knative.sks("f-00001")
        assert made is not None
        pa = knative.pa("f-00001")
        [owner] = made["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (pa["metadata"]["uid"], True, True)
        assert made["metadata"]["labels"] == pa["metadata"]["labels"]
        assert made["spec"]["objectRef"] == pa["spec"]["scaleTargetRef"]
        assert (pa["status"]["serviceName"], pa["status"]["metricsServiceName"]) == ("f-00001", "f-00001-private")

        # 30 requests at 70 % of 10 each: 5 pods.
        knative.load["f-00001"] = 30.0
        await until(lambda: scales(knative, "f-00001") == (5, 5), "five pods")
        assert "in the system" in knative.condition("f-00001", "ScalingPolicy")["message"]

        knative.load["f-00001"] = 0.0
        await until(lambda: knative.replicas("f-00001") == 0, "no pods")
        assert knative.condition("f-00001", "Active")["reason"] == "NoTraffic"
        assert knative.condition("f-00001", "ScaleTargetInitialized")["status"] == "True"

        knative.queued["f-00001"] = 1
        await until(lambda: knative.replicas("f-00001") == 1, "a pod for what waits")
        knative.queued["f-00001"] = 0
        knative.load["f-00001"] = 1.0
        await until(lambda: knative.condition("f-00001", "Active")["status"] == "True", "Active")
        # The newest first: one again, none, five.
        decided = [decision.desired for decision in service.autoscaler.decisions(f"f-00001.{knative.namespace}")]
        assert decided[0] == 1
        assert decided.index(0) < decided.index(5)


async def test_decisions_are_readable_with_their_reasons(knative_kinds: Cluster, knative: PlayedKnative) -> None:
    async with running(knative_kinds, knative) as service, aiohttp.ClientSession() as session:
        knative.revision("f-00001", {**QUICK, K + "min-scale": "1"})
        await until(lambda: knative.condition("f-00001", "Ready")["status"] == "True", "Ready")
        knative.load["f-00001"] = 20.0
        await until(lambda: scales(knative, "f-00001") == (3, 3), "three pods")
        url = f"http://127.0.0.1:{service.port}"

        async def get(path: str, host: str = "") -> tuple[int, str]:
            async with session.get(url + path, headers={"Host": host} if host else {}) as answer:
                return answer.status, await answer.text()

        assert await get("/healthz") == (200, "OK")
        status, text = await get(f"/decisions/{knative.namespace}/f-00001")
        assert status == 200
        assert any((load["desired"] or 0) >= 3 and "in the system" in load["reason"] for load in json.loads(text))
        assert f"f-00001.{knative.namespace}" in json.loads((await get("/decisions"))[1])
        # A page of somebody else's must not read it by a name that leads here.
        assert (await get("/decisions", "evil.example"))[0] == 403
        figures = (await get("/metrics"))[1]
        assert f'gnomon_knative_ready_pods{{namespace="{knative.namespace}",revision="f-00001"}}' in figures
        assert "gnomon_leading 1.0" in figures


async def test_pods_that_somebody_else_counts_are_left_alone_until_they_are_not(
    knative_kinds: Cluster, knative: PlayedKnative
) -> None:
    name, autoscalers = f"f-00001.{knative.namespace}", client.AutoscalingV2Api(knative_kinds.api)

    def refused(service: KnativeService) -> bool:
        return any("foreign_autoscaler" in decision.error for decision in service.autoscaler.decisions(name))

    async with running(knative_kinds, knative) as service:
        knative.revision("f-00001", {**QUICK, K + "min-scale": "1"})
        await until(lambda: knative.condition("f-00001", "Ready")["status"] == "True", "Ready")
        theirs = cast("Any", conflicting_autoscaler("f-00001-deployment"))
        await asyncio.to_thread(autoscalers.create_namespaced_horizontal_pod_autoscaler, knative.namespace, theirs)
        await until(
            lambda: knative.condition("f-00001", "ScalingPolicy").get("reason") == "ForeignAutoscaler", "it has been seen"
        )
        scale = knative_kinds.apps.patch_namespaced_deployment_scale
        await asyncio.to_thread(scale, "f-00001-deployment", knative.namespace, {"spec": {"replicas": 2}})
        await until(lambda: scales(knative, "f-00001") == (2, 2), "theirs are told of")
        knative.load["f-00001"] = 30.0
        await until(lambda: refused(service), "more are wished for")
        assert knative.replicas("f-00001") == 2
        [event] = await asyncio.to_thread(lambda: knative_kinds.core.list_namespaced_event(knative.namespace).items)
        assert (event.reason, event.involved_object.name) == ("ForeignAutoscaler", "f-00001-deployment")
        await asyncio.to_thread(autoscalers.delete_namespaced_horizontal_pod_autoscaler, "theirs", knative.namespace)
        await until(lambda: scales(knative, "f-00001") == (5, 5), "five pods")


async def test_other_classes_are_left_alone(knative_kinds: Cluster, knative: PlayedKnative) -> None:
    async with running(knative_kinds, knative) as service:
        knative.revision("theirs-00001", {K + "class": "kpa.autoscaling.knative.dev"})
        knative.revision("ours-00001", QUICK)
        await until(lambda: knative.condition("ours-00001", "Ready")["status"] == "True", "ours to be Ready")
        assert knative.sks("theirs-00001") is None
        assert "status" not in knative.pa("theirs-00001")
        # A Revision that is given to another class is let go as it is.
        change = {"metadata": {"annotations": {K + "class": "kpa.autoscaling.knative.dev"}}}
        custom = knative_kinds.custom
        custom.patch_namespaced_custom_object(*PA, knative.namespace, "podautoscalers", "ours-00001", change)
        await until(lambda: not service.platform.functions(), "nothing to look after")
        before = knative.pa("ours-00001")["metadata"]["resourceVersion"]
        knative.load["ours-00001"] = 100.0
        await asyncio.sleep(3.0)
        assert knative.replicas("ours-00001") == 1
        assert knative.pa("ours-00001")["metadata"]["resourceVersion"] == before


async def test_new_leader_keeps_instances_until_it_knows_the_load(knative_kinds: Cluster, knative: PlayedKnative) -> None:
    grace(knative_kinds, knative)
    async with running(knative_kinds, knative):
        knative.revision("f-00001", QUICK)
        await until(lambda: knative.condition("f-00001", "Ready")["status"] == "True", "Ready")
        knative.load["f-00001"] = 30.0
        await until(lambda: scales(knative, "f-00001") == (5, 5), "five pods")
    knative.load["f-00001"] = 10.0
    async with running(knative_kinds, knative):
        began_s = time.monotonic()
        await until(lambda: knative.replicas("f-00001") < 5, "fewer pods")
        # The window of 4 s has to be seen first.
        assert time.monotonic() - began_s >= 3.5
        await until(lambda: knative.replicas("f-00001") == 2, "two pods")


async def test_new_leader_continues_a_scale_to_zero(knative_kinds: Cluster, knative: PlayedKnative) -> None:
    grace(knative_kinds, knative, scale_to_zero_pod_retention_period="3s")
    async with running(knative_kinds, knative):
        knative.revision("f-00001", QUICK)
        await until(lambda: knative.condition("f-00001", "Ready")["status"] == "True", "Ready")
        await until(lambda: knative.condition("f-00001", "Active")["status"] == "False", "inactive")
        assert knative.replicas("f-00001") == 1
    async with running(knative_kinds, knative):
        await until(lambda: knative.replicas("f-00001") == 0, "no pods")
        assert knative.condition("f-00001", "Active")["status"] == "False"


async def test_a_policy_is_changed_while_it_serves(knative_kinds: Cluster, knative: PlayedKnative) -> None:
    async with running(knative_kinds, knative):
        knative.revision("f-00001", {**QUICK, K + "min-scale": "2"}, replicas=2)
        await until(lambda: knative.condition("f-00001", "Ready")["status"] == "True", "Ready")
        knative.load["f-00001"] = 20.0
        await until(lambda: knative.replicas("f-00001") == 3, "three pods by kpa")

        def annotate(policy: str) -> None:
            change = {"metadata": {"annotations": {"gnomon/autoscaler": policy}}}
            knative_kinds.custom.patch_namespaced_custom_object(*SERVING, knative.namespace, "revisions", "f-00001", change)

        annotate("fixed")
        await until(lambda: knative.replicas("f-00001") == 2, "the minimum by fixed")
        await until(lambda: knative.condition("f-00001", "ScalingPolicy")["reason"] == "fixed", "the condition")
        annotate("magic")
        await until(lambda: "magic" in knative.condition("f-00001", "ScalingPolicy")["message"], "what is wrong with it")
        assert knative.condition("f-00001", "Ready")["status"] == "True"


async def test_somebody_elses_service_is_said_and_left_alone(knative_kinds: Cluster, knative: PlayedKnative) -> None:
    async with running(knative_kinds, knative):
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "f-00001-deployment"}
        theirs = {
            "apiVersion": "/".join(SKS),
            "kind": "ServerlessService",
            "metadata": {"name": "f-00001"},
            "spec": {"mode": "Serve", "objectRef": target, "protocolType": "http1"},
        }
        custom = knative_kinds.custom
        custom.create_namespaced_custom_object(*SKS, knative.namespace, "serverlessservices", theirs)
        knative.revision("f-00001", QUICK)
        await until(lambda: knative.condition("f-00001", "Active").get("reason") == "NotOwned", "the reason")
        kept = knative.sks("f-00001")
        assert kept is not None
        assert (kept["spec"]["mode"], kept["metadata"].get("ownerReferences")) == ("Serve", None)
        # When it has gone, ours takes its place.
        custom.delete_namespaced_custom_object(*SKS, knative.namespace, "serverlessservices", "f-00001")
        await until(lambda: knative.condition("f-00001", "Ready")["status"] == "True", "Ready")


async def test_others_who_write_at_the_same_time_lose_nothing(knative_kinds: Cluster, knative: PlayedKnative) -> None:
    stop = asyncio.Event()
    custom = knative_kinds.custom

    async def annotate() -> int:
        number = 0
        while not stop.is_set():
            number += 1
            change = {"metadata": {"annotations": {"somebody/else": str(number)}}}
            for kind, plural in ((PA, "podautoscalers"), (SKS, "serverlessservices")):
                patch = partial(custom.patch_namespaced_custom_object, *kind, knative.namespace, plural, "f-00001", change)
                with contextlib.suppress(client.ApiException):
                    await asyncio.to_thread(patch)
        return number

    async with running(knative_kinds, knative):
        knative.revision("f-00001", QUICK)
        others = asyncio.create_task(annotate())
        await until(lambda: knative.condition("f-00001", "Ready")["status"] == "True", "Ready")
        knative.load["f-00001"] = 20.0
        await until(lambda: scales(knative, "f-00001") == (3, 3), "three pods")
        stop.set()
        number = await others
        assert knative.pa("f-00001")["metadata"]["annotations"]["somebody/else"] == str(number)
        assert number > 10


async def test_of_two_one_writes_and_the_other_takes_over(knative_kinds: Cluster, knative: PlayedKnative) -> None:
    knative.revision("f-00001", {**QUICK, K + "min-scale": "1"})
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(running(knative_kinds, knative))
        await until(lambda: knative.condition("f-00001", "Ready")["status"] == "True", "Ready")
        entering = asyncio.create_task(stack.enter_async_context(running(knative_kinds, knative)))
        await asyncio.sleep(3.0)
        assert not entering.done()
        await first.stop()
        second = await entering
        knative.load["f-00001"] = 20.0
        await until(lambda: knative.replicas("f-00001") == 3, "three pods by the second")
        assert second.platform.functions() == [f"f-00001.{knative.namespace}"]
        # The stack must not stop them again, nor be collected, which ends its contexts, while the second one stops.
        stopped = stack.pop_all()
        await second.stop()
        del stopped


ONE_CORE: dict[str, Any] = {"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}


def sizes(cluster: Cluster, knative: PlayedKnative, name: str) -> dict[str, str]:
    """By pod, the cores that its container has now."""
    pods = cluster.core.list_namespaced_pod(knative.namespace, label_selector=f"{REVISION}={name}").items
    statuses = {pod.metadata.uid: (pod.status.container_statuses or [None])[0] for pod in pods}
    return {uid: status.resources.limits["cpu"] for uid, status in statuses.items() if status is not None}


async def test_pods_get_their_cores_before_they_are_ready_and_others_while_they_serve(
    knative_kinds: Cluster, knative: PlayedKnative
) -> None:
    knative.starts_s, soon_s = math.inf, knative.starts_s
    async with running(knative_kinds, knative):
        two = {**QUICK, K + "min-scale": "2", "gnomon/cores": "2"}
        knative.revision("f-00001", two, replicas=2, **ONE_CORE)
        await until(lambda: list(sizes(knative_kinds, knative, "f-00001").values()) == ["2", "2"], "two cores before it is ready")
        knative.starts_s = soon_s
        await until(lambda: knative.condition("f-00001", "Ready")["status"] == "True", "Ready")
        assert set(knative.cores_at_first.values()) == {"2"}
        before = sizes(knative_kinds, knative, "f-00001")
        assert list(before.values()) == ["2", "2"]

        def annotate(cores: str | None) -> None:
            change = {"metadata": {"annotations": {"gnomon/cores": cores}}}
            knative_kinds.custom.patch_namespaced_custom_object(*SERVING, knative.namespace, "revisions", "f-00001", change)

        annotate("3")
        # The same pods: nothing was restarted for it.
        await until(lambda: sizes(knative_kinds, knative, "f-00001") == dict.fromkeys(before, "3"), "three cores")
        annotate(None)
        await asyncio.sleep(1.0)
        assert sizes(knative_kinds, knative, "f-00001") == dict.fromkeys(before, "3"), "nobody has said less"


async def test_a_size_that_is_refused_costs_the_revision_nothing_else(knative_kinds: Cluster, knative: PlayedKnative) -> None:
    limits = {"limits": [{"type": "Container", "max": {"cpu": "2"}}]}
    knative_kinds.core.create_namespaced_limit_range(knative.namespace, {"metadata": {"name": "small"}, "spec": limits})
    async with running(knative_kinds, knative):
        knative.revision("f-00001", {**QUICK, "gnomon/cores": "4"}, **ONE_CORE)
        await until(lambda: knative.condition("f-00001", "Ready")["status"] == "True", "Ready")
        knative.load["f-00001"] = 20.0
        await until(lambda: scales(knative, "f-00001") == (3, 3), "three pods")
        assert set(sizes(knative_kinds, knative, "f-00001").values()) == {"1"}


async def test_a_policy_that_makes_shadows_is_told_what_it_lacks(knative_kinds: Cluster, knative: PlayedKnative) -> None:
    async with running(knative_kinds, knative):
        knative.revision("f-00001", {**QUICK, "gnomon/autoscaler": "asyfunc", "gnomon/model": "resnet50"})
        await until(lambda: knative.condition("f-00001", "Ready")["status"] == "True", "Ready")
        policy = knative.condition("f-00001", "ScalingPolicy")
        assert policy["reason"] == "kpa"
        assert "resnet50 has none here" in policy["message"]


KEDA = ("keda.sh", "v1alpha1")


async def test_kedas_objects_are_seen_that_were_not_known_of_when_we_started(
    own_plane: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflicting_autoscalers, "ASK_AGAIN_S", 0.2)
    own_plane.core.create_namespace({"metadata": {"name": "users"}})
    api, figlet = connect(own_plane.kubeconfig), FunctionKey("figlet", "users")
    watched = ConflictingAutoscalers(api, None, lambda _: None)
    await watched.start()
    try:
        await asyncio.to_thread(define, own_plane, SCALED_OBJECTS)
        theirs = {
            "apiVersion": "/".join(KEDA),
            "kind": "ScaledObject",
            "metadata": {"name": "theirs"},
            "spec": {"scaleTargetRef": {"name": "figlet"}},
        }
        await asyncio.to_thread(own_plane.custom.create_namespaced_custom_object, *KEDA, "users", "scaledobjects", theirs)  # type: ignore[call-arg]
        await until(lambda: watched.of(figlet) is not None, "it has been seen")
        extensions: Any = client.ApiextensionsV1Api(own_plane.api)
        await asyncio.to_thread(extensions.delete_custom_resource_definition, "scaledobjects.keda.sh")
        await until(lambda: watched.of(figlet) is None, "it has gone with its kind")
    finally:
        await watched.stop()
        api.close()


async def test_an_event_that_the_cluster_has_forgotten_is_made_again(
    knative_kinds: Cluster, knative: PlayedKnative, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflicting_autoscalers, "ASK_AGAIN_S", 0.2)
    monkeypatch.setattr(conflicting_autoscalers, "REMIND_S", 0.5)
    monkeypatch.setattr(recorded, "AGAIN_S", 0.25)
    core = knative_kinds.core

    def events() -> list[str]:
        return [event.metadata.uid for event in core.list_namespaced_event(knative.namespace).items]

    async with running(knative_kinds, knative):
        knative.revision("f-00001", {**QUICK, K + "min-scale": "1"})
        await until(lambda: knative.condition("f-00001", "Ready")["status"] == "True", "Ready")
        create = client.AutoscalingV2Api(knative_kinds.api).create_namespaced_horizontal_pod_autoscaler
        await asyncio.to_thread(create, knative.namespace, cast("Any", conflicting_autoscaler("f-00001-deployment")))
        await until(lambda: len(events()) == 1, "the Event")
        [first] = events()
        await asyncio.to_thread(core.delete_collection_namespaced_event, knative.namespace)
        await until(lambda: len(events()) == 1 and events() != [first], "another")


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
