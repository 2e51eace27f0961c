"""A leader is killed while it gives a pod other cores: the next one sees to it that its process uses those that the pod has."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_platforms.kubernetes.client import Api
from gnomon_platforms.kubernetes.objects.manifests import deployment
from gnomon_platforms.kubernetes.objects.names import INSTANCE_ANNOTATION, TOKEN_KEY
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from tests.integration.kubernetes_platform.scripted import Answer, Asked, Script, serving
from tests.platform_testing import Recorder
from tests.pod_process import PodProcess, pod_process
from tests.waiting import until

INSTANCE, FUNCTION = "figlet-0a", "figlet.openfaas-fn"


def spec_of(cores: int) -> FunctionSpec:
    return read_deployment({"service": "figlet", "image": "figlet:1", "annotations": {"gnomon/cores": str(cores)}})


def resources(cores: int) -> dict[str, Any]:
    return {"requests": {"cpu": str(cores)}}


class OnePod(Script):
    """An API server with a function of one pod, that serves, and a node. Who watches is told nothing."""

    def __init__(self, spec: FunctionSpec, *, given: int, applied: int) -> None:
        super().__init__([])
        made = deployment(spec, 1, PodOptions(), replicas=1)
        made["metadata"] |= {"uid": "uid-d", "resourceVersion": "1", "generation": 1}
        made["status"] = {"observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "availableReplicas": 1}
        template = made["spec"]["template"]
        [container] = template["spec"]["containers"]
        about = {"name": "figlet-x", "namespace": "openfaas-fn", "uid": "uid-p", "resourceVersion": "1"}
        annotations = {**(template["metadata"].get("annotations") or {}), INSTANCE_ANNOTATION: INSTANCE}
        conditions = [{"type": kind, "status": "True"} for kind in ("ContainersReady", "Ready")]
        statuses = [{"name": "figlet", "restartCount": 0, "resources": resources(applied)}]
        pod = {
            "metadata": {**template["metadata"], **about, "annotations": annotations},
            "spec": {"nodeName": "n1", "containers": [{**container, "resources": resources(given)}]},
            "status": {"phase": "Running", "podIP": "127.0.0.1", "conditions": conditions, "containerStatuses": statuses},
        }
        ready = {"allocatable": {"cpu": "8", "memory": "16Gi"}, "conditions": [{"type": "Ready", "status": "True"}]}
        node = {"metadata": {"name": "n1", "uid": "uid-n", "resourceVersion": "1"}, "status": ready}
        self._held = {"nodes": [node], "deployments": [made], "pods": [pod]}
        self._secret = {"metadata": {"name": "figlet.gnomon"}, "data": {TOKEN_KEY: base64.b64encode(b"t").decode()}}

    def next(self, request: Asked) -> Any:
        if "watch" in request.query:
            return []
        kind = request.path.rsplit("/", 1)[-1]
        if kind == "v1":
            return Answer({"resources": [{"name": "pods/resize"}]})
        if "/secrets/" in request.path:
            return Answer(self._secret)
        return Answer({"metadata": {"resourceVersion": "1"}, "items": self._held.get(kind, [])})


@pytest.fixture
async def process(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PodProcess]:
    async with pod_process(monkeypatch) as served:
        yield served


@contextmanager
def cluster(spec: FunctionSpec, *, given: int, applied: int) -> Iterator[Api]:
    with serving(OnePod(spec, given=given, applied=applied)) as api:
        yield api


@asynccontextmanager
async def adopting(api: Api, spec: FunctionSpec, *, following: bool) -> AsyncIterator[OpenFaasPlatform]:
    """The next gateway's platform, once it serves by what it has found."""
    platform, listener = OpenFaasPlatform(api, following=following), Recorder()
    await platform.start(listener)
    try:
        platform.adopt(spec, 1)
        await listener.channel(INSTANCE)
        yield platform
    finally:
        await platform.stop()


def cores(platform: OpenFaasPlatform) -> tuple[int, int | None]:
    """The cores that the instance has, and those of a resize in progress."""
    [instance] = platform.instances(FUNCTION)
    return instance.cores, instance.coming_cores


@pytest.mark.parametrize(("born", "has"), [(1, 2), (2, 2), (2, 1)])
async def test_new_leader_sets_a_pods_threads_to_its_cores(process: PodProcess, born: int, has: int) -> None:
    """Born with two threads, told to use one before its pod was to have one: that was never written, or taken back."""
    with cluster(spec_of(born), given=has, applied=has) as api:
        async with adopting(api, spec_of(born), following=False) as platform:
            assert cores(platform) == (has, None)
            assert process.threads == [has]


async def test_follower_passes_state_on_when_it_leads(process: PodProcess) -> None:
    """The leader before has given the pod a second core, and was killed before its process knew of it."""
    with cluster(spec_of(1), given=2, applied=2) as api:
        async with adopting(api, spec_of(1), following=True) as platform:
            assert cores(platform) == (2, None)
            assert process.threads == [], "only the leader sets threads"
            await platform.lead()
            await until(lambda: process.threads == [2])
            assert cores(platform) == (2, None)


@pytest.mark.parametrize("following", [False, True])
async def test_pod_with_a_pending_resize_keeps_serving_with_its_present_cores(process: PodProcess, *, following: bool) -> None:
    """A node may put it off for as long as it has no room: the next leader sends it batches all the same."""
    with cluster(spec_of(1), given=3, applied=1) as api:
        async with adopting(api, spec_of(1), following=following) as platform:
            assert cores(platform) == (1, 3)
            assert process.threads == []
