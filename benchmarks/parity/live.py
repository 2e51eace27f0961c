"""One stretch of load on a real `gnomon serve`, recorded.

Two workloads. `handler` is a function that sleeps: up to eight instances of it fit on a machine of two cores, which is said to
have eight (`gnomon serve --cores 8`). Policies that decide without a model's profile run it. `model` is a real network on the
machine's own cores, for policies that need its layer blocks.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks import burst, gnomon
from benchmarks.load import lag_p99_ms
from benchmarks.programs import Endpoint
from gnomon_core.clock import utc_now_s
from gnomon_simulator.arrivals import poisson
from gnomon_simulator.events import stream
from gnomon_simulator.replay import Plan, Target, replay_apart

HANDLER = "parity"
MODEL = "efficientnet-lite0"
BURST_MODEL = "torchvision:resnet50"
"""Of the burst with and without Shadows: the gateway transfers the other model's tensors for longer than a Body computes."""
STRETCHES = ("calm", "ramp", "bursty")
STAYS_S = (15.0, 6.0)
"""Mean stays of `bursty` below and at the peak."""
LOOK_S = 0.2
LEAD_S = 2.0


@dataclass(frozen=True, slots=True)
class Workload:
    """A function: the cores that the node is said to have, and the rate at the peak of a stretch."""

    name: str
    cores: int
    peak_rps: float
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


WORKLOADS = {
    "handler": Workload(HANDLER, 8, 80.0),
    "model": Workload(
        "parity-model",
        2,
        50.0,
        {
            "gnomon/model": MODEL, "gnomon/slo-ms": "300", "gnomon/deadline-ms": "5000", "gnomon/max-batch": "4",
            "gnomon/max-cores": "1", "gnomon/weight-mode": "private",
        },
        {"com.openfaas.scale.min": "1", "com.openfaas.scale.max": "2"},
    ),
}  # fmt: skip


def arrivals(stretch: str, peak_rps: float, seconds: float, seed: int) -> list[float]:
    """The arrival times of a stretch; the same seed gives the same times.

    `calm` is Poisson at 0.4 of the peak, `ramp` rises from 0.2 of it to the peak, `bursty` switches between 0.3 and all of it.
    """
    rng = stream(seed, f"parity of {stretch}")
    if stretch == "calm":
        return poisson(0.4 * peak_rps, seconds, rng)
    shares = _bursts(seconds, rng) if stretch == "bursty" else None
    # Thinning: of a Poisson process at the peak, each arrival stays with the probability of the rate at its moment.
    return [
        at_s
        for at_s in poisson(peak_rps, seconds, rng)
        if rng.random() < (0.2 + 0.8 * at_s / seconds if shares is None else _share_at(shares, at_s))
    ]


def _bursts(seconds: float, rng: random.Random) -> list[tuple[float, float]]:
    """When each state begins, and its share of the peak."""
    found, at_s, high = [], 0.0, False
    while at_s < seconds:
        found.append((at_s, 1.0 if high else 0.3))
        at_s += rng.expovariate(1.0 / STAYS_S[high])
        high = not high
    return found


def _share_at(shares: Sequence[tuple[float, float]], at_s: float) -> float:
    return next(share for begin_s, share in reversed(shares) if begin_s <= at_s)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A live stretch as it was recorded, in JSON's types; the requests are in the file `record`.

    `looks` are seconds since 1970 and the bytes that instances reserve.
    """

    record: str
    decisions: list[dict[str, Any]]
    looks: list[tuple[float, int]]
    labels: dict[str, str]
    annotations: dict[str, str]
    started_at: str
    lag_p99_s: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class MemoryWatch:
    """Samples the bytes that a function's instances reserve, by the control API, in a thread of its own."""

    def __init__(self, ours: gnomon.Gnomon, name: str) -> None:
        self._ours, self._name = ours, name
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.looks: list[tuple[float, int]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            at_s = utc_now_s()
            detail = self._ours.call("GET", f"/gnomon/functions/{self._name}")
            self.looks.append((at_s, sum(int(row["memory_bytes"]) for row in (*detail["bodies"], *detail["shadows"]))))


def record(workload: Workload, policy: str, times_s: Sequence[float], path: Path) -> Recorded:
    """Run a policy live, from the function's deployment to the last answer. Requests are written to `path`."""
    with gnomon.serving(options=["--cores", str(workload.cores)]) as ours:
        target = _deploy(ours, workload, policy)
        with MemoryWatch(ours, workload.name) as watch:
            report = replay_apart(Plan(times_s, 5.0, max_connections=512, lead_s=LEAD_S), target)
        decisions = ours.call("GET", f"/gnomon/functions/{workload.name}/decisions?limit=1000")
        document = ours.function(workload.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    report.write_record(path)
    return Recorded(
        record=path.name,
        decisions=decisions,
        looks=watch.looks,
        labels=document.get("labels") or {},
        annotations=document.get("annotations") or {},
        started_at=report.started_at,
        lag_p99_s=lag_p99_ms(report) / 1e3,
    )


def _deploy(ours: gnomon.Gnomon, workload: Workload, policy: str) -> Target:
    """Deploy the function with this policy and wait until one instance serves."""
    chosen = {"gnomon/autoscaler": policy, **workload.annotations}
    if workload.name == HANDLER:
        ours.deploy(HANDLER, chosen)
        ours.wait_replicas(HANDLER, 1)
        return target_of(Endpoint.of("gnomon", f"{ours.url}/function/{HANDLER}", "noop"))
    spec = {"service": workload.name, "image": "gnomon/body", "annotations": chosen, "labels": dict(workload.labels)}
    ours.call("POST", "/system/functions", spec)
    ours.wait_replicas(workload.name, 1)
    return burst.inference(ours, workload.name)


def target_of(endpoint: Endpoint) -> Target:
    """The request to a handler, as the load generator sends it."""
    return Target(endpoint.url, headers=endpoint.headers, body=endpoint.body)
