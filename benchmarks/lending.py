"""Two functions that compete for the cores of one machine, live: `gnomon` with and without lent cores, beside the other policies.

    python -m benchmarks.lending [--quick] [--repeats N] [--seconds S] [--model NAME]

Both functions serve the same model on the engine `program`. Each has bursts of its own: nothing for 12 s on average, then 3 s on
average at 1.2 of the rate that a Body of one core answers. One burst is more than one core answers, and two at once are more than
a machine of two cores does. The same requests are sent to every policy, each on a `gnomon serve` of its own, and the policies
take turns:

- `gnomon`: one Body a function, which borrows cores for each batch;
- `gnomon without lending`: Bodies of one core each, as many as the rule says;
- `kpa`, `od`: the same Bodies in the same batches, by Knative's rule and by the rate of the last second;
- `asyfunc`: Bodies of one core, and Shadows; `batch`: BATCH's plan of batches and instances.

A request is late if it is not answered within the objective, 5 × the time of one sample on one core. Memory is what instances
reserve, in the mean. CPU seconds are those of the instances. The gateway and the load generator run on the same cores.

A model that has no profile of this machine is profiled first, which takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks import burst, gnomon
from benchmarks.load import lag_p99_ms
from benchmarks.parity.live import LEAD_S, MODEL, MemoryWatch
from benchmarks.policy import switched
from benchmarks.programs import ended_well, pace_of, pace_parser, step
from benchmarks.report import Figure, measured, write
from gnomon_core.engines import PROGRAM
from gnomon_core.profiles import ModelProfile
from gnomon_simulator.events import stream
from gnomon_simulator.replay import Plan, replay_apart
from gnomon_simulator.results import percentile

FUNCTIONS = ("left", "right")
POLICIES: Mapping[str, Mapping[str, str]] = {
    "gnomon": {"gnomon/autoscaler": "gnomon"},
    "gnomon without lending": {"gnomon/autoscaler": "gnomon", "gnomon/without": "lending"},
    "kpa": {"gnomon/autoscaler": "kpa", "gnomon/scheduler": "economical"},
    "od": {"gnomon/autoscaler": "od", "gnomon/scheduler": "economical"},
    "asyfunc": {"gnomon/autoscaler": "asyfunc", "gnomon/max-cores": "1"},
    "batch": {"gnomon/autoscaler": "batch"},
}
REPEATS, QUICK_REPEATS = 5, 1
SECONDS, QUICK_S = 120.0, 10.0
OFF, ON = (0.0, 12.0), (1.2, 3.0)
"""Rates as shares of what a Body of one core answers, and the mean length of each state in seconds."""
OBJECTIVE = 5.0
MAX_BATCH = 4
GB = 1e9


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a policy for both functions: the share of late requests, and sums over both."""

    late: float
    p50_s: float
    p95_s: float
    cpu_s: float
    memory_bytes: float
    lag_p99_s: float


def arrivals(function: str, rate_rps: float, seconds: float, repeat: int) -> list[float]:
    """The arrivals of a function in a repeat, the same for every policy."""
    states = [(share * rate_rps, mean_s) for share, mean_s in (OFF, ON)]
    return switched(stream(repeat, f"lending of {function}"), seconds, *states)


@dataclass(frozen=True, slots=True)
class Load:
    """The model that both functions serve, and the arrivals of each by its name."""

    model: str
    slo_s: float
    cores: int
    times_s: Mapping[str, Sequence[float]]


def run(policy: str, load: Load) -> Outcome:
    """Serve both functions by one policy."""
    names = list(load.times_s)
    with gnomon.serving(options=["--lend-cores"]) as ours:
        for name in names:
            _deploy(ours, name, policy, load)
        targets = [burst.inference(ours, name) for name in names]
        with ExitStack() as stack:
            watches = [stack.enter_context(MemoryWatch(ours, name)) for name in names]
            begun_s = time.monotonic()
            _mean_cores(ours, names)
            plans = [Plan(load.times_s[name], 4 * load.slo_s, max_connections=256, lead_s=LEAD_S) for name in names]
            with ThreadPoolExecutor(len(names)) as pool:
                reports = list(pool.map(replay_apart, plans, targets))
            cpu_s = _mean_cores(ours, names) * (time.monotonic() - begun_s)
    latencies_s = sorted(seconds for report in reports for seconds in report.latencies_s())
    requests = sum(len(report.samples) for report in reports)
    looks = [held for watch in watches for _, held in watch.looks]
    return Outcome(
        late=1 - sum(seconds <= load.slo_s for seconds in latencies_s) / requests,
        p50_s=percentile(latencies_s, 50) or 0.0,
        p95_s=percentile(latencies_s, 95) or 0.0,
        cpu_s=cpu_s,
        memory_bytes=len(names) * sum(looks) / max(1, len(looks)),
        lag_p99_s=max(lag_p99_ms(report) for report in reports) / 1e3,
    )


