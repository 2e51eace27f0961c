"""Coordinators of nodes when leaders change."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from gnomon_core.coordination import NODES_NAMESPACE
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import read_deployment
from gnomon_core.pairs import Pair
from gnomon_platforms.kubernetes.client import Api
from gnomon_platforms.kubernetes.objects.manifests import deployment
from gnomon_platforms.kubernetes.objects.names import INSTANCE_ANNOTATION, TOKEN_KEY
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions
from gnomon_platforms.nodes import coordinators, node_shadow
from gnomon_platforms.nodes.coordinators import NodeOptions
from gnomon_platforms.nodes.models import ServedModels
from gnomon_platforms.openfaas.observed import OpenFaasOptions
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.coordinator_node.node import PATIENT, SPLIT, TOKEN, Known, Node, asked_all_the_time
from tests.integration.coordinator_node.played_platform import Platform, a_pair, leading, refusal
from tests.integration.kubernetes_platform.scripted import Answer, Asked, Script, serving
from tests.platform_testing import Recorder
from tests.waiting import until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]
BODY, FUNCTION = "line-0a", "line.openfaas-fn"
SPEC = read_deployment(
    {"service": "line", "image": "gnomon/body", "annotations": {"gnomon/model": "line@1", "gnomon/max-batch": "8"}}
)


def condition(kind: str) -> dict[str, str]:
    return {"type": kind, "status": "True"}


class Held(Script):
    """An API server in which nothing happens: whoever lists is told what there is, whoever watches waits."""

    def __init__(self, pod_uid: str) -> None:
        super().__init__([])
        made = deployment(SPEC, 1, PodOptions(coordinated=True), replicas=1)
        made["metadata"] |= {"uid": "uid-line", "resourceVersion": "1", "generation": 1}
        made["status"] = {"observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "availableReplicas": 1}
        template = made["spec"]["template"]
        spec = {**template["spec"], "nodeName": "node-a"}
        conditions = [condition(kind) for kind in ("PodScheduled", "ContainersReady", "Ready")]
        statuses = [{"name": "line", "restartCount": 0, "resources": spec["containers"][0].get("resources") or {}}]
        pod = {
            "metadata": {
                **template["metadata"],
                "name": "line-x", "namespace": "openfaas-fn", "uid": pod_uid, "resourceVersion": "1",
                "annotations": {**(template["metadata"].get("annotations") or {}), INSTANCE_ANNOTATION: BODY},
            },
            "spec": spec,
            "status": {"phase": "Running", "podIP": "127.0.0.1", "conditions": conditions, "containerStatuses": statuses},
        }  # fmt: skip
        labels = {"app.kubernetes.io/name": "gnomon", "app.kubernetes.io/component": "coordinator"}
        pool = {"name": "pool", "resources": {"requests": {"cpu": "100m"}}}
        coordinator = {
            "metadata": {"name": "c-x", "namespace": NODES_NAMESPACE, "uid": "uid-c", "resourceVersion": "1", "labels": labels},
            "spec": {"nodeName": "node-a", "containers": [pool]},
            "status": {"phase": "Running", "podIP": "127.0.0.1", "conditions": [condition("Ready")]},
        }
        amounts = {"cpu": "8", "memory": "16Gi"}
        about = {"name": "node-a", "uid": "uid-n", "resourceVersion": "1"}
        node = {"metadata": about, "status": {"allocatable": amounts, "conditions": [condition("Ready")]}}
        self.held = {"nodes": [node], "deployments": [made]}
        self.pods: dict[str, list[Any]] = {"gnomon/managed": [pod], "app.kubernetes.io": [coordinator], "": [pod, coordinator]}
        self.secret = {"metadata": {"name": "line.gnomon"}, "data": {TOKEN_KEY: base64.b64encode(b"t").decode()}}

    def next(self, request: Asked) -> Any:
        self.asked.append(request)
        if "watch" in request.query:
            return []
        kind = request.path.rsplit("/", 1)[-1]
        if kind == "v1":
            return Answer({"resources": [{"name": "pods/resize"}]})
        if kind == "pods":
            selector = request.query.get("labelSelector", "")
            items = next(pods for label, pods in self.pods.items() if selector.startswith(label))
        elif "/secrets/" in request.path:
            return Answer(self.secret)
        elif "/pods/" in request.path:
            return Answer(next(pod for pod in self.pods[""] if f"/pods/{pod['metadata']['name']}" in request.path))
        else:
            items = self.held.get(kind, [])
        return Answer({"metadata": {"resourceVersion": "1"}, "items": items})


@pytest.fixture
def api(node: Node) -> Iterator[Api]:
    del node
    with serving(Held("uid-lead")) as made:
        yield made


@contextlib.asynccontextmanager
async def platform(api: Api, node: Node, *, following: bool = False) -> AsyncIterator[tuple[OpenFaasPlatform, Recorder]]:
    """The next gateway's."""
    node.epoch += 1
    epoch = node.epoch
    models, nodes = ServedModels(DirectoryRepository(node.models), node.models), NodeOptions(TOKEN, port=node.port)
    made = OpenFaasPlatform(api, OpenFaasOptions(models=models, nodes=nodes), epoch=lambda: epoch, following=following)
    events = Recorder()
    try:
        await made.start(events)
        yield made, events
    finally:
        await made.stop()


