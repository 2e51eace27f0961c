"""A write carries what it was decided from, and is decided again where that is no longer true."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes import client

from gnomon_core.clock import WallClock
from gnomon_core.errors import GnomonError
from gnomon_platforms.kubernetes.client import Api, Document, Fence, Refused, Unreachable
from gnomon_platforms.kubernetes.connections import through
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, NODES, PODS
from gnomon_platforms.kubernetes.writes import Create, Delete, Patch, Replace, Target, Write, Writer
from gnomon_platforms.nodes import coordinators
from gnomon_platforms.nodes.coordinators import NodeCoordinators, NodeOptions
from gnomon_platforms.nodes.node_shadow import ShadowContext
from tests.integration.kubernetes_platform.scripted import Answer, Script, listed, pod, refusal, serving
from tests.waiting import until

BROKEN_OFF = {"Content-Length": "400", "Connection": "close"}
TARGET = Target(PODS, "fn", "a")
CACHED: Document = {"metadata": {"uid": "uid-a", "resourceVersion": "7"}}


@asynccontextmanager
async def writing(script: Script, fence: Fence | None = None) -> AsyncIterator[Writer]:
    with serving(script) as api:
        writer = Writer(api, WallClock(), random.Random(1), fence)
        try:
            yield writer
        finally:
            writer.close()


def found(version: str) -> Answer:
    return Answer(pod("a", version))


def label(document: Document | None) -> Write | None:
    """Give it a label that it lacks."""
    if document is None:
        return None
    return None if "x" in document["metadata"].get("labels", {}) else Patch({"metadata": {"labels": {"x": "y"}}})


async def test_a_patch_is_bound_to_what_it_was_decided_from() -> None:
    script = Script([found("7")], writes=[found("8")])
    async with writing(script) as writer:
        after = await writer.settle(TARGET, label, "label it")
    assert after is not None
    assert after["metadata"]["resourceVersion"] == "8"
    [sent] = script.writes()
    assert (sent.method, sent.path) == ("PATCH", "/api/v1/namespaces/fn/pods/a")
    assert sent.body == {"metadata": {"labels": {"x": "y"}, "uid": "uid-a", "resourceVersion": "7"}}


async def test_cached_object_is_not_read_again_before_a_write() -> None:
    script = Script([], writes=[found("8")])
    async with writing(script) as writer:
        await writer.settle(TARGET, label, "label it", cached=CACHED)
    [sent] = script.writes()
    assert sent.body == {"metadata": {"labels": {"x": "y"}, "uid": "uid-a", "resourceVersion": "7"}}


@pytest.mark.parametrize(("cached", "reads"), [(CACHED, [found("9")]), (None, [found("7"), found("9")])], ids=["cached", "read"])
async def test_conflicting_write_is_read_and_decided_again(cached: Document | None, reads: list[Answer]) -> None:
    script = Script(reads, writes=[refusal(409, "Conflict"), found("10")])
    async with writing(script) as writer:
        await writer.settle(TARGET, label, "label it", cached=cached)
    assert [sent.body["metadata"]["resourceVersion"] for sent in script.writes()] == ["7", "9"]


async def test_write_that_is_already_done_is_skipped() -> None:
    script = Script([found("7"), Answer(pod("a", "9", x="theirs"))], writes=[refusal(409, "Conflict")])
    async with writing(script) as writer:
        after = await writer.settle(TARGET, label, "label it")
    assert after is not None
    assert after["metadata"]["labels"] == {"x": "theirs"}
    assert len(script.writes()) == 1


@pytest.mark.parametrize(
    "no_answer",
    [
        pytest.param(Answer(b"", 500), id="500"),
        pytest.param(Answer(b'{"kind": "Po', headers=BROKEN_OFF), id="broken off"),
        pytest.param(refusal(503, "Busy"), id="503"),
    ],
)
async def test_after_no_answer_what_is_there_decides(no_answer: Answer) -> None:
    # The change was made, and only its answer was lost.
    script = Script([found("7"), Answer(pod("a", "8", x="y"))], writes=[no_answer])
    async with writing(script) as writer:
        after = await writer.settle(TARGET, label, "label it")
    assert after is not None
    assert after["metadata"]["resourceVersion"] == "8"
    assert len(script.writes()) == 1


async def test_an_object_that_has_gone_is_decided_upon_as_that() -> None:
    script = Script([found("7"), refusal(404, "NotFound")], writes=[refusal(404, "NotFound")])
    async with writing(script) as writer:
        assert await writer.settle(TARGET, label, "label it") is None


async def test_existing_object_is_not_created_twice() -> None:
    script = Script([refusal(404, "NotFound"), found("5")], writes=[refusal(409, "AlreadyExists")])
    async with writing(script) as writer:
        after = await writer.settle(TARGET, lambda seen: Create(pod("a", "")) if seen is None else None, "make it")
    assert after is not None
    assert after["metadata"]["resourceVersion"] == "5"


async def test_deleting_names_the_one_that_is_meant() -> None:
    script = Script([found("7")], writes=[Answer({"kind": "Status", "status": "Success"})])
    async with writing(script) as writer:
        await writer.settle(TARGET, lambda seen: None if seen is None else Delete(grace_s=0), "remove it")
    [sent] = script.writes()
    assert sent.body["preconditions"] == {"uid": "uid-a", "resourceVersion": "7"}
    assert sent.body["gracePeriodSeconds"] == 0


async def test_replacing_keeps_the_version_whatever_the_manifest_says() -> None:
    script = Script([found("7")], writes=[found("8")])
    stale = pod("a", "1", uid="another")
    async with writing(script) as writer:
        await writer.settle(TARGET, lambda _: Replace(stale, "status"), "report it")
    [sent] = script.writes()
    assert (sent.method, sent.path) == ("PUT", "/api/v1/namespaces/fn/pods/a/status")
    assert (sent.body["metadata"]["uid"], sent.body["metadata"]["resourceVersion"]) == ("uid-a", "7")


async def test_a_fence_that_closes_keeps_a_write_from_being_sent() -> None:
    def closed() -> None:
        raise GnomonError(503, "not_leading", "Another process leads.")

    script = Script([found("7")], writes=[found("8")])
    async with writing(script, closed) as writer:
        with pytest.raises(GnomonError) as refused:
            await writer.settle(TARGET, label, "label it")
        # Reading is for everybody.
        assert await writer.read(TARGET) is not None
    assert refused.value.code == "not_leading"
    assert script.writes() == []


async def test_endless_conflicts_end_in_an_error_in_time() -> None:
    script = Script([found("7")], writes=[refusal(409, "Conflict")])
    async with writing(script) as writer:
        with pytest.raises(GnomonError) as refused:
            await writer.settle(TARGET, label, "label it", timeout_s=0.3)
    assert (refused.value.status, refused.value.code) == (409, "kubernetes_conflict")
    assert len(script.writes()) > 1


@pytest.mark.parametrize(
    ("answer", "status", "code", "hint"),
    [
        (refusal(401, "Unauthorized"), 503, "kubernetes_credentials", "KUBECONFIG"),
        (refusal(403, "Forbidden"), 503, "kubernetes_denied", "kubectl apply -k deploy/openfaas"),
        (Answer({"code": 403, "reason": "Forbidden", "message": "exceeded quota: cpu"}, 403), 503, "kubernetes_denied", "quota"),
        (
            Answer({"code": 403, "message": 'admission webhook "v.gatekeeper.sh" denied the request: no limits'}, 403),
            400,
            "kubernetes_invalid",
            "policy of the cluster",
        ),
        (Answer({"code": 422, "message": "no", "details": {"causes": [{"field": "spec.x", "message": "bad"}]}}, 422),
         400, "kubernetes_invalid", "spec.x: bad"),
        (Answer(b"<html>proxy</html>", 413), 400, "kubernetes_invalid", "Correct"),
    ],
)  # fmt: skip
async def test_hopeless_write_is_reported_once_with_the_remedy(answer: Answer, status: int, code: str, hint: str) -> None:
    script = Script([found("7")], writes=[answer])
    async with writing(script) as writer:
        with pytest.raises(GnomonError) as refused:
            await writer.settle(TARGET, label, "label it")
    assert (refused.value.status, refused.value.code) == (status, code)
    assert hint in refused.value.hint
    assert len(script.writes()) == 1


async def test_a_namespace_that_is_not_there_is_no_reason_to_try_again() -> None:
    script = Script([refusal(404, "NotFound")], writes=[refusal(404, "NotFound")])
    async with writing(script) as writer:
        with pytest.raises(GnomonError) as refused:
            await writer.settle(TARGET, lambda _: Create(pod("a", "")), "make it")
    assert refused.value.code == "kubernetes_missing"
    assert len(script.writes()) == 1


def test_paths() -> None:
    assert DEPLOYMENTS.path("fn", "a", "scale") == "/apis/apps/v1/namespaces/fn/deployments/a/scale"
    assert DEPLOYMENTS.path() == "/apis/apps/v1/deployments"
    assert NODES.path(None, "n/1") == "/api/v1/nodes/n%2F1"


def test_missing_api_server_is_unreachable(unused_tcp_port_host: str) -> None:
    settings = client.Configuration()
    settings.host, settings.retries = unused_tcp_port_host, False
    api = Api(through(client.ApiClient(settings)))
    with pytest.raises(Unreachable):
        api.call("GET", "/api")
    api.close()


@pytest.fixture
def unused_tcp_port_host() -> str:
    """An address where nobody listens: a port that was just ours."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_refusals_of_one_attempt_are_told_apart() -> None:
    script = Script([found("7")], writes=[refusal(409, "Conflict")])
    async with writing(script) as writer:
        seen: Any = await writer.read(TARGET)
        with pytest.raises(Refused) as refused:
            await writer.write(TARGET, Delete(), seen)
    assert refused.value.conflict


