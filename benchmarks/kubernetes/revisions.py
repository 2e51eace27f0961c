"""A ksvc of some autoscaler class on a cluster: how many pods it has over time, and what becomes of requests to it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from kubernetes import watch

from deploy.test_cluster.clusters import Cluster
from deploy.test_cluster.routes import SERVING, answer_for_ingress, condition

ANNOTATION = "autoscaling.knative.dev/"
PATIENCE_S = 120.0
_OK = 200


@dataclass(frozen=True, slots=True)
class Point:
    """From `at_s` on the Deployment was to have so many pods."""

    at_s: float
    replicas: int


@dataclass
class Answers:
    """What became of requests: seconds of those that were answered, and what was said to the others."""

    took_s: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


class Revision:
    """One that answers `name`, from its ksvc's creation to its removal."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, image: str, annotations: dict[str, str]) -> None:
        self._cluster, self._namespace, self._name = cluster, namespace, name
        container = {"image": image, "env": [{"name": "ANSWER", "value": name}]}
        template = {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
        self._body = {
            "apiVersion": "/".join(SERVING),
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"template": template},
        }
        self.points: list[Point] = []
        self._revision = self._url = ""
        self._pods = 0
        self._ended = threading.Event()

    def create(self) -> float:
        """Make it, and wait until it is Ready; how long that took. From then on `points` grow."""
        custom, began_s = self._cluster.custom, time.monotonic()
        custom.create_namespaced_custom_object(*SERVING, self._namespace, "services", self._body)
        answer_for_ingress(self._cluster, self._namespace, self._name)
        while True:
            found = custom.get_namespaced_custom_object(*SERVING, self._namespace, "services", self._name)
            if condition(found) == "True":
                break
            _in_time(began_s, f"{self._name} to be Ready")
            time.sleep(0.05)
        took_s = time.monotonic() - began_s
        self._revision = found["status"]["latestReadyRevisionName"]
        service = self._cluster.core.read_namespaced_service(self._revision, self._namespace)
        self._url = f"http://{service.spec.cluster_ip}/"
        threading.Thread(target=self._watch, daemon=True).start()
        return took_s

    def remove(self) -> None:
        """Delete the ksvc, and all that was made of it."""
        self._ended.set()
        self._cluster.custom.delete_namespaced_custom_object(*SERVING, self._namespace, "services", self._name)

    async def sleeps(self) -> float:
        """Wait until no pod is wanted and none is there; how long that took."""
        return await self._until(lambda: bool(self.points) and self.points[-1].replicas == 0 and self._pods == 0, "no pods")

    async def woken(self, since_s: float) -> float:
        """When a pod was wanted after `since_s`, in seconds after it."""
        await self._until(lambda: self._wanted(since_s) is not None, "a pod")
        at_s = self._wanted(since_s)
        assert at_s is not None
        return at_s - since_s

    async def ask(self, answers: Answers) -> None:
        """One request to the Revision's public Service, as an ingress sends it, on a connection of its own."""
        async with _session() as session:
            await self._one(session, answers)

    async def load(self, answers: Answers, *steps: tuple[float, float]) -> None:
        """Steps of (requests a second, seconds), open loop: what is due is sent, whatever became of what was sent before."""
        async with _session() as session, asyncio.TaskGroup() as tasks:
            begin_s = time.monotonic()
            for rate_rps, seconds in steps:
                for number in range(round(rate_rps * seconds)):
                    await asyncio.sleep(max(0.0, begin_s + number / rate_rps - time.monotonic()))
                    tasks.create_task(self._one(session, answers))
                begin_s += seconds

    async def _one(self, session: aiohttp.ClientSession, answers: Answers) -> None:
        headers = {"Knative-Serving-Namespace": self._namespace, "Knative-Serving-Revision": self._revision}
        began_s = time.monotonic()
        try:
            async with session.get(self._url, headers=headers) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            answers.lost.append(repr(error))
            return
        if (answer.status, text) == (_OK, self._name):
            answers.took_s.append(time.monotonic() - began_s)
        else:
            answers.lost.append(f"{answer.status} {text[:100]}")

    def _wanted(self, since_s: float) -> float | None:
        return next((one.at_s for one in self.points if one.at_s >= since_s and one.replicas > 0), None)

    def _watch(self) -> None:
        field_ = f"metadata.name={self._revision}-deployment"
        watching: Any = watch.Watch  # which says nothing of its types
        while not self._ended.is_set():
            stream = watching().stream(
                self._cluster.apps.list_namespaced_deployment, self._namespace, field_selector=field_, timeout_seconds=300
            )
            for event in stream:
                found = event["object"]
                replicas = int(found.spec.replicas or 0)
                self._pods = int(found.status.replicas or 0)
                if not self.points or self.points[-1].replicas != replicas:
                    self.points.append(Point(time.monotonic(), replicas))

    async def _until(self, true: Callable[[], bool], what: str) -> float:
        began_s = time.monotonic()
        while not true():
            _in_time(began_s, f"{what} of {self._name}")
            await asyncio.sleep(0.02)
        return time.monotonic() - began_s


def _in_time(began_s: float, what: str) -> None:
    if time.monotonic() - began_s > PATIENCE_S:
        msg = f"after {PATIENCE_S:.0f} s still waiting for {what}"
        raise TimeoutError(msg)


def _session() -> aiohttp.ClientSession:
    """A connection for each request: one that is kept would stay with a pod that ends."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(connector=connector, trust_env=False, timeout=aiohttp.ClientTimeout(total=PATIENCE_S))
