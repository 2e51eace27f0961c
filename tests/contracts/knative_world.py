"""Revisions and their pods without a cluster: an API server in memory, and pods that answer what they are sent."""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import threading
from collections.abc import Iterator, Mapping
from typing import Any, cast

from aiohttp import web

from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionKey
from gnomon_platforms.knative.batching.platform import RevisionPlatform
from gnomon_platforms.knative.batching.revisions import RevisionStore
from gnomon_platforms.knative.resources import QUEUE_PORT, REVISION_LABEL
from gnomon_platforms.kubernetes.client import Api
from tests.platform_testing import Recorder
from tests.waiting import until

NAMESPACE = "openfaas-fn"


class Watch:
    """A watch whose events the test sends."""

    def __init__(self) -> None:
        self.events: queue.Queue[bytes] = queue.Queue()

    def read(self) -> bytes:
        return self.events.get()

    def end(self) -> None:
        self.events.put(b"")


class MemoryApi:
    """The part of an API server that informers use. `create` adds an object, of `revisions` or `pods`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions = itertools.count(1)
        self._objects: dict[str, list[dict[str, Any]]] = {"revisions": [], "pods": []}
        self._watches: dict[str, list[Watch]] = {"revisions": [], "pods": []}

    def create(self, plural: str, document: dict[str, Any]) -> None:
        with self._lock:
            number = str(next(self._versions))
            document["metadata"] |= {"namespace": NAMESPACE, "uid": f"uid-{number}", "resourceVersion": number}
            self._objects[plural].append(document)
            for watch in self._watches[plural]:
                watch.events.put(json.dumps({"type": "ADDED", "object": document}).encode() + b"\n")

    def call(self, _method: str, path: str, **_: Any) -> dict[str, Any]:
        with self._lock:
            items = list(self._objects[path.rpartition("/")[2]])
            return {"metadata": {"resourceVersion": str(next(self._versions))}, "items": items}

    @contextlib.contextmanager
    def stream(self, path: str, query: Mapping[str, str], *, silence_s: float) -> Iterator[Watch]:
        del silence_s
        plural, watch = path.rpartition("/")[2], Watch()
        with self._lock:
            for row in self._objects[plural]:
                if int(row["metadata"]["resourceVersion"]) > int(query["resourceVersion"]):
                    watch.events.put(json.dumps({"type": "ADDED", "object": row}).encode() + b"\n")
            self._watches[plural].append(watch)
        yield watch


class KnativeWorld:
    """A gateway's platform over Revisions of the class `gnomon`, from `start` to `stop`. Each pod has a loopback address."""

    def __init__(self) -> None:
        self.listener = Recorder()
        self._api = MemoryApi()
        api = cast("Api", self._api)
        self._store = RevisionStore(api, None, lambda _: None)
        self.platform = RevisionPlatform(api, self._store, None)
        self._pods: list[web.AppRunner] = []

    async def start(self) -> None:
        await self._store.start()
        await self.platform.start(self.listener)

    async def stop(self) -> None:
        await self.platform.stop()
        await self._store.stop()
        for pod in self._pods:
            await pod.cleanup()

    async def begin(self, service: str = "echo") -> Instance:
        """A new instance of this Revision: a pod of it becomes ready."""
        key = FunctionKey(service, NAMESPACE)
        if self._store.of(key) is None:
            annotations = {"autoscaling.knative.dev/class": "gnomon", "gnomon/max-batch": "8", "gnomon/max-inflight": "1"}
            metadata = {"name": service, "annotations": annotations, "creationTimestamp": "2026-01-02T03:04:05Z"}
            self._api.create("revisions", {"metadata": metadata, "spec": {"containers": [{"image": "example/echo:1"}]}})
            found = await until(lambda: self._store.of(key))
            assert found is not None
            self.platform.adopt(found.spec, 1)
        before = {instance.id for instance in self.platform.instances(str(key))}
        address = await self._pod()
        status = {"phase": "Running", "podIP": address, "conditions": [{"type": "Ready", "status": "True"}]}
        name = f"{service}-{len(self._pods)}"
        self._api.create("pods", {"metadata": {"name": name, "labels": {REVISION_LABEL: service}}, "spec": {}, "status": status})
        await until(lambda: len(self.platform.instances(str(key))) > len(before))
        return next(instance for instance in self.platform.instances(str(key)) if instance.id not in before)

    async def _pod(self) -> str:
        async def echo(request: web.Request) -> web.Response:
            return web.Response(body=await request.read())

        application = web.Application()
        application.router.add_route("*", "/{path:.*}", echo)
        runner = web.AppRunner(application, access_log=None)
        self._pods.append(runner)
        await runner.setup()
        address = f"127.59.0.{len(self._pods)}"
        await web.TCPSite(runner, address, QUEUE_PORT).start()
        return address
