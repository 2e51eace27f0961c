"""Revisions that batch, on a real API server with what images run as pods: gateway and autoscaler class together."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from gnomon_core.wire import encode
from gnomon_gateway.functions import manager
from gnomon_platforms.knative.batching import channel as slots
from gnomon_platforms.nodes.models import ServedModels
from gnomon_profiler.repository import DirectoryRepository
from gnomon_server.knative_gateway import KnativeGateway, KnativeGatewayOptions
from tests.cluster.client import Cluster
from tests.kubernetes.knative_autoscaler.played_knative import SERVING, PlayedKnative
from tests.kubernetes.knative_autoscaler.test_reconciler import QUICK, grace, running, until
from tests.kubernetes.knative_batching.conftest import ENV, HANDLER, QUEUE_PORT, SECRET, TOKEN, Pod, Pods
from tests.kubernetes.replicas.bodies import MODEL, put_model
from tests.platform_testing import request_frame

GATEWAY = "gateway"
LABELS = {"app.kubernetes.io/name": "gnomon", "app.kubernetes.io/component": "knative-gateway"}
BATCHES = {**QUICK, "gnomon/max-batch": "8", "gnomon/scheduler": "fixed", "gnomon/max-wait-ms": "200"}


@contextlib.asynccontextmanager
async def serving(
    cluster: Cluster, knative: PlayedKnative, *, pod: str = GATEWAY, **overrides: Any
) -> AsyncIterator[KnativeGateway]:
    """A gateway that is a pod of the system's namespace, as the autoscaler sees it; `told` are more of its options."""
    address = await asyncio.to_thread(knative.pod, pod, LABELS)
    options = KnativeGatewayOptions(
        kubeconfig=cluster.kubeconfig, namespace=knative.namespace, host=address, held_s=60.0, **overrides
    )
    gateway = KnativeGateway(options, Random(3))
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


