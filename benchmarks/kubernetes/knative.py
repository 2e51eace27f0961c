"""The autoscaler class `gnomon` beside Knative's own `kpa`, on a whole cluster, under the same load in turn.

    python -m benchmarks.kubernetes.knative [--quick] [--kubeconfig PATH]

The cluster is that of `make cluster`, or the named one; it needs `metrics-protocol: prometheus`. Two ksvcs differ in their class
only. Measured: from create to Ready; from zero, the time from a request to the number of pods written and to its answer; and a
load that rises and falls, with the pods that each class gave. Both classes get each load one right after the other, in
alternating order. `gnomon serve --platform knative` runs beside the cluster, as the stock autoscaler runs in it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from kubernetes import watch

from benchmarks.programs import Pace, ProgramFailedError, ended_well, pace_of, pace_parser, step
from benchmarks.report import Figure, measured, write
from tests.cluster import build, cluster
from tests.cluster.client import Cluster, reached
from tests.cluster.knative import CLASSES, GNOMON, SERVING, STOCK, answer_for_ingress, autoscaler, condition
from tests.cluster.settings import folders, image

ANNOTATION = "autoscaling.knative.dev/"
TIMEOUT_S = 120.0
_OK = 200


@dataclass(frozen=True, slots=True)
class Point:
    """A change of the Deployment's `replicas` at `at_s`."""

    at_s: float
    replicas: int


@dataclass
class Answers:
    """Outcomes of requests: latencies in seconds of those that were answered, and the errors of the others."""

    took_s: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


class Revision:
    """A Revision that answers `name`, from its ksvc's creation to its removal."""

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
        """Wait until a pod is wanted; return the seconds from `since_s` until then."""
        await self._until(lambda: self._wanted(since_s) is not None, "a pod")
        at_s = self._wanted(since_s)
        assert at_s is not None
        return at_s - since_s

    async def ask(self, answers: Answers) -> None:
        """Send one request to the Revision's public Service, as an ingress does, on a connection of its own."""
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
        return next((point.at_s for point in self.points if point.at_s >= since_s and point.replicas > 0), None)

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
    if time.monotonic() - began_s > TIMEOUT_S:
        msg = f"after {TIMEOUT_S:.0f} s still waiting for {what}"
        raise TimeoutError(msg)


