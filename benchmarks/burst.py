"""One burst of load for one model, under several scaling policies: each second as a row, and a picture.

    make demo-burst                     asyfunc, od and k-lv one after the other
    python -m benchmarks.burst --model torchvision:inception_v3 --slo-ms 900

A model without a profile of this machine is added and profiled first; both are kept, so that the second run begins at once. For
each policy the run prints a row a second and the reason of each decision, then one line a policy. The picture is `burst.png` in
the folder `--output`, by default `.cache/burst`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import gnomon
from benchmarks.gnomon import Gnomon
from benchmarks.programs import ROOT, ended_well, step
from gnomon_core.profiles import ModelProfile
from gnomon_simulator.arrivals import poisson
from gnomon_simulator.replay import Plan, Target, replay_apart
from gnomon_simulator.replay_report import SUCCESSES, Outcome, Report
from gnomon_simulator.results import percentile

EVERY_S = 0.1
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Look:
    """One sample.

    `instances` counts them by kind and state, ("shadow", "starting") are those that load their blocks. `batches` were sent since
    the look before, of `samples` in all.
    """

    at_s: float
    instances: Mapping[tuple[str, str], int]
    offloaded: int
    batches: int
    samples: int
    memory_mib: float

    def count(self, kind: str, state: str) -> int:
        """The number of instances of this kind (body or shadow) in this state."""
        return self.instances.get((kind, state), 0)


def counted(detail: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """The instances of a function's document by kind and state."""
    kinds = (("body", detail["bodies"]), ("shadow", detail["shadows"]))
    return dict(Counter((kind, instance["state"]) for kind, instances in kinds for instance in instances))


class Watch:
    """Looks from `start` to `stop`, in a thread of its own. Times are on the machine's monotonic clock."""

    def __init__(self, ours: Gnomon, name: str) -> None:
        self._ours = ours
        self._name = name
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._sent = (0.0, 0.0)
        self.looks: list[Look] = []

    def start(self) -> None:
        self._sent = self._batches()
        self._thread.start()

    def stop(self) -> list[Look]:
        self._over.set()
        self._thread.join()
        return self.looks

    def _run(self) -> None:
        next_s = time.monotonic()
        while not self._over.is_set():
            self.looks.append(self._look())
            next_s += EVERY_S
            self._over.wait(max(0.0, next_s - time.monotonic()))

    def _look(self) -> Look:
        at_s = time.monotonic()
        detail = self._ours.call("GET", f"/gnomon/functions/{self._name}")
        usage = self._ours.call("GET", f"/system/function/{self._name}?usage=1").get("usage", {})
        before, self._sent = self._sent, self._batches()
        count, samples = self._sent[0] - before[0], self._sent[1] - before[1]
        return Look(
            at_s,
            counted(detail),
            int(detail["pairs"]["offloaded_samples"]),
            int(count),
            int(samples),
            float(usage.get("totalMemoryBytes", 0)) / MIB,
        )

    def _batches(self) -> tuple[float, float]:
        """The number of batches sent so far, and of their samples."""
        names = ("gnomon_batch_size_count", "gnomon_batch_size_sum")
        count, samples = (self._ours.series(name, self._name) for name in names)
        return count, samples


@dataclass(frozen=True, slots=True)
class Burst:
    """Seconds before, in and after the burst, and the two rates in requests per second."""

    before_s: float = 15.0
    burst_s: float = 8.0
    after_s: float = 12.0
    steady_rps: float = 1.0
    burst_rps: float = 3.0

    @property
    def duration_s(self) -> float:
        return self.before_s + self.burst_s + self.after_s

    def arrivals(self, seed: int) -> list[float]:
        """Arrival times in seconds from the start; the same seed gives the same times."""
        rng = random.Random(seed)
        times: list[float] = []
        begin_s = 0.0
        for length_s, rate_rps in (
            (self.before_s, self.steady_rps),
            (self.burst_s, self.burst_rps),
            (self.after_s, self.steady_rps),
        ):
            times += [begin_s + time_s for time_s in poisson(rate_rps, length_s, rng)]
            begin_s += length_s
        return times


