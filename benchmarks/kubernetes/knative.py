"""The autoscaler class `gnomon` beside Knative's own `kpa`, on a whole cluster, in turn on the same Revisions' worth of load.

    python -m benchmarks.kubernetes.knative [--quick] [--kubeconfig PATH]

Asks the cluster of `make cluster`, or the one that is named; it needs `metrics-protocol: prometheus`. Two ksvcs that differ in
their class only: from create to Ready; from zero, the time from a request to the number of pods written and to its answer; and a
load that rises and falls, with the pods that it was given. What one class is asked, the other is asked right after it, the first
of the two by turns. `gnomon serve --platform knative` runs beside the cluster, as the stock autoscaler runs in it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

from benchmarks.kubernetes.revisions import ANNOTATION, Answers, Revision
from benchmarks.pace import Pace, pace_of, pace_parser, step
from benchmarks.programs import ProgramFailedError, ended_well
from benchmarks.report import Figure, measured, write
from deploy.test_cluster import build, cluster
from deploy.test_cluster.clusters import Cluster, reached
from deploy.test_cluster.serving_conformance.defaults import CLASSES, GNOMON, STOCK, autoscaler
from deploy.test_cluster.settings import folders, image

ANNOTATIONS = {"metric": "rps", "target": "40", "window": "6s", "max-scale": "4"}
LOAD = ((20.0, 6.0), (80.0, 12.0), (20.0, 6.0))
READY_ROUNDS, ZERO_ROUNDS, LOAD_ROUNDS = 3, 12, 3
MODULES = ("knative.dev/serving", "k8s.io/kubernetes")
SEED = 32


@dataclass
class Seen:
    """What was measured of one class: seconds, and for each load its changes of the number of pods."""

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
    """All of it, both classes in turn."""
    seen = {name: Seen() for name in CLASSES}
    chance = Random(SEED)
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
            await asyncio.sleep(await from_zero(revisions[name], seen[name], chance))
    step("a load that rises and falls")
    for number in range(load):
        for name in turn(number):
            await rising(revisions[name], seen[name])
    for one in revisions.values():
        await asyncio.to_thread(one.remove)
    return seen


def turn(number: int) -> list[str]:
    """Who is first is second the next time."""
    names = [STOCK, GNOMON]
    return names if number % 2 == 0 else names[::-1]


def revision(found: Cluster, namespace_: str, name: str, number: int) -> Revision:
    """One of a class. The names are as long, so that nothing else differs."""
    annotations = {ANNOTATION + key: text for key, text in ANNOTATIONS.items()} | {ANNOTATION + "class": CLASSES[name]}
    return Revision(found, namespace_, f"{name}-{number}", image("answer"), annotations)


async def from_zero(one: Revision, seen: Seen, chance: Random) -> float:
    """A request when nothing lives; the pause until the next, which is to find autoscalers at any moment of their periods."""
    await one.sleeps()
    await asyncio.sleep(chance.uniform(0.5, 1.5))
    began_s = time.monotonic()
    answers = Answers()
    decided, _ = await asyncio.gather(one.woken(began_s), one.ask(answers))
    seen.decided_s.append(decided)
    seen.answered_s += answers.took_s
    seen.answers.lost += answers.lost
    return chance.uniform(0.0, 0.5)


async def rising(one: Revision, seen: Seen) -> None:
    """One pod, then the load."""
    await one.sleeps()
    await one.ask(Answers())
    began_s = time.monotonic()
    await one.load(seen.answers, *LOAD)
    await one.sleeps()
    changes = [(round(point.at_s - began_s, 2), point.replicas) for point in one.points if point.at_s >= began_s]
    before = [point.replicas for point in one.points if point.at_s < began_s][-1]
    listed = [(0.0, before), *changes]
    seen.changes.append(listed)
    seen.most.append(max(replicas for _, replicas in listed))
    seen.pod_seconds.append(sum((then[0] - now[0]) * now[1] for now, then in pairwise(listed)))
    # 80 a second at 70 % of 40 each: three pods are needed from the sixth second on.
    seen.reached_s += [at_s - LOAD[0][1] for at_s, replicas in listed if replicas >= 3 and at_s >= LOAD[0][1]][:1]


def publish(seen: Mapping[str, Seen], pace: Pace) -> None:
    """The figures, and what they are made of."""
    figures = [figure for name, one in seen.items() for figure in figures_of(name, one)]
    more = {
        "cluster": {module: build.version(module) for module in MODULES},
        "annotations": ANNOTATIONS,
        "load_rps_s": LOAD,
        "load_average": [round(one) for one in os.getloadavg()],
        "seen": {name: {key: value for key, value in asdict(one).items() if key != "answers"} for name, one in seen.items()},
    }
    write("kubernetes_knative", figures, repeats=1, packages=("gnomon", "kubernetes", "aiohttp"), folder=pace.results, more=more)


def figures_of(name: str, one: Seen) -> list[Figure]:
    """Medians of one class."""
    took_s = sorted(one.answers.took_s)
    asked = len(took_s) + len(one.answers.lost)
    seconds = {
        "created_to_ready": one.ready_s,
        "from_zero_to_decided": one.decided_s,
        "from_zero_to_answered": one.answered_s,
        "load_to_third_pod_wanted": one.reached_s,
    }
    made = [
        measured(f"{name}_{key}", [statistics.median(values)], "s", detail=f"median of {spread(values)}")
        for key, values in seconds.items()
        if values
    ]
    most = f"at most {max(one.most):.0f} pods, median of {spread(one.pod_seconds)}"
    made.append(measured(f"{name}_load_pod_seconds", [statistics.median(one.pod_seconds)], "s", detail=most))
    goal = 0.0 if name == GNOMON else None
    quantile = took_s[int(0.95 * len(took_s))]
    made.append(measured(f"{name}_load_p95", [quantile], "s", detail=f"of {len(took_s)} answers, the slowest {took_s[-1]:.2f} s"))
    return [*made, measured(f"{name}_lost", [len(one.answers.lost)], "requests", at_most=goal, detail=f"of {asked}")]


def spread(values: Sequence[float]) -> str:
    """How many there are, and from where to where."""
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