def _session() -> aiohttp.ClientSession:
    """A connection for each request: one that is kept would stay with a pod that ends."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(connector=connector, trust_env=False, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))


ANNOTATIONS = {"metric": "rps", "target": "40", "window": "6s", "max-scale": "4"}
LOAD = ((20.0, 6.0), (80.0, 12.0), (20.0, 6.0))
READY_ROUNDS, ZERO_ROUNDS, LOAD_ROUNDS = 3, 12, 3
MODULES = ("knative.dev/serving", "k8s.io/kubernetes")
SEED = 32


@dataclass
class Seen:
    """Measurements of one autoscaler class: seconds, and for each load its changes of the number of pods."""

    ready_s: list[float] = field(default_factory=list)
    decided_s: list[float] = field(default_factory=list)
    answered_s: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    reached_s: list[float] = field(default_factory=list)
    pod_seconds: list[float] = field(default_factory=list)
    answers: Answers = field(default_factory=Answers)
    changes: list[list[tuple[float, int]]] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--kubeconfig", type=Path, help="the cluster; default that of make cluster")
    given = parser.parse_args(arguments)
    pace = pace_of(given)
    kubeconfig = given.kubeconfig or _running()
    found = reached(kubeconfig)
    with (
        namespace(found) as name,
        tempfile.TemporaryDirectory() as folder,
        autoscaler(kubeconfig, name, Path(folder) / "gnomon.log"),
    ):
        seen = asyncio.run(rounds(found, name, pace))
    publish(seen, pace)


async def rounds(found: Cluster, namespace_: str, pace: Pace) -> dict[str, Seen]:
    """Run all rounds, both autoscaler classes in turn."""
    seen = {name: Seen() for name in CLASSES}
    rng = Random(SEED)
    ready, zero, load = (1, 2, 1) if pace.quick else (READY_ROUNDS, ZERO_ROUNDS, LOAD_ROUNDS)
    revisions: dict[str, Revision] = {}
    step("from create to Ready")
    for number in range(ready):
        for name in turn(number):
            made = revision(found, namespace_, name, number)
            seen[name].ready_s.append(await asyncio.to_thread(made.create))
            if number < ready - 1:
                await asyncio.to_thread(made.remove)
            else:
                revisions[name] = made
    step("from zero")
    for number in range(zero):
        for name in turn(number):
            await asyncio.sleep(await from_zero(revisions[name], seen[name], rng))
    step("a load that rises and falls")
    for number in range(load):
        for name in turn(number):
            await rising(revisions[name], seen[name])
    for revision_measured in revisions.values():
        await asyncio.to_thread(revision_measured.remove)
    return seen


def turn(number: int) -> list[str]:
    """Alternate which class goes first."""
    names = [STOCK, GNOMON]
    return names if number % 2 == 0 else names[::-1]


def revision(found: Cluster, namespace_: str, name: str, number: int) -> Revision:
    """Create a Revision of a class. Both names have the same length, so that nothing else differs."""
    annotations = {ANNOTATION + key: text for key, text in ANNOTATIONS.items()} | {ANNOTATION + "class": CLASSES[name]}
    return Revision(found, namespace_, f"{name}-{number}", image("answer"), annotations)


async def from_zero(revision: Revision, seen: Seen, rng: Random) -> float:
    """A request when nothing lives; the pause until the next, which is to find autoscalers at any moment of their periods."""
    await revision.sleeps()
    await asyncio.sleep(rng.uniform(0.5, 1.5))
    began_s = time.monotonic()
    answers = Answers()
    decided, _ = await asyncio.gather(revision.woken(began_s), revision.ask(answers))
    seen.decided_s.append(decided)
    seen.answered_s += answers.took_s
    seen.answers.lost += answers.lost
    return rng.uniform(0.0, 0.5)


async def rising(revision: Revision, seen: Seen) -> None:
    """Start with one pod, then apply the load."""
    await revision.sleeps()
    await revision.ask(Answers())
    began_s = time.monotonic()
    await revision.load(seen.answers, *LOAD)
    await revision.sleeps()
    changes = [(round(point.at_s - began_s, 2), point.replicas) for point in revision.points if point.at_s >= began_s]
    before = [point.replicas for point in revision.points if point.at_s < began_s][-1]
    listed = [(0.0, before), *changes]
    seen.changes.append(listed)
    seen.most.append(max(replicas for _, replicas in listed))
    seen.pod_seconds.append(sum((then[0] - now[0]) * now[1] for now, then in pairwise(listed)))
    # 80 a second at 70 % of 40 each: three pods are needed from the sixth second on.
    seen.reached_s += [at_s - LOAD[0][1] for at_s, replicas in listed if replicas >= 3 and at_s >= LOAD[0][1]][:1]


def publish(seen: Mapping[str, Seen], pace: Pace) -> None:
    """The figures, and what they are made of."""
    figures = [figure for name, figures_seen in seen.items() for figure in figures_of(name, figures_seen)]
    more = {
        "cluster": {module: build.version(module) for module in MODULES},
        "annotations": ANNOTATIONS,
        "load_rps_s": LOAD,
        "load_average": [round(value) for value in os.getloadavg()],
        "seen": {
            name: {key: value for key, value in asdict(figures_seen).items() if key != "answers"}
            for name, figures_seen in seen.items()
        },
    }
    write("kubernetes_knative", figures, repeats=1, packages=("gnomon", "kubernetes", "aiohttp"), folder=pace.results, more=more)


def figures_of(name: str, seen: Seen) -> list[Figure]:
    """Medians of one class."""
    took_s = sorted(seen.answers.took_s)
    requests = len(took_s) + len(seen.answers.lost)
    seconds = {
        "created_to_ready": seen.ready_s,
        "from_zero_to_decided": seen.decided_s,
        "from_zero_to_answered": seen.answered_s,
        "load_to_third_pod_wanted": seen.reached_s,
    }
    made = [
        measured(f"{name}_{key}", [statistics.median(values)], "s", detail=f"median of {spread(values)}")
        for key, values in seconds.items()
        if values
    ]
    most = f"at most {max(seen.most):.0f} pods, median of {spread(seen.pod_seconds)}"
    made.append(measured(f"{name}_load_pod_seconds", [statistics.median(seen.pod_seconds)], "s", detail=most))
    goal = 0.0 if name == GNOMON else None
    quantile = took_s[int(0.95 * len(took_s))]
    made.append(measured(f"{name}_load_p95", [quantile], "s", detail=f"of {len(took_s)} answers, the slowest {took_s[-1]:.2f} s"))
    return [*made, measured(f"{name}_lost", [len(seen.answers.lost)], "requests", at_most=goal, detail=f"of {requests}")]


def spread(values: Sequence[float]) -> str:
    """The number of values, the lowest and the highest."""
    return f"{len(values)}, {min(values):.2f} to {max(values):.2f}"


@contextmanager
def namespace(found: Cluster) -> Iterator[str]:
    """A namespace for it, gone afterwards."""
    name = f"benchmark-{secrets.token_hex(3)}"
    found.core.create_namespace({"metadata": {"name": name}})
    try:
        yield name
    finally:
        found.core.delete_namespace(name)


def _running() -> Path:
    running = cluster.runs(folders())
    if not running:
        msg = "no cluster runs: make cluster"
        raise ProgramFailedError(msg)
    return running.folders.kubeconfig


if __name__ == "__main__":
    ended_well(main)