def seen(of: OpenFaasPlatform) -> dict[str, Instance]:
    return {instance.id: instance for instance in of.instances(FUNCTION)}


async def test_a_pair_goes_on_from_leader_to_leader(api: Api, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_shadow, "predicted_ms", lambda *_: PATIENT)
    monkeypatch.setattr(coordinators, "FIRST_STATE_TIMEOUT_S", 60.0)
    node.warm()
    body = node.body("uid-lead")
    known = Known.of(node, body)
    pair = Pair(1, tuple(node.blocks), tuple(SPLIT))
    async with platform(api, node) as (first, events):
        [adopted] = first.adopt(SPEC, 1)
        assert adopted.id == BODY
        await events.channel(BODY)
        shadow = await first.create_shadow(BODY, pair)
        await events.until(lambda: seen(first)[BODY].partner == shadow.id)
        as_made, nodes_as_made = seen(first)[shadow.id], first.nodes()
    assert events.gone[shadow.id] == "the gateway stops; it works on for its Body"
    assert events.times_gone == {shadow.id: 1, BODY: 1}

    async with asked_all_the_time(body, known):
        # A gateway alone, which begins after the other has ended: it finds Bodies, and then their Shadows.
        async with platform(api, node) as (second, events):
            assert seen(second) == {}
            second.adopt(SPEC, 1)
            await events.until(lambda: shadow.id in events.found)
            assert seen(second)[BODY].shadows == {shadow.id: pair}
            assert seen(second)[shadow.id] == replace(as_made, started_s=seen(second)[shadow.id].started_s)
            assert events.order[:2] == [("found", shadow.id), ("paired", BODY)]
            assert second.nodes() == nodes_as_made
            await events.channel(BODY)
        # One of several, which follows and is to lead: when it does, it knows them.
        async with platform(api, node, following=True) as (third, events):
            third.adopt(SPEC, 1)
            await events.channel(BODY)
            assert list(seen(third)) == [BODY]
            await third.lead()
            assert seen(third)[BODY].shadows == {shadow.id: pair}
            assert (seen(third)[shadow.id].state, third.nodes()) == (InstanceState.READY, nodes_as_made)

    # The next one has no use for it.
    async with platform(api, node) as (last, events):
        last.adopt(SPEC, 1)
        await events.until(lambda: shadow.id in events.found)
        await last.destroy(shadow.id)
        assert await events.reason(shadow.id) == "stopped"
        assert events.order[-2:] == [("alone", BODY), ("gone", shadow.id)]
        assert list(seen(last)) == [BODY]
        assert last.nodes()[0].free_cores == nodes_as_made[0].free_cores + 1
    assert known.alone(body)


