"""`gnomon` beside other policies on simulated clusters: what it loses and costs, and what each mechanism is worth.

    python -m benchmarks.policy [--quick] [--stretch SECONDS] [--models NAME …] [--parts PART …] [--afresh] [--processes N]

Everything is simulated: profiles as published, extrapolated beyond two cores with 5 % serial work, an
objective of 1.5 × t(16, 8), 13 nodes of 26 cores, private weights. Nothing is set per model: `gnomon` has the objective and a
bound of 26 cores. Start-up counts; what is late after the first 35 s stands beside it. The parts:

- `models`: a stretch of Twitter's busy hour, scaled to the rate of eight Bodies, for each of nine models; beside `od`;
- `traffic`: two models under an MMPP (0.8 and 2 × the rate, 60 and 12 s on average) and on/off (2 × for 30 s, nothing for 30 s);
- `small`: the same at the rate of one and of two Bodies, Poisson;
- `starts`: two models under MMPP and on/off whose Bodies take 0.2, 1 and 4.6 s to start, on nodes that lend cores and on nodes
  that do not, with and without Shadows; beside `kpa`, `od` and `asyfunc`;
- `ablation`: two models without each mechanism, with other schedulers, with 16 cores, and with a window of 60 s;
- `latency`: the 95th percentile beside `kpa` with the memory nearest to that of `gnomon`, its target swept.

Results are kept in .cache/benchmarks until the code changes, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace

from benchmarks.asyfunc_cluster import GB, NODE_BYTES, NODE_CORES, Cell, chosen, deserved, hour, read_model, settings_of
from benchmarks.programs import ROOT, pace_of, pace_parser, step
from benchmarks.report import Figure, ResultCache, write
from gnomon_autoscaler.policies.gnomon import Gnomon, Options
from gnomon_autoscaler.registry import BUILT_IN
from gnomon_core.policy_registry import PolicyPlugin
from gnomon_core.settings import MECHANISMS
from gnomon_simulator.arrivals import poisson
from gnomon_simulator.events import stream
from gnomon_simulator.profiles import modelled
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, simulate

MODELS = (
    "yolov8x", "ssd300_vgg16", "vgg19", "vgg16", "efficientnet_b5", "vit_b_16", "inception_v3", "resnet101", "resnet50",
)  # fmt: skip
TWO = ("yolov8x", "ssd300_vgg16")
PARTS = ("models", "traffic", "small", "starts", "ablation", "latency")
SERIAL, SLO, NODES = 0.05, 1.5, 13
HOUR_S, QUARTER_S, QUICK_S = 3600.0, 900.0, 60.0
START_UP_S = 35.0
SOURCES = ("core", "autoscaler", "simulator", "gateway-plugin", "benchmarks/policy.py", "benchmarks/asyfunc_cluster.py")
VARIANTS: Mapping[str, Options] = {f"without {name}": Options().without((name,)) for name in MECHANISMS} | {
    "without lending, shadows": Options().without(("lending", "shadows")),
    "a window of 60 s": Options(window_s=60.0),
}
STARTS_S = (0.2, 1.0, 4.6)
AT_STARTS = ("kpa", "od", "asyfunc", "gnomon", "without lending", "without lending, shadows")
SCHEDULED = {"scheduler immediate": "immediate", "scheduler adaptive": "adaptive"}
KPA_TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation: a model, its traffic at the rate of so many Bodies, and a policy or a variant of `gnomon`.

    A Body is ready `start_s` after its creation; None for the profile's time.
    """

    model: str
    traffic: str
    policy: str
    duration_s: float
    bodies: float = 8.0
    max_cores: int = NODE_CORES
    target: float = 0.7
    start_s: float | None = None

    @property
    def key(self) -> str:
        start = "" if self.start_s is None else f" {self.start_s:g} s to start"
        size = f"{self.bodies:g} {self.max_cores} {self.target:g}"
        return f"{self.model} {self.traffic} {self.policy} {self.duration_s:g} s {size}{start}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Shares of requests, bytes, cores; `late_after` is what was late after start-up."""

    late: float
    late_after: float
    memory_bytes: float
    cores: float
    utility: float
    bodies: float
    p95_s: float
    shadows: float