@contextlib.asynccontextmanager
async def ingress(gateway: KnativeGateway, knative: PlayedKnative, revision: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Sends requests to a Revision as the ingress does."""
    headers = {"Knative-Serving-Revision": revision, "Knative-Serving-Namespace": knative.namespace}
    url = f"http://{gateway.server.host}:{gateway.server.port}"
    async with aiohttp.ClientSession(url, headers=headers, timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield session


async def call(user: aiohttp.ClientSession, body: bytes) -> tuple[int, bytes]:
    async with user.post("/some/path", data=body, headers={"Host": "f.users.example.com"}) as answer:
        return answer.status, await answer.read()


async def all_of(user: aiohttp.ClientSession, bodies: list[bytes]) -> list[tuple[int, bytes]]:
    return list(await asyncio.gather(*(call(user, body) for body in bodies)))


async def test_requests_become_batches_and_none_is_lost_from_zero_to_many_to_zero(
    knative_kinds: Cluster, knative: PlayedKnative, pods: Pods
) -> None:
    grace(knative_kinds, knative)
    async with running(knative_kinds, knative), serving(knative_kinds, knative) as gateway:
        knative.revision("f-00001", BATCHES, env=ENV)
        async with ingress(gateway, knative, "f-00001") as user:
            # Eight at once: the pod is given them together, and each has its own answer.
            bodies = [b"%d" % number for number in range(8)]
            assert await all_of(user, bodies) == [(200, body) for body in bodies]
            assert pods.seen == [("/gnomon/batch", 8)]

            # What comes at zero waits here, wakes it, and is answered.
            for _ in range(2):
                await until(lambda: knative.replicas("f-00001") == 0, "no pods")
                assert await all_of(user, bodies) == [(200, body) for body in bodies]

            # 64 at once, of 10 a pod at 70 %: what waits here counts, so there are more pods than one.
            most = 0

            async def look() -> None:
                nonlocal most
                while True:
                    most = max(most, await asyncio.to_thread(knative.replicas, "f-00001"))
                    await asyncio.sleep(0.1)

            looking = asyncio.create_task(look())
            for _ in range(4):
                slow = [b"slow"] * 64
                assert await all_of(user, slow) == [(200, body) for body in slow]
            looking.cancel()
            assert most >= 2
            assert max(pods.batches) == 8
            assert all(path == "/gnomon/batch" for path, _ in pods.seen)


async def test_pods_that_take_no_batches_get_each_request_as_it_came(
    knative_kinds: Cluster, knative: PlayedKnative, pods: Pods
) -> None:
    async with running(knative_kinds, knative), serving(knative_kinds, knative) as gateway:
        knative.revision("plain-00001", BATCHES, concurrency=2)
        async with ingress(gateway, knative, "plain-00001") as user:
            bodies = [b"%d" % number for number in range(6)]
            assert await all_of(user, bodies) == [(200, body) for body in bodies]
        assert pods.seen == [("/some/path", 1)] * 6


async def test_a_revision_may_ask_for_batches_while_it_serves_and_for_none_again(
    knative_kinds: Cluster, knative: PlayedKnative, pods: Pods
) -> None:
    async with running(knative_kinds, knative), serving(knative_kinds, knative) as gateway:
        knative.revision("f-00001", QUICK, env=ENV)
        async with ingress(gateway, knative, "f-00001") as user:
            asked = {name: text for name, text in BATCHES.items() if name.startswith("gnomon/")}
            early = asyncio.create_task(call(user, b"early"))
            await asyncio.to_thread(annotate, knative_kinds, knative, asked)
            assert await early == (200, b"early")
            assert pods.seen == [("/gnomon/batch", 1)]
            await asyncio.to_thread(annotate, knative_kinds, knative, dict.fromkeys(asked))
            await until(lambda: not largest(gateway, knative) or largest(gateway, knative) == {1}, "batches of one")
            pods.seen.clear()
            assert await all_of(user, [b"late"] * 4) == [(200, b"late")] * 4
            assert pods.batches == [1] * 4


async def test_a_pod_gets_batches_as_soon_as_the_token_that_it_takes_is_known(
    knative_kinds: Cluster, knative: PlayedKnative, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod's token is another one at first, as where the Secret was changed while it started; the pod stays the same."""
    for module in ("channel", "platform"):
        monkeypatch.setattr(f"gnomon_platforms.knative.batching.{module}.CACHE_S", 0.2)

    async def set_token(token: str) -> None:
        patch = {"stringData": {SECRET: token}}
        await asyncio.to_thread(knative_kinds.core.patch_namespaced_secret, SECRET, knative.namespace, patch)

    await set_token("another")
    async with running(knative_kinds, knative), serving(knative_kinds, knative) as gateway:
        knative.revision("f-00001", {**BATCHES, "autoscaling.knative.dev/min-scale": "1"}, env=ENV)
        async with ingress(gateway, knative, "f-00001") as user:
            assert await call(user, b"x") == (200, b"x")
            assert [path for path, _ in pods.seen] == ["/gnomon/batch", "/some/path"], "it was refused, and sent as it came"
            await set_token(TOKEN)
            slots = {instance.id for instance in gateway.platform.instances(f"f-00001.{knative.namespace}")}
            await until(
                lambda: slots.isdisjoint(instance.id for instance in gateway.platform.instances(f"f-00001.{knative.namespace}")),
                "a new slot",
            )
            pods.seen.clear()
            assert await all_of(user, [b"x"] * 8) == [(200, b"x")] * 8
            assert pods.seen == [("/gnomon/batch", 8)]


async def test_a_pod_that_ends_answers_what_it_has_and_gets_nothing_more(
    knative_kinds: Cluster, knative: PlayedKnative, pods: Pods
) -> None:
    async with running(knative_kinds, knative), serving(knative_kinds, knative) as gateway:
        knative.revision("f-00001", {**BATCHES, "autoscaling.knative.dev/min-scale": "1"}, env=ENV)
        async with ingress(gateway, knative, "f-00001") as user:
            assert await call(user, b"x") == (200, b"x")
            answers: list[Any] = []
            for _ in range(4):
                under_way = [asyncio.create_task(call(user, b"slow")) for _ in range(12)]
                await asyncio.sleep(0.1)
                knative.replace_pods("f-00001")
                answers += await asyncio.gather(*under_way)
            assert answers == [(200, b"slow")] * 48


class Deaf:
    """A pod whose node has died: who is connected hears nothing of it, and nothing from it."""

    def __init__(self, address: str) -> None:
        self._socket = socket.create_server((address, QUEUE_PORT))

    def stat(self) -> tuple[float, float]:
        return 1.0, 1.0

    def end(self) -> None:
        self._socket.close()


async def test_requests_of_a_pod_deleted_with_its_node_are_answered(
    knative_kinds: Cluster, knative: PlayedKnative, pods: Pods
) -> None:
    """Well before its time, 300 s, is over, and before the user here gives up, who waits for 60 s."""
    knative.begins = lambda _, address: Deaf(address)
    async with running(knative_kinds, knative), serving(knative_kinds, knative) as gateway:
        knative.revision("f-00001", {**BATCHES, "autoscaling.knative.dev/min-scale": "1"}, env=ENV)
        function = f"f-00001.{knative.namespace}"
        async with ingress(gateway, knative, "f-00001") as user:
            under_way = asyncio.create_task(call(user, b"x"))
            await until(lambda: 1 in in_flight(gateway, function).values(), "it has been sent")
            [slot] = in_flight(gateway, function)
            pod = slot.rpartition("-")[0]
            await asyncio.to_thread(knative_kinds.core.delete_namespaced_pod, pod, knative.namespace, grace_period_seconds=0)
            status, answer = await under_way
            assert (status, b"instance_lost" in answer) == (502, True), answer


def in_flight(gateway: KnativeGateway, function: str) -> dict[str, int]:
    runtime = gateway.manager.directory.lookup(function)
    return {} if runtime is None else runtime.all_in_flight()


def largest(gateway: KnativeGateway, knative: PlayedKnative) -> set[int]:
    runtime = gateway.manager.directory.lookup(f"f-00001.{knative.namespace}")
    return set() if runtime is None else set(runtime.largest_batches().values())


def annotate(cluster: Cluster, knative: PlayedKnative, annotations: dict[str, Any]) -> None:
    """Annotate a Revision as `kubectl annotate revision` does."""
    patch = {"metadata": {"annotations": annotations}}
    cluster.custom.patch_namespaced_custom_object(*SERVING, knative.namespace, "revisions", "f-00001", patch)


async def test_a_pod_is_sent_batches_once_it_has_its_cores_and_uses_as_many_threads(
    knative_kinds: Cluster, knative: PlayedKnative, pods: Pods
) -> None:
    knative.resizable, knative.starts_s = False, 2.0
    async with running(knative_kinds, knative), serving(knative_kinds, knative) as gateway:
        one_core = {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}
        knative.revision("f-00001", {**BATCHES, "gnomon/cores": "2"}, env=ENV, resources=one_core)
        function = f"f-00001.{knative.namespace}"

        def cores() -> list[int]:
            return [instance.cores for instance in gateway.platform.instances(function)]

        async with ingress(gateway, knative, "f-00001") as user:
            calling = asyncio.create_task(call(user, b"x"))
            await until(lambda: knative.condition("f-00001", "Ready")["status"] == "True", "Ready")
            # Its node has not come to it, and it would compute with half of what it is to have.
            await asyncio.sleep(1.0)
            assert not pods.seen
            knative.resizable = True
            assert await calling == (200, b"x")
            assert pods.seen == [("/gnomon/resize", 1), ("/gnomon/batch", 1)]
            assert cores() == [2]
            # While it serves it goes on with what it has, until it has others.
            await asyncio.to_thread(annotate, knative_kinds, knative, {"gnomon/cores": "3"})
            await until(lambda: cores() == [3], "three cores")
            assert await call(user, b"y") == (200, b"y")
            assert [path for path, _ in pods.seen] == ["/gnomon/resize", "/gnomon/batch"] * 2


async def test_a_pod_whose_node_never_comes_to_its_cores_serves_with_those_that_it_has(
    knative_kinds: Cluster, knative: PlayedKnative, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "MAX_RESIZE_WAIT_S", 0.5)
    knative.resizable = False
    async with running(knative_kinds, knative), serving(knative_kinds, knative) as gateway:
        knative.revision("f-00001", {**BATCHES, "gnomon/cores": "2"}, env=ENV, resources={"requests": {"cpu": "1"}})
        async with ingress(gateway, knative, "f-00001") as user:
            assert await call(user, b"x") == (200, b"x")
        assert [instance.cores for instance in gateway.platform.instances(f"f-00001.{knative.namespace}")] == [1]
        assert pods.seen[-1] == ("/gnomon/batch", 1)


def two_samples_in_time(sample_s: float) -> dict[str, str]:
    """Annotations with an objective of two and a half times what a sample takes: two are in time, and a third is not."""
    return {
        **BATCHES,
        "autoscaling.knative.dev/min-scale": "1",
        "gnomon/model": f"{MODEL}@1",
        "gnomon/slo-ms": str(round(2500 * sample_s)),
        "gnomon/deadline-ms": "60000",
    }


@pytest.mark.torch
async def test_a_revisions_batches_are_as_large_as_its_models_profile_has_them_in_time(
    knative_kinds: Cluster, knative: PlayedKnative, pods: Pods, tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    sample_s = await asyncio.to_thread(put_model, folder)
    models = ServedModels(DirectoryRepository(folder), folder, folder / "profiles")
    asked = two_samples_in_time(sample_s)
    async with running(knative_kinds, knative), serving(knative_kinds, knative, models=models) as gateway:
        knative.revision("f-00001", asked, env=ENV)
        await until(lambda: largest(gateway, knative) == {2}, "batches of two")
        async with ingress(gateway, knative, "f-00001") as user:
            assert await call(user, b"x") == (200, b"x")
        # Without the model's name nothing is foretold of it.
        knative.revision("g-00001", {**BATCHES, "autoscaling.knative.dev/min-scale": "1"}, env=ENV)
        name = f"g-00001.{knative.namespace}"
        await until(
            lambda: (found := gateway.manager.directory.lookup(name)) and set(found.largest_batches().values()) == {8}, "of eight"
        )
        assert pods.batches == [1]


@pytest.mark.torch
async def test_a_model_that_is_measured_while_its_revision_serves_bounds_batches_from_then_on(
    knative_kinds: Cluster, knative: PlayedKnative, pods: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "REREAD_S", 0.2)
    folder, later = tmp_path / "models", tmp_path / "later"
    sample_s = await asyncio.to_thread(put_model, folder)
    (folder / "profiles").rename(later)
    models = ServedModels(DirectoryRepository(folder), folder, folder / "profiles")
    asked = two_samples_in_time(sample_s)
    async with running(knative_kinds, knative), serving(knative_kinds, knative, models=models) as gateway:
        knative.revision("f-00001", asked, env=ENV)
        await until(lambda: largest(gateway, knative) == {8}, "batches of eight")
        async with ingress(gateway, knative, "f-00001") as user:
            assert await call(user, b"x") == (200, b"x")
        later.rename(folder / "profiles")
        await until(lambda: largest(gateway, knative) == {2}, "batches of two")
        assert pods.batches == [1]


TOKENS = {"one": "the token of one", "two": "the token of two"}


async def test_both_get_batches_and_neither_is_let_in_at_the_other(
    knative_kinds: Cluster, knative: PlayedKnative, tmp_path: Path
) -> None:
    (tmp_path / "handler.py").write_text(HANDLER)
    seen: dict[str, list[tuple[str, int]]] = defaultdict(list)
    addresses: dict[str, str] = {}

    def begins(revision: str, address: str) -> Pod:
        service = revision.partition("-")[0]
        addresses[service] = address
        return Pod(address, tmp_path, seen[service], token=TOKENS[service])

    knative.begins = begins
    secret = {"metadata": {"name": SECRET}, "stringData": TOKENS}
    await asyncio.to_thread(knative_kinds.core.create_namespaced_secret, knative.namespace, secret)
    async with running(knative_kinds, knative), serving(knative_kinds, knative) as gateway:
        for service in TOKENS:
            env = [{"name": "GNOMON_BATCH_TOKEN", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": service}}}]
            knative.revision(f"{service}-00001", {**BATCHES, "autoscaling.knative.dev/min-scale": "1"}, env=env)
        for service in TOKENS:
            async with ingress(gateway, knative, f"{service}-00001") as user:
                assert await all_of(user, [b"x"] * 8) == [(200, b"x")] * 8
            assert seen[service] == [("/gnomon/batch", 8)]
        assert [await knocked(addresses["two"], TOKENS[service]) for service in TOKENS] == [401, 200]
        assert [await knocked(addresses["one"], TOKENS[service]) for service in TOKENS] == [200, 401]


async def knocked(address: str, token: str) -> int:
    """The answer of a pod to a batch with this token."""
    body = encode(request_frame(b"x"))
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session,
        session.post(f"http://{address}:{QUEUE_PORT}/gnomon/batch", data=body) as answer,
    ):
        return answer.status