async def test_a_new_leader_goes_on_with_the_shadows_of_the_one_before_it(
    platform: Platform, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_shadow, "predicted_ms", lambda *_: PATIENT)
    body = await platform.body("p-6")
    known = Known.of(node, body)
    began = await platform.pairs.create("p-6", a_pair(node), "p-6-s1")
    await until(lambda: ("p-6", ["p-6-s1"]) in platform.pairs_told)
    async with asked_all_the_time(body, known), leading(node, "p-6") as other:
        await until(lambda: ("p-6", ["p-6-s1"]) in other.pairs_told, "it does not know of it")
        found = other.events.found["p-6-s1"]
        assert (found.state, found.partner, found.pair, found.node) == (InstanceState.STARTING, "p-6", a_pair(node), "node-a")
        assert other.seen("p-6-s1") == replace(found, state=InstanceState.READY)
        assert (found.cores, found.memory_bytes) == (began.cores, began.memory_bytes)
        assert other.claimed == {"p-6-s1": platform.claimed["p-6-s1"]}

        # Whoever led before may not know it yet, and orders nothing any more.
        assert await refusal(platform.pairs.change("p-6-s1", a_pair(node, 2))) == "stale_epoch"
        assert (platform.claimed["p-6-s1"].cores, platform.seen("p-6-s1").cores) == (1.0, 1), "what was refused takes no room"
        assert platform.pairs.destroy("p-6-s1")
        await platform.pairs._background.settled()
        assert (node.shadow("p-6-s1")["paired"], node.shadow("p-6-s1")["cores"]) == (True, 1)
    # The second one has stopped, in the midst of it, and a third one comes.
    assert other.events.gone == {"p-6-s1": "the gateway stops; it works on for its Body"}
    assert other.pairs_told[-1] == ("p-6", [])
    async with leading(node, "p-6") as third:
        await until(lambda: ("p-6", ["p-6-s1"]) in third.pairs_told, "it does not know of it")
        changed = a_pair(node, 1, (0, 0, 1, 1))
        await third.pairs.change("p-6-s1", changed)
        await until(lambda: third.seen("p-6-s1").pair == changed)
        # What it does not want any more it ends, like one that it has made.
        assert third.pairs.destroy("p-6-s1")
        assert await third.events.reason("p-6-s1") == "stopped"
        await until(lambda: node.state()["shadows"] == [], "the node remembers it")
        assert (third.events.times_gone["p-6-s1"], third.claimed) == (1, {})
    platform.pairs.coordinator_removed("node-a")


async def test_a_shadow_whose_body_is_found_a_moment_later_waits_for_it(platform: Platform, node: Node) -> None:
    await platform.body("p-9")
    await platform.pairs.create("p-9", a_pair(node), "p-9-s1")
    await until(lambda: ("p-9", ["p-9-s1"]) in platform.pairs_told)
    await platform.pairs.close()
    async with leading(node) as other:
        assert (other.events.found, other.claimed) == ({}, {})
        other.knows("p-9")
        other.pairs.reconcile("node-a")
        assert list(other.events.found) == ["p-9-s1"]
        assert other.pairs_told == [("p-9", ["p-9-s1"])]
        assert node.shadow("p-9-s1")["paired"]
        assert other.pairs.destroy("p-9-s1")
        assert await other.events.reason("p-9-s1") == "stopped"


async def test_a_shadow_whose_body_is_nobodys_ends_when_it_may_not_be_found_any_more(platform: Platform, node: Node) -> None:
    body = await platform.body("p-10")
    await platform.pairs.create("p-10", a_pair(node), "p-10-s1")
    await until(lambda: ("p-10", ["p-10-s1"]) in platform.pairs_told)
    await platform.pairs.close()
    async with leading(node, adopting_s=0.2) as other:
        await until(lambda: other.pairs._recheck is not None, "nobody looks again")
        other.adopting_s = 0.0
        await until(lambda: node.state()["shadows"] == [], "it lives")
        assert other.events.found == {}
    assert body.ask(node.batch())[1] == 0