def simulated(run: Run) -> Outcome:
    """Simulate one run."""
    model = read_model(ROOT / "profiles" / f"{run.model}.json", SERIAL)
    if run.start_s is not None:
        loading_s = model.loading["private"].seconds(model.layers.parameter_bytes())
        model = replace(model, body_start_s=run.start_s - loading_s)
    settings = settings_of(Cell(ROOT, SERIAL, SLO, "private", None, run.duration_s), model)
    full_rps = deserved(model, settings)
    rate_rps = full_rps * run.bodies / 8
    best = chosen(model, settings, full_rps)
    arrivals = arrivals_of(run, rate_rps)
    warm = max(1, math.ceil(sum(time_s < 10.0 for time_s in arrivals) / 10.0 / settings.alpha / best.rate_rps))
    policies, name, scheduler = dict(BUILT_IN), run.policy, None
    if run.policy not in BUILT_IN:
        name, scheduler = "gnomon", SCHEDULED.get(run.policy)
        options = VARIANTS.get(run.policy, Options())
        policies["gnomon"] = PolicyPlugin(lambda _: Gnomon(options), "A variant.")
    ours = name == "gnomon"
    settings = replace(
        settings,
        autoscaler=name,
        scheduler=scheduler,
        cores=best.cores,
        max_cores=run.max_cores if ours else settings.max_cores,
        max_batch=settings.max_batch if ours else best.batch,
        target_utilization=run.target,
    )
    plan = FunctionPlan("model", settings, modelled(model, "private"), arrivals, "given", warm=warm, policies=policies)
    result = simulate([plan], [NodePlan(f"node-{number:02}", NODE_CORES, NODE_BYTES) for number in range(NODES)])["model"]
    rows, slo_s = result.requests, settings.slo_s
    columns = zip(rows.arrived_s, rows.finished_s, rows.status, strict=True)
    late_s = [arrived for arrived, finished, status in columns if status != 200 or finished - arrived > slo_s]
    return Outcome(
        late=len(late_s) / len(rows),
        late_after=sum(time_s >= START_UP_S for time_s in late_s) / len(rows),
        memory_bytes=result.cost.memory_byte_s / result.duration_s,
        cores=result.cost.core_s / result.duration_s,
        utility=result.cost.cpu_utility,
        bodies=result.cost.instance_s / result.duration_s,
        p95_s=result.percentile_s(95.0) or math.inf,
        shadows=result.cost.shadow_s / result.duration_s,
    )


def arrivals_of(run: Run, rate_rps: float) -> list[float]:
    """The arrivals of a run, the same for every policy."""
    if run.traffic == "Twitter":
        return hour(run.duration_s, rate_rps)
    rng = stream(1, run.traffic)
    if run.traffic == "Poisson":
        return poisson(rate_rps, run.duration_s, rng)
    if run.traffic == "MMPP":
        return switched(rng, run.duration_s, (0.8 * rate_rps, 60.0), (2.0 * rate_rps, 12.0))
    return switched(rng, run.duration_s, (0.0, 30.0), (2.0 * rate_rps, 30.0))


def switched(rng: random.Random, duration_s: float, *states: tuple[float, float]) -> list[float]:
    """A Poisson process that goes through (rate, mean length) states in turn, each of an exponential length."""
    arrivals: list[float] = []
    now_s, number = 0.0, 0
    while now_s < duration_s:
        rate_rps, mean_s = states[number % len(states)]
        end_s = min(duration_s, now_s + rng.expovariate(1 / mean_s))
        while rate_rps > 0.0:
            now_s += rng.expovariate(rate_rps)
            if now_s >= end_s:
                break
            arrivals.append(now_s)
        now_s, number = end_s, number + 1
    return arrivals