def _deploy(ours: gnomon.Gnomon, name: str, policy: str, load: Load) -> None:
    annotations = {
        "gnomon/model": load.model, "gnomon/engine": PROGRAM, "gnomon/slo-ms": f"{1e3 * load.slo_s:.0f}",
        "gnomon/deadline-ms": f"{4e3 * load.slo_s:.0f}", "gnomon/max-batch": str(MAX_BATCH), "gnomon/max-cores": str(load.cores),
        **POLICIES[policy],
    }  # fmt: skip
    labels = {"com.openfaas.scale.min": "1", "com.openfaas.scale.max": str(load.cores)}
    document = {"service": name, "image": "gnomon/body", "annotations": annotations, "labels": labels}
    ours.call("POST", "/system/functions", document)
    ours.wait_replicas(name, 1)


def _mean_cores(ours: gnomon.Gnomon, names: Sequence[str]) -> float:
    """The mean number of cores that the functions' instances have used since the last call."""
    usages = [ours.call("GET", f"/system/function/{name}?usage=1").get("usage", {}) for name in names]
    return sum(float(usage.get("cpu", 0.0)) for usage in usages) / 1e3


def figures_of(found: Mapping[str, Sequence[Outcome]]) -> list[Figure]:
    """The figures of each policy over the repeats. They stand beside each other and have no goals."""
    made: list[Figure] = []
    for policy, outcomes in found.items():
        lag = f"the load generator's delay was at most {1e3 * max(outcome.lag_p99_s for outcome in outcomes):.1f} ms (p99)"
        made += [
            measured(f"{policy}: late", [100 * outcome.late for outcome in outcomes], "%", detail=lag),
            measured(f"{policy}: p50", [1e3 * outcome.p50_s for outcome in outcomes], "ms"),
            measured(f"{policy}: p95", [1e3 * outcome.p95_s for outcome in outcomes], "ms"),
            measured(f"{policy}: CPU", [outcome.cpu_s for outcome in outcomes], "s"),
            measured(f"{policy}: memory", [outcome.memory_bytes / GB for outcome in outcomes], "GB"),
        ]
    return made


def read_profile(model: str) -> ModelProfile:
    """The model's profile on the engine `program` and all cores of this machine, measured now if there is none."""
    common = ["--models", str(gnomon.MODELS)]
    subprocess.run([gnomon.COMMAND, "models", "add", model, *common], check=True)
    profile = _complete_profile(model)
    if profile is None:
        step(f"{model} has no profile of `{PROGRAM}` on all cores of this machine yet: measuring, some minutes")
        command = [gnomon.COMMAND, "models", "profile", model, *common, "--engine", PROGRAM, "--repeats", "5"]
        subprocess.run(command, check=True)
        profile = _complete_profile(model)
    assert profile is not None
    return profile


def _complete_profile(model: str) -> ModelProfile | None:
    """The newest profile on the engine that serves here, if it has a row for more than one core."""
    profiles = [ModelProfile.from_json(json.loads(path.read_text(encoding="utf-8"))) for path in burst.profile_files(model)]
    complete = [
        profile for profile in profiles if profile.engine == PROGRAM and (len(profile.whole.seconds) > 1 or os.cpu_count() == 1)
    ]
    return complete[-1] if complete else None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--model", default=MODEL, help=f"default {MODEL}")
    parser.add_argument("--repeats", type=int, help=f"runs of each policy; {REPEATS} unless it is said")
    parser.add_argument("--seconds", type=float, help=f"load of a run; {SECONDS:g} unless it is said")
    options: argparse.Namespace = parser.parse_args(arguments)
    pace = pace_of(options)
    repeats = options.repeats or (QUICK_REPEATS if pace.quick else REPEATS)
    seconds = options.seconds or (QUICK_S if pace.quick else SECONDS)
    profile, cores = read_profile(options.model), os.cpu_count() or 1
    sample_s = profile.whole.at(1, 1) or 0.1
    slo_s, rate_rps = OBJECTIVE * sample_s, burst.able_rps(profile, 1, OBJECTIVE * sample_s, MAX_BATCH)
    step(f"{options.model}: objective {1e3 * slo_s:.0f} ms, one core answers {rate_rps:.1f} requests/s within it")
    found: dict[str, list[Outcome]] = {policy: [] for policy in POLICIES}
    for repeat in range(1, repeats + 1):
        times_s = {name: arrivals(name, rate_rps, seconds, repeat) for name in FUNCTIONS}
        load = Load(options.model, slo_s, cores, times_s)
        # In turn, and each first once: what changes on the machine meanwhile changes for all of them.
        names = list(POLICIES)
        for policy in names[repeat % len(names) :] + names[: repeat % len(names)]:
            outcome = run(policy, load)
            found[policy].append(outcome)
            step(f"{repeat} of {repeats}: {policy}: {outcome}")
    more = {"seconds": seconds, "model": options.model, "slo_s": slo_s, "rate_rps": rate_rps, "profile": dict(profile.provenance)}
    write("lending", figures_of(found), repeats=repeats, packages=("gnomon", "torch"), folder=pace.results, more=more)


if __name__ == "__main__":
    ended_well(main)