LABELS = {"app.kubernetes.io/name": "gnomon", "app.kubernetes.io/component": "coordinator"}


def coordinator(cpu: str, version: str = "1") -> dict[str, Any]:
    """The DaemonSet's pod on the node, whose pool asks for so much."""
    containers = [{"name": "pool", "resources": {"requests": {"cpu": cpu}}}]
    status = {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    return {**pod("coordinator-x", version, **LABELS), "spec": {"nodeName": "node-a", "containers": containers}, "status": status}


class Node:
    """A coordinator that says how many cores its Shadows have."""

    def __init__(self) -> None:
        self.cores, self.version = 0, 1
        self._news = asyncio.Event()

    def says(self, cores: int) -> None:
        self.cores, self.version = cores, self.version + 1
        self._news.set()

    async def tell(self, request: web.Request) -> web.Response:
        if request.query["version"] == str(self.version):
            self._news.clear()
            await self._news.wait()
        pool = {"ready": True, "claimed_cores": self.cores}
        return web.json_response({"incarnation": "i", "version": self.version, "pool": pool, "bodies": [], "shadows": []})


@asynccontextmanager
async def followed(script: Script) -> AsyncIterator[tuple[Node, NodeCoordinators]]:
    """A node, and who follows it with writes to this API server."""
    node, app = Node(), web.Application()
    app.router.add_get("/v1/state", node.tell)
    capacity = SimpleNamespace(pool_ready=lambda *_, **__: None)
    models = SimpleNamespace(on_nodes=True)
    context = cast("ShadowContext", SimpleNamespace(capacity=capacity, models=models, epoch=lambda: 1, adopting_s=lambda: 0.0))
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        with serving(script) as api:
            writer = Writer(api, WallClock(), random.Random(1))
            made = NodeCoordinators(api, writer, NodeOptions("token", "fn", server.port or 0))
            await made.start(context, session)
            yield node, made
            await made.stop()
            writer.close()


def asked_for(script: Script) -> list[str]:
    """The CPU request in each write."""
    return [write.body["spec"]["containers"][0]["resources"]["requests"]["cpu"] for write in script.writes()]


async def test_a_write_that_was_refused_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinators, "BACKOFF_S", 0.01)
    writes = [refusal(403, "Forbidden"), refusal(403, "Forbidden"), Answer(coordinator("2100m", "2"))]
    script = Script([listed("1", coordinator("100m")), Answer(coordinator("100m"))], writes=writes)
    async with followed(script) as (node, nodes):
        node.says(2)
        await until(lambda: asked_for(script) == ["2100m"] * 3, "the scheduler counts on cores that Shadows have", 20.0)
        await until(lambda: not nodes.requests.tasks)
    assert len(script.writes()) == 3