def runs_of(part: str, models: Sequence[str], duration_s: float) -> list[Run]:
    """The simulations of a part."""
    two = [model for model in TWO if model in models] or list(models[:1])
    if part == "models":
        return [Run(model, "Twitter", policy, duration_s) for model in models for policy in ("od", "gnomon")]
    if part in ("traffic", "starts"):
        starts_s, policies = (STARTS_S, AT_STARTS) if part == "starts" else ((None,), ("od", "asyfunc", "gnomon"))
        return [
            Run(model, kind, policy, duration_s, start_s=start_s)
            for model in two
            for kind in ("MMPP", "on/off")
            for start_s in starts_s
            for policy in policies
        ]
    if part == "small":
        return [Run(model, "Poisson", "gnomon", duration_s, bodies) for model in two for bodies in (1.0, 2.0)]
    if part == "ablation":
        traffic = ("Twitter", "MMPP")
        names = ("gnomon", *VARIANTS, *SCHEDULED)
        found = [Run(model, kind, name, duration_s) for model in two for kind in traffic for name in names]
        return found + [Run(model, kind, "gnomon", duration_s, max_cores=16) for model in two for kind in traffic]
    if part == "latency":
        kpa = [Run(model, "Twitter", "kpa", duration_s, target=target) for model in two for target in KPA_TARGETS]
        return kpa + [Run(model, "Twitter", "gnomon", duration_s) for model in two]
    return []


def figures_of(part: str, found: Mapping[Run, Outcome]) -> list[Figure]:
    """A part's figures, with the goals that there are."""
    if part == "models":
        return of_models(found)
    if part == "latency":
        return of_latency(found)
    made = []
    for run, outcome in found.items():
        goal = {"small": 0.2, "traffic": 0.1 if run.traffic == "MMPP" else None}.get(part) if run.policy == "gnomon" else None
        bodies = f", {run.bodies:g} Bodies" if part == "small" else ""
        bodies += f", {run.start_s:g} s to start" if run.start_s is not None else ""
        name = f"{run.policy}, 16 cores" if run.max_cores < NODE_CORES else run.policy
        made.append(
            judged(f"{part}: {run.model}, {run.traffic}{bodies}: {name}: late", 100 * outcome.late, "%", goal, of(outcome))
        )
    if part == "traffic":
        made += of_on_off(found)
    return made


def of_models(found: Mapping[Run, Outcome]) -> list[Figure]:
    """Late, memory and cores beside `od`, and utility, for each model."""
    made, shares = [], []
    for run, ours in found.items():
        if run.policy != "gnomon":
            continue
        od = found[replace(run, policy="od")]
        share = ours.memory_bytes / od.memory_bytes
        shares.append(share)
        where, compared = f"models: {run.model}, {run.duration_s / 60:g} min", f"{of(ours)}; od: {of(od)}"
        made += [
            judged(f"{where}: late", 100 * ours.late, "%", 0.05, compared),
            judged(f"{where}: memory ÷ od's", share, "", 0.95, compared),
            judged(f"{where}: cores ÷ od's", ours.cores / od.cores, "", 1.05, compared),
            judged(f"{where}: CPU utility", 100 * ours.utility, "%", 95.0, compared, least=True),
        ]
    return [*made, judged("models: memory ÷ od's, mean", sum(shares) / len(shares), "", 0.85, f"{len(shares)} models")]


def of_on_off(found: Mapping[Run, Outcome]) -> list[Figure]:
    """On/off traffic: late beside the best other."""
    made = []
    for run, ours in found.items():
        if run.policy == "gnomon" and run.traffic == "on/off":
            others = {name: found[replace(run, policy=name)].late for name in ("od", "asyfunc")}
            best = min(others, key=others.__getitem__)
            share = ours.late / others[best] if others[best] else math.inf
            made.append(judged(f"traffic: {run.model}, on/off: late ÷ the best other's", share, "", 0.5, f"that of {best}"))
    return made