def able_rps(profile: ModelProfile, cores: int, slo_s: float, max_batch: int) -> float:
    """R: the most that one Body can take within the objective; 0 where no batch meets it."""
    rates = [0.0]
    for batch in range(1, max_batch + 1):
        seconds = profile.whole.at(cores, batch)
        if seconds is not None and seconds <= slo_s:
            rates.append(batch / seconds)
    return max(rates)


def burst_for(profile: ModelProfile, slo_s: float, max_batch: int, *, times: float = 1.3) -> Burst:
    """The burst for a Body of one core."""
    rate_rps = able_rps(profile, 1, slo_s, max_batch)
    return Burst(steady_rps=0.5 * rate_rps, burst_rps=times * rate_rps)


BIN_S = 0.5


@dataclass(frozen=True, slots=True)
class Seen:
    """The run of one policy. Times of `looks` are seconds from the run's start."""

    policy: str
    burst: Burst
    slo_s: float
    report: Report
    looks: Sequence[Look]
    reasons: Sequence[str]

    def points(self) -> list[tuple[float, float]]:
        """Intended time and latency of each request that was answered well."""
        rows = self.report.samples
        return [
            (intended, answered - intended)
            for intended, answered, outcome, status in zip(
                rows.intended_s, rows.answered_s, rows.outcome, rows.status, strict=True
            )
            if outcome == Outcome.ANSWERED and status in SUCCESSES
        ]

    def violations(self, begin_s: float = 0.0, end_s: float = math.inf) -> tuple[int, int]:
        """The number of requests in this stretch that were not answered within the objective, and of all."""
        good = sum(begin_s <= at_s < end_s and latency_s <= self.slo_s for at_s, latency_s in self.points())
        requests = sum(begin_s <= at_s < end_s for at_s in self.report.samples.intended_s)
        return requests - good, requests

    def most(self, kind: str) -> int:
        """The largest number of ready instances of this kind at one time."""
        return max((look.count(kind, "ready") for look in self.looks), default=0)

    def memory_mib_s(self) -> float:
        """Memory × time over the run."""
        pairs = zip(self.looks, self.looks[1:], strict=False)
        return sum(first.memory_mib * (second.at_s - first.at_s) for first, second in pairs)


def table(runs: Sequence[Seen]) -> str:
    """A Markdown table with one line per policy."""
    heading = (
        f"{'policy':10} {'requests':>8} {'late or refused':>16} {'in the burst':>14} {'p50 ms':>7} {'p95 ms':>7} "
        f"{'Bodies':>6} {'Shadows':>7} {'offloaded':>9} {'GiB·s':>6}"
    )
    lines = [heading]
    for run in runs:
        late, count = run.violations()
        late_in, count_in = run.violations(run.burst.before_s, run.burst.before_s + run.burst.burst_s)
        latencies = sorted(latency_s for _, latency_s in run.points())
        p50_ms, p95_ms = (1e3 * (percentile(latencies, percent) or math.nan) for percent in (50, 95))
        lines.append(
            f"{run.policy:10} {count:8d} {late:7d} = {late / max(count, 1):5.1%} {late_in:6d} of {count_in:4d} "
            f"{p50_ms:7.0f} {p95_ms:7.0f} "
            f"{run.most('body'):6d} {run.most('shadow'):7d} "
            f"{run.looks[-1].offloaded - run.looks[0].offloaded if run.looks else 0:9d} {run.memory_mib_s() / 1024:6.2f}"
        )
    return "\n".join(lines)