async def test_the_next_number_does_not_wait_for_the_last_to_be_tried_again() -> None:
    writes = [refusal(403, "Forbidden"), Answer(coordinator("1100m", "2"))]
    script = Script([listed("1", coordinator("100m")), Answer(coordinator("100m"))], writes=writes)
    async with followed(script) as (node, nodes):
        node.says(2)
        await until(lambda: asked_for(script) == ["2100m"])
        node.says(1)
        await until(lambda: asked_for(script)[-1] == "1100m")
        await until(lambda: not nodes.requests.tasks)


async def test_a_number_that_comes_in_the_moment_in_which_the_last_is_done_is_written_too() -> None:
    script = Script([listed("1", coordinator("100m")), Answer(coordinator("100m"))], writes=[Answer(coordinator("2100m", "2"))])
    async with followed(script) as (_, nodes):
        # Nothing is to be written for none: who follows is done in the turn of the loop in which it began.
        await until(lambda: not nodes.requests.tasks)
        nodes.requests.set_cores("node-a", 0)
        loop = asyncio.get_running_loop()
        loop.call_soon(nodes.requests.set_cores, "node-a", 2)
        await until(lambda: asked_for(script) == ["2100m"], "the scheduler counts on cores that Shadows have")


async def test_stale_pod_does_not_undo_a_newer_write() -> None:
    """The watch has told nothing yet when the last Shadow ends."""
    lists = [listed("1", coordinator("100m")), Answer(coordinator("100m")), Answer(coordinator("2100m", "2"))]
    script = Script(lists, writes=[Answer(coordinator("2100m", "2")), Answer(coordinator("100m", "3"))])
    async with followed(script) as (node, nodes):
        node.says(2)
        await until(lambda: asked_for(script) == ["2100m"] and not nodes.requests.tasks)
        node.says(0)
        await until(lambda: asked_for(script) == ["2100m", "100m"], "nobody could use them any more", 20.0)