def of_latency(found: Mapping[Run, Outcome]) -> list[Figure]:
    """The 95th percentile beside that of the `kpa` whose memory is nearest."""
    made = []
    for run, ours in found.items():
        if run.policy == "gnomon":
            others = {other: outcome for other, outcome in found.items() if (other.model, other.policy) == (run.model, "kpa")}
            nearest = min(others, key=lambda other: abs(others[other].memory_bytes - ours.memory_bytes))
            detail = f"{of(ours)}; kpa to {nearest.target:.0%}: {of(others[nearest])}"
            made.append(judged(f"latency: {run.model}: p95 ÷ kpa's", ours.p95_s / others[nearest].p95_s, "", 1.1, detail))
    return made


def of(outcome: Outcome) -> str:
    """An outcome for a reader."""
    return (
        f"{outcome.late:.4%} late, {outcome.late_after:.4%} after start-up, {outcome.memory_bytes / GB:.2f} GB, "
        f"{outcome.cores:.1f} cores, {outcome.utility:.1%} utility, {outcome.bodies:.2f} Bodies, {outcome.shadows:.2f} Shadows, "
        f"p95 {outcome.p95_s * 1e3:.0f} ms"
    )


def judged(key: str, value: float, unit: str, goal: float | None, detail: str, *, least: bool = False) -> Figure:
    """A simulated figure, which has no spread: met or missed."""
    if goal is None:
        return Figure(key, value, unit, detail=f"simulated: {detail}")
    met = value >= goal if least else value <= goal
    return Figure(key, value, unit, goal, ">=" if least else "<=", "met" if met else "missed", f"simulated: {detail}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--models", nargs="*", default=MODELS, choices=MODELS, metavar="NAME", help="only these")
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS, help="only these")
    parser.add_argument(
        "--stretch",
        type=float,
        default=HOUR_S,
        metavar="SECONDS",
        help="how much of Twitter's hour; ablation and latency have half of it",
    )
    parser.add_argument("--afresh", action="store_true", help="simulate again what an interrupted run has kept")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many runs at once")
    options = parser.parse_args(arguments)
    pace = pace_of(options)
    stretch_s = QUICK_S if pace.quick else options.stretch
    kept = ResultCache("policy", SOURCES)
    if options.afresh or pace.quick:
        kept.forget()
    lengths_s = {
        "models": stretch_s,
        "small": HOUR_S,
        "traffic": QUARTER_S,
        "starts": QUARTER_S,
        "ablation": stretch_s / 2,
        "latency": stretch_s / 2,
    }
    parts = {
        part: runs_of(part, options.models, QUICK_S if pace.quick else lengths_s.get(part, stretch_s)) for part in options.parts
    }
    found = all_of({run for runs in parts.values() for run in runs}, kept, options, keep=not pace.quick)
    figures = [figure for part, runs in parts.items() for figure in figures_of(part, {run: found[run] for run in runs}) if runs]
    write("policy", figures, repeats=1, packages=("gnomon", "numpy"), folder=pace.results)


def all_of(runs: Iterable[Run], kept: ResultCache, options: argparse.Namespace, *, keep: bool) -> dict[Run, Outcome]:
    """The outcome of each run, simulated where none is kept."""
    ordered = sorted(runs, key=lambda run: run.key)
    found = {run: Outcome(**kept.get(run.key)) for run in ordered if kept.get(run.key) is not None}
    missing = [run for run in ordered if run not in found]
    step(f"{len(found)} of {len(ordered)} runs are kept")
    with ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for number, (run, outcome) in enumerate(zip(missing, pool.map(simulated, missing), strict=True), start=1):
            found[run] = outcome
            if keep:
                kept.keep(run.key, asdict(outcome))
            step(f"{number} of {len(missing)}: {run.key}: {of(outcome)}")
    return found


if __name__ == "__main__":
    main()