def draw(runs: Sequence[Seen], title: str, path: Path) -> None:
    """A PNG: arrivals, instances, and latencies against the objective; a column for each policy."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, len(runs), figsize=(4.8 * len(runs), 6.6), sharex=True, sharey="row", squeeze=False)
    for column, run in enumerate(runs):
        _draw_one(axes[:, column], run)
    for row, label in enumerate(("requests/s", "instances", "latency (ms)")):
        axes[row][0].set_ylabel(label)
        axes[row][0].set_ylim(0, 1.1 * max(axis.dataLim.ymax for axis in axes[row]))
    figure.suptitle(title, fontsize=11)
    labelled = {label: handle for axes_ in axes.flat for handle, label in zip(*axes_.get_legend_handles_labels(), strict=True)}
    # Below the panels: a legend among them would lie over data.
    figure.legend(labelled.values(), labelled.keys(), loc="lower center", ncols=4, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def _draw_one(axes: Any, run: Seen) -> None:
    rate, instances, latency = axes
    end_s = run.burst.duration_s
    bins = [index * BIN_S for index in range(math.ceil(end_s / BIN_S) + 1)]
    counts = [0.0] * (len(bins) - 1)
    for at_s in run.report.samples.intended_s:
        counts[min(int(at_s / BIN_S), len(counts) - 1)] += 1 / BIN_S
    rate.stairs(counts, bins, fill=True, color="#9db4c0")
    _draw_instances(instances, run)
    good = [(at, 1e3 * seconds) for at, seconds in run.points() if seconds <= run.slo_s]
    bad = [(at, 1e3 * seconds) for at, seconds in run.points() if seconds > run.slo_s]
    for points, colour, label in ((good, "#5c8a5c", "answered in time"), (bad, "#b23a48", "answered late")):
        latency.plot([at for at, _ in points], [ms for _, ms in points], ".", ms=4, color=colour, label=label)
    latency.axhline(1e3 * run.slo_s, color="#253237", lw=0.8, ls="--", label="objective")
    latency.set_xlabel("seconds")
    late, count = run.violations()
    rate.set_title(f"{run.policy}: {late} of {count} late or refused ({late / max(count, 1):.1%})", fontsize=10)
    for axis in axes:
        axis.axvspan(run.burst.before_s, run.burst.before_s + run.burst.burst_s, color="#e0a458", alpha=0.12, lw=0)
        axis.set_xlim(0, end_s)


def _draw_instances(axes: Any, run: Seen) -> None:
    """Shadows as an area, Bodies as a line; dotted with those that start."""
    looks_s = [look.at_s for look in run.looks]
    shadows, bodies = ([look.count(kind, "ready") for look in run.looks] for kind in ("shadow", "body"))
    axes.fill_between(looks_s, shadows, step="post", label="Shadows", color="#e0a458", alpha=0.8)
    axes.step(looks_s, bodies, where="post", label="Bodies", color="#253237")
    axes.yaxis.get_major_locator().set_params(integer=True)
    for kind, ready, colour in (("shadow", shadows, "#b5762a"), ("body", bodies, "#253237")):
        whole = [now + look.count(kind, "starting") for now, look in zip(ready, run.looks, strict=True)]
        axes.step(looks_s, whole, where="post", color=colour, lw=0.9, ls=":", label="with those that start")


HEADING = (
    f"{'s':>3} {'asked':>6} {'late':>5} {'p50 ms':>7} {'p95 ms':>7} {'batch':>6} {'Bodies':>7} {'Shadows':>8} "
    f"{'offloaded':>9} {'MiB':>6}"
)


@dataclass(frozen=True, slots=True)
class Second:
    """One second of a run; None where nothing was answered or sent. `late` counts late and refused requests."""

    at_s: int
    asked: int
    late: int
    p50_s: float | None
    p95_s: float | None
    batch: float | None
    bodies: str
    shadows: str
    offloaded: int
    memory_mib: float

    def __str__(self) -> str:
        p50_ms, p95_ms = ("-" if seconds is None else f"{1e3 * seconds:.0f}" for seconds in (self.p50_s, self.p95_s))
        batch = "-" if self.batch is None else f"{self.batch:.1f}"
        return (
            f"{self.at_s:3d} {self.asked:6d} {self.late:5d} {p50_ms:>7} {p95_ms:>7} {batch:>6} {self.bodies:>7} "
            f"{self.shadows:>8} {self.offloaded:9d} {self.memory_mib:6.0f}"
        )


def seconds(run: Seen) -> list[Second]:
    """All seconds of the run, idle ones included."""
    points, found, offloaded = run.points(), [], run.looks[0].offloaded if run.looks else 0
    for at_s in range(math.ceil(run.burst.duration_s)):
        looks = [look for look in run.looks if at_s <= look.at_s < at_s + 1]
        latencies = sorted(latency_s for intended_s, latency_s in points if at_s <= intended_s < at_s + 1)
        late, asked = run.violations(at_s, at_s + 1)
        before, offloaded = offloaded, looks[-1].offloaded if looks else offloaded
        found.append(
            Second(
                at_s,
                asked,
                late,
                percentile(latencies, 50),
                percentile(latencies, 95),
                _mean_batch(looks),
                _most(looks, "body"),
                _most(looks, "shadow"),
                offloaded - before,
                max((look.memory_mib for look in looks), default=0.0),
            )
        )
    return found


def by_second(run: Seen) -> str:
    """A row a second."""
    return "\n".join((HEADING, *map(str, seconds(run))))


def _mean_batch(looks: Sequence[Look]) -> float | None:
    batches = sum(look.batches for look in looks)
    return sum(look.samples for look in looks) / batches if batches else None


def _most(looks: Sequence[Look], kind: str) -> str:
    """`2+1`: two are ready at most, one more starts."""
    ready, starting, draining = (
        max((look.count(kind, state) for look in looks), default=0) for state in ("ready", "starting", "draining")
    )
    return f"{ready}{f'+{starting}' if starting else ''}{f'-{draining}' if draining else ''}"


NAME = "burst"
POLICIES = ("asyfunc", "od", "k-lv")
REST_S = 3.0


def main() -> None:
    options = _arguments()
    add_and_profile(options.model)
    profile = read_profile(options.model)
    slo_s = options.slo_ms / 1e3 if options.slo_ms else 2.0 * (profile.whole.at(1, 4) or 0.5)
    burst = burst_for(profile, slo_s, options.max_batch, times=options.times)
    if not burst.steady_rps:
        raise SystemExit(f"No batch of {options.model} meets {1e3 * slo_s:.0f} ms on one core here: give it more with --slo-ms.")
    rate_rps = able_rps(profile, 1, slo_s, options.max_batch)
    step(f"{options.model}: objective {1e3 * slo_s:.0f} ms, one Body takes {rate_rps:.1f} requests/s within it")
    step(f"load: {burst.steady_rps:.1f}/s for {burst.before_s:g} s, {burst.burst_rps:.1f}/s for {burst.burst_s:g} s, and back")
    runs = [run(policy, options, burst, slo_s) for policy in options.policies.split(",")]
    for seen in runs:
        print(f"\n{seen.policy}, second by second (ready, + starting, - draining):\n{by_second(seen)}\n")
        print("\n".join(f"  {reason}" for reason in seen.reasons) or "  decided nothing")
    print(f"\n{table(runs)}")
    path = options.output / "burst.png"
    draw(runs, f"{options.model}, {1e3 * slo_s:.0f} ms, weights {options.weight_mode}", path)
    print(f"\nThe picture: {path}")


def run(policy: str, options: argparse.Namespace, burst: Burst, slo_s: float) -> Seen:
    """Run one policy on a Gnomon of its own."""
    with gnomon.serving() as ours:
        deploy(ours, policy, options, slo_s)
        step(f"{policy}: serving; {burst.duration_s:g} s of load")
        watch = Watch(ours, NAME)
        watch.start()
        with ThreadPoolExecutor(1) as pool:
            report = pool.submit(load, ours, burst, 4 * slo_s).result()
        time.sleep(REST_S)
        looks = watch.stop()
        reasons = decisions(ours, datetime.fromisoformat(report.started_at))
    begun_s = report.started_monotonic_s
    moved = [replace(look, at_s=look.at_s - begun_s) for look in looks if begun_s <= look.at_s <= begun_s + burst.duration_s]
    return Seen(policy, burst, slo_s, report, moved, reasons)


def deploy(ours: gnomon.Gnomon, policy: str, options: argparse.Namespace, slo_s: float) -> None:
    """Deploy the model with this policy and wait until it serves."""
    annotations = {
        "gnomon/model": options.model,
        "gnomon/autoscaler": policy,
        "gnomon/scheduler": "adaptive",
        "gnomon/slo-ms": f"{1e3 * slo_s:.0f}",
        "gnomon/max-batch": str(options.max_batch),
        "gnomon/weight-mode": options.weight_mode,
        "gnomon/deadline-ms": f"{4e3 * slo_s:.0f}",
    }
    labels = {"com.openfaas.scale.min": "1", "com.openfaas.scale.max": str(options.most)}
    ours.call(
        "POST", "/system/functions", {"service": NAME, "image": "gnomon/body", "annotations": annotations, "labels": labels}
    )
    ours.wait_replicas(NAME, 1)


def load(ours: gnomon.Gnomon, burst: Burst, deadline_s: float) -> Report:
    """Send the burst."""
    return replay_apart(Plan(burst.arrivals(seed=1), deadline_s, max_connections=512), inference(ours, NAME))


def inference(ours: gnomon.Gnomon, name: str) -> Target:
    """A request of the open inference protocol to a function of a model: a tensor of random numbers, the same each time."""
    document = ours.call("GET", f"/v2/models/{name}")
    rng = np.random.default_rng(1)
    inputs: list[dict[str, Any]] = []
    tensors: list[bytes] = []
    for spec in document["inputs"]:
        shape = [1, *(int(size) for size in spec["shape"][1:])]
        tensors.append(rng.standard_normal(shape, dtype=np.float32).tobytes())
        inputs.append(
            {"name": spec["name"], "shape": shape, "datatype": "FP32", "parameters": {"binary_data_size": len(tensors[-1])}}
        )
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return Target(f"{ours.url}/v2/models/{name}/infer", headers=headers, body=b"".join((head, *tensors)))


def decisions(ours: gnomon.Gnomon, since: datetime) -> list[str]:
    """Decisions of the policy since then, with their reasons, oldest first."""
    rows = ours.call("GET", f"/gnomon/functions/{NAME}/decisions?limit=500")
    changed = [(datetime.fromisoformat(row["at"]), row["reason"]) for row in rows if row["actions"]]
    return [f"{(at - since).total_seconds():6.2f} s  {reason}" for at, reason in sorted(changed) if at >= since]


def add_and_profile(model: str) -> None:
    """Put the model and its profile where `gnomon serve` of a benchmark finds them, unless they are there."""
    common = ["--models", str(gnomon.MODELS)]
    subprocess.run([gnomon.COMMAND, "models", "add", model, *common], check=True)
    if not profile_files(model):
        step(f"{model} has no profile of this machine yet: measuring, some minutes")
        subprocess.run([gnomon.COMMAND, "models", "profile", model, *common, "--cores", "1", "--repeats", "5"], check=True)


def profile_files(model: str) -> list[Path]:
    """The profiles of the model's first version, the newest last."""
    folder = gnomon.MODELS / "profiles" / f"{model}@1"
    return sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime) if folder.is_dir() else []


def read_profile(model: str) -> ModelProfile:
    return ModelProfile.from_json(json.loads(profile_files(model)[-1].read_text(encoding="utf-8")))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.burst", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="torchvision:resnet50", help="as `gnomon models add` takes it")
    parser.add_argument("--policies", default=",".join(POLICIES), help=f"default {','.join(POLICIES)}")
    parser.add_argument("--slo-ms", type=float, help="the objective; default: twice what a batch of 4 takes on one core")
    parser.add_argument("--max-batch", type=int, default=8)
    parser.add_argument("--most", type=int, default=2, help="the most Bodies")
    parser.add_argument("--times", type=float, default=1.3, help="the burst's rate over what one Body takes; default 1.3")
    parser.add_argument("--weight-mode", choices=("shared", "private"), default="shared")
    parser.add_argument("--output", type=Path, default=ROOT / ".cache" / "burst")
    return parser.parse_args()


if __name__ == "__main__":
    ended_well(main)
