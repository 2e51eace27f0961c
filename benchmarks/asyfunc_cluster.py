"""AsyFunc's policies on a simulated cluster: an hour of Twitter for each model, beside od, lv, k-lv and opt (with hindsight).

    python -m benchmarks.asyfunc_cluster [--quick] [--hours | --readings] [--afresh] [--profiles FOLDER] [--models NAME …]
                                         [--processes N] [--serial 0.02 0.1 …] [--slo 1 1.5] [--modes private shared] [--kept]

For each measured profile in `profiles/`: memory × time, CPU utility (cores × seconds in inference; a waiting Shadow is idle) and
SLO violations, in both weight modes, for an SLO of t_l(16, 8) and 1.5 × it. Cores that were not measured are extrapolated with 2,
5 and 10 % serial work, and each figure says so; conclusions name in how many of the three they hold.

A cell is a model, an objective and a weight mode, with every policy on the same hour. By default the first cell of a model and
its counterpart with shared weights are an hour; the sweeps around them, and other readings of the paper, are a quarter of an
hour. With `--hours` every serial fraction, objective and weight mode is an hour, twelve cells of a model, without sweeps; with
`--readings` there are the sweeps alone. Hours are in `asyfunc_cluster.json`, sweeps and readings in `asyfunc_readings.json`.
`--serial`, `--slo` and `--modes` leave out all other cells. Results are kept in .cache/benchmarks until the code changes, so that
an interrupted run goes on where it was; `--kept` writes the cells that several runs have simulated so far.

An hour is 0.8 million requests of VGG16, four minutes a cell, and 13 million of EfficientNet-Lite0, an hour a cell.

The paper does not say how many nodes it has, how its trace is scaled, nor the cores and batch of its baselines. Here
(docs/decisions/0011-mls.md):

- the trace is scaled so that its mean rate deserves `BODIES` Bodies as model-level scaling chooses them: unscaled, one Body of 16
  cores carries all of it, and no policy has anything to decide;
- nodes of 26 cores and 96 GB, 1.5 × as many as `opt` needs at its peak, with 10 Gbit/s and 0.2 ms between them;
- the baselines have the cores and the largest batch that model-level scaling chooses for the hour's mean rate;
- all begin with as many instances as the first ten seconds deserve;
- a request that misses the objective is worth nothing: the deadline is the objective, as Algorithm 3 drops such requests.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.programs import ROOT, pace_of, pace_parser, step
from benchmarks.report import Figure, ResultCache, write
from benchmarks.simulation.opt import most_instances, with_opt, without_loading
from gnomon_autoscaler.policies.asyfunc import AsyFunc, Options
from gnomon_autoscaler.policies.asyfunc.mls import Configuration, configurations
from gnomon_autoscaler.policies.asyfunc.pairing import Knowledge
from gnomon_autoscaler.registry import Policies
from gnomon_core.errors import bad_request
from gnomon_core.policy_registry import PolicyPlugin
from gnomon_core.profiles import FORMAT, ModelProfile, Network
from gnomon_core.scaling import CreateShadow
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_simulator.arrivals import from_trace
from gnomon_simulator.events import stream
from gnomon_simulator.profiles import Profile, modelled
from gnomon_simulator.results import FunctionResult
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, simulate
from gnomon_simulator.traces import read_trace

TRACE = Path(__file__).parent / "traces" / "twitter_may25_1s.csv.gz"
START_S = 74_220.0
NODE_CORES, NODE_BYTES = 26, 96 * 10**9
GBPS, RTT_MS = 10.0, 0.2
C_MAX, B_MAX = 16, 8
SPARE = 1.5
FIRST_S = 10.0
BODIES = 8
MANY = 10_000

ABLATIONS: Mapping[str, Options] = {
    "asyfunc": Options(),
    "asyfunc- without layers": Options(layers=False),
    "asyfunc- without adaptive": Options(adaptive=False),
}
AS_PRINTED = "asyfunc with adaptive-paper"
"""Algorithm 3 as printed; the other policies have the schedulers that they ask for."""
BASELINES = ("od", "lv", "k-lv")
READINGS: Mapping[str, Options] = {
    "contiguous blocks": Options(contiguous=True),
    "η by the gain": Options(gain=True),
    "η by the objective": Options(objective=True),
    "η by gain and objective": Options(gain=True, objective=True),
    "m_Φ of the weights alone": Options(overhead_counts=False),
    "fewer cores for Shadows": Options(fewer_shadow_cores=True),
    "up to two Shadows a Body": Options(max_shadows=2),
    "up to two, of fewer cores": Options(max_shadows=2, fewer_shadow_cores=True),
    "loading counts": Options(load_counts=True),
    "R_max with Shadows": Options(shadows_count=True),
    "γ = 0.6": Options(gamma=0.6),
    "γ = 0.8": Options(gamma=0.8),
    "γ = 1.2": Options(gamma=1.2),
    "released after 5 s": Options(release_ticks=10),
    "larger Bodies, no Shadows": Options(burst_cores="resize"),
    "Shadows or larger Bodies": Options(burst_cores="either"),
    "Shadows become Bodies": Options(promotion=True),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulated configuration: profile, weight mode, arrivals, settings.

    `serial` None takes the profile as it was measured, `kappa` None follows from it; `readings` adds other readings of the paper.
    """

    profile: Path
    serial: float | None
    slo: float
    mode: str
    kappa: float | None
    duration_s: float
    readings: bool = False

    @property
    def key(self) -> str:
        """Names the cell among those of a run that goes on: another profile in the same file is another cell."""
        digest = hashlib.sha256(self.profile.read_bytes()).hexdigest()
        return f"{digest[:16]} {self.name}, {self.duration_s:g} s{', readings' if self.readings else ''}"

    @property
    def name(self) -> str:
        serial = "measured" if self.serial is None else f"{self.serial:.0%} serial"
        kappa = "κ by profile" if self.kappa is None else f"κ = {self.kappa:g}"
        return f"{self.mode}, {serial}, {self.slo:g} × SLO, {kappa}"


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one policy for one simulated hour."""

    policy: str
    violations: float
    memory_bytes: float
    cpu_utility: float
    bodies: float
    most: int
    shadows: int
    elsewhere: int
    shadow_s: float
    cores: float
    batch: float
    scheduler: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A cell's rows, and what they stand on."""

    cell: Cell
    model: str
    slo_s: float
    rate_rps: float
    nodes: int
    best: str
    extrapolated: str
    rows: Mapping[str, Row] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """All fields but the cell, which is the key."""
        return {name: value for name, value in asdict(self).items() if name != "cell"}

    @staticmethod
    def from_json(cell: Cell, document: Mapping[str, Any]) -> Outcome:
        """The outcome of this cell, from its `to_json`."""
        rows = {name: Row(**row) for name, row in document["rows"].items()}
        return Outcome(cell, **{**document, "rows": rows})


def measure(cell: Cell) -> Outcome:
    """Simulate every policy of a cell, `opt` first."""
    model = read_model(cell.profile, cell.serial)
    settings = settings_of(cell, model)
    rate_rps = deserved(model, settings)
    arrivals = hour(cell.duration_s, rate_rps)
    best = chosen(model, settings, rate_rps)
    settings = replace(settings, cores=best.cores)
    warm = max(1, math.ceil(sum(time_s < FIRST_S for time_s in arrivals) / FIRST_S / settings.alpha / best.rate_rps))
    profile = modelled(model, cell.mode)
    run = _Runs(settings, profile, arrivals, warm)
    # Rows, not results: of a quick model an hour is 13 million requests, a gigabyte for each policy.
    rows = {"opt": _row("opt", run.baseline("opt", without_loading(profile), best, roomy(model, settings, arrivals)))}
    nodes = math.ceil(SPARE * math.ceil(rows["opt"].most / (NODE_CORES // best.cores)))
    for name, options in {**ABLATIONS, **(READINGS if cell.readings else {})}.items():
        rows[name] = _row(name, run.asyfunc(replace(options, kappa=cell.kappa, weight_mode=cell.mode), nodes))
    usual = Options(kappa=cell.kappa, weight_mode=cell.mode)
    rows[AS_PRINTED] = _row(AS_PRINTED, run.asyfunc(usual, nodes, scheduler="adaptive-paper"))
    for name in BASELINES:
        rows[name] = _row(name, run.baseline(name, profile, best, nodes))
    unmeasured = [cores for cores in range(1, C_MAX + 1) if not model.whole.measured(cores)]
    return Outcome(
        cell,
        model.model,
        settings.slo_s,
        rate_rps,
        nodes,
        str(best),
        f"{unmeasured[0]} to {unmeasured[-1]} cores extrapolated" if unmeasured else "all cores measured",
        rows,
    )


@cache
def read_model(path: Path, serial: float | None) -> ModelProfile:
    """The profile in a file, extrapolated where it does not reach C_max, and with the network between the nodes.

    What the two ends' software takes of a hand-over is what the profile says; as much as within a node where it says nothing.
    """
    import json

    model = ModelProfile.from_json(json.loads(path.read_text(encoding="utf-8")))
    software = model.network or Network(model.transfer_fixed_s, model.transfer_seconds_per_byte)
    model = replace(model, network=Network.of(GBPS, RTT_MS, software))
    return model if serial is None else model.extrapolated(serial)


def roomy(model: ModelProfile, settings: Settings, arrivals: Sequence[float]) -> int:
    """Nodes on which `opt` never lacks room, those that drain included."""
    known = (model.whole.at(settings.cores, batch) for batch in range(1, settings.max_batch + 1))
    most = most_instances(arrivals, [seconds for seconds in known if seconds is not None], settings.slo_s)
    return 2 * math.ceil(most / (NODE_CORES // settings.cores))


@cache
def hour(duration_s: float, rate_rps: float) -> Sequence[float]:
    """The arrivals at this mean rate, the same for every policy."""
    trace = read_trace(TRACE).slice(START_S, duration_s)
    return from_trace(trace.scaled(rate_rps * trace.duration_s / trace.requests), stream(1, "arrivals"))


def deserved(model: ModelProfile, settings: Settings) -> float:
    """The mean rate at which `BODIES` Bodies of the best configuration are loaded to α.

    That configuration depends on the rate, by the time in which its batch fills; two steps from a high one settle it.
    """
    rate_rps = 1e6
    for _ in range(2):
        rate_rps = BODIES * settings.alpha * chosen(model, settings, rate_rps).rate_rps
    return rate_rps


def settings_of(cell: Cell, model: ModelProfile) -> Settings:
    """The objective is a multiple of the latency of B_max on C_max cores, as in the paper's section 7.1."""
    full_s = model.whole.at(C_MAX, B_MAX)
    assert full_s is not None, f"{model.model} has no latency on {C_MAX} cores"
    slo_s = cell.slo * full_s
    return Settings(
        autoscaler="asyfunc",
        slo_s=slo_s,
        deadline_s=slo_s,
        max_batch=B_MAX,
        max_cores=C_MAX,
        kappa=cell.kappa,
        weight_mode=cell.mode,
        queue_max_requests=10**6,
        scale=ScaleSettings(min=1, max=MANY),
    )


def chosen(model: ModelProfile, settings: Settings, rate_rps: float) -> Configuration:
    """c_best and b_best for the mean rate."""
    return configurations(Knowledge(model, settings, Options(kappa=settings.kappa)), rate_rps)[0]


class _Runs:
    """Runs of one hour, under one policy after the other."""

    def __init__(self, settings: Settings, profile: Profile, arrivals: Sequence[float], warm: int) -> None:
        self._settings = settings
        self._profile = profile
        self._arrivals = arrivals
        self._warm = warm
        self._policies = with_opt(arrivals)

    def asyfunc(self, options: Options, nodes: int, *, scheduler: str | None = None) -> FunctionResult:
        policies = {**self._policies, "asyfunc": PolicyPlugin(lambda _: AsyFunc("asyfunc", options), "One reading of the paper.")}
        return self._run(replace(self._settings, scheduler=scheduler), self._profile, nodes, policies)

    def baseline(self, name: str, profile: Profile, best: Configuration, nodes: int) -> FunctionResult:
        settings = replace(self._settings, autoscaler=name, max_batch=best.batch)
        return self._run(settings, profile, nodes, self._policies)

    def _run(self, settings: Settings, profile: Profile, nodes: int, policies: Policies) -> FunctionResult:
        plan = FunctionPlan("model", settings, profile, self._arrivals, "given", warm=self._warm, policies=policies)
        return simulate([plan], [NodePlan(f"node-{number}", NODE_CORES, NODE_BYTES) for number in range(nodes)])["model"]


def _row(name: str, result: FunctionResult) -> Row:
    cost, seconds = result.cost, result.duration_s
    return Row(
        policy=name,
        violations=result.violations / len(result.requests),
        memory_bytes=cost.memory_byte_s / seconds,
        cpu_utility=cost.cpu_utility,
        bodies=cost.instance_s / seconds,
        most=result.most_instances,
        shadows=cost.shadows,
        elsewhere=_elsewhere(result),
        shadow_s=cost.shadow_s / seconds,
        cores=cost.core_s / seconds,
        batch=result.summary()["mean_batch"],
        scheduler=result.scheduler,
    )


def _elsewhere(result: FunctionResult) -> int:
    """The number of Shadows that were requested on another node than their Body's."""
    actions = (action for record in result.decisions for action in record.actions)
    return sum(isinstance(action, CreateShadow) and action.pair.node is not None for action in actions)


RESULT, READINGS_RESULT = "asyfunc_cluster", "asyfunc_readings"
SERIAL = (0.02, 0.05, 0.10)
USUAL = 0.05
SWEPT = (0.1, 1.0, 10.0)
SLOS = (1.5, 1.0)
MODES = ("private", "shared")
HOUR_S, QUARTER_S, QUICK_S = 3600.0, 900.0, 120.0
SOURCES = ("core", "autoscaler", "simulator", "gateway-plugin", "benchmarks/asyfunc_cluster.py")
SIDE_BY_SIDE = ("asyfunc", "asyfunc- without layers", "asyfunc- without adaptive", AS_PRINTED, "od", "lv", "k-lv", "opt")
GB = 1e9

CLAIMS: tuple[tuple[str, Callable[[dict[str, Row]], bool]], ...] = (
    ("fewer violations than without layers", lambda by: by["asyfunc"].violations < by["asyfunc- without layers"].violations),
    ("fewer violations than od", lambda by: by["asyfunc"].violations < by["od"].violations),
    ("no more violations than k-lv", lambda by: by["asyfunc"].violations <= by["k-lv"].violations),
    ("less memory than k-lv", lambda by: by["asyfunc"].memory_bytes < by["k-lv"].memory_bytes),
    ("higher CPU utility than k-lv", lambda by: by["asyfunc"].cpu_utility > by["k-lv"].cpu_utility),
)


def cells_of(path: Path, *, quick: bool, readings: bool) -> list[Cell]:
    """The configurations of one profile: the usual hour in both weight modes, and the sweeps around it."""
    usual, *others = serials_of(path)
    first = Cell(path, usual, SLOS[0], MODES[0], None, QUICK_S if quick else HOUR_S, readings and quick)
    if quick:
        return [first]
    brief = replace(first, duration_s=QUARTER_S)
    found = [first, replace(first, mode="shared"), replace(brief, readings=readings)]
    found += [replace(brief, slo=SLOS[1], mode=mode) for mode in MODES]
    found += [replace(brief, serial=serial, slo=slo) for serial in others for slo in SLOS]
    found += [replace(brief, kappa=kappa) for kappa in SWEPT]
    return [*found, replace(brief, mode="shared", kappa=SWEPT[-1])]


def hours_of(path: Path) -> list[Cell]:
    """Every serial fraction, objective and weight mode as a whole hour, the usual ones first."""
    serials = serials_of(path)
    return [Cell(path, serial, slo, mode, None, HOUR_S) for serial in serials for slo in SLOS for mode in MODES]


def sweeps_of(path: Path) -> list[Cell]:
    """Variations of the usual hour: the sweeps, and other readings of the paper."""
    return [cell for cell in cells_of(path, quick=False, readings=True) if cell.duration_s == QUARTER_S]


def kind_of(path: Path, options: argparse.Namespace) -> list[Cell]:
    """The cells of a profile that the command line asks for."""
    if options.quick or not (options.hours or options.readings):
        return cells_of(path, quick=options.quick, readings=True)
    return hours_of(path) if options.hours else sweeps_of(path)


def serials_of(path: Path) -> tuple[float | None, ...]:
    """The serial fractions that a profile is extrapolated with, the usual one first; None where it has all cores."""
    if read_model(path, None).whole.measured(C_MAX):
        return (None,)
    return (USUAL, *(serial for serial in SERIAL if serial != USUAL))


def chosen_of(cells: Iterable[Cell], serials: Sequence[float], slos: Sequence[float], modes: Sequence[str]) -> list[Cell]:
    """The configurations that contain one of each chosen value; no choice means all."""
    return [
        cell
        for cell in cells
        if (not serials or cell.serial in serials) and (not slos or cell.slo in slos) and (not modes or cell.mode in modes)
    ]


def figures_of(outcome: Outcome) -> list[Figure]:
    """A cell's three figures are those of `asyfunc`; the other policies stand beside them."""
    key, rows = key_of(outcome), outcome.rows
    load = f"{outcome.best} for {outcome.rate_rps:.1f} rps"
    scheduled = f"scheduled by {rows['asyfunc'].scheduler}"
    said = f"{load}, {scheduled}, {outcome.nodes} nodes, {GBPS:g} Gbit/s and {RTT_MS:g} ms between them, {outcome.extrapolated}"
    peers = SIDE_BY_SIDE[1:]

    def figure(what: str, unit: str, value: Callable[[Row], float]) -> Figure:
        others = ", ".join(f"{name} {value(rows[name]):.3g}" for name in peers)
        return Figure(f"{key}: {what}", value(rows["asyfunc"]), unit, detail=f"{others}; {said}")

    asyfunc = rows["asyfunc"]
    shadows = f"{asyfunc.shadows} Shadows, {asyfunc.elsewhere} asked for on another node, {asyfunc.shadow_s:.3g} at a time"
    return [
        figure("SLO violations", "%", lambda row: 100 * row.violations),
        figure("memory", "GB", lambda row: row.memory_bytes / GB),
        figure("CPU utility", "%", lambda row: 100 * row.cpu_utility),
        figure("Bodies", f"on average; {shadows}", lambda row: row.bodies),
    ]


def readings_of(outcome: Outcome) -> list[Figure]:
    """Results under each other reading of the paper, beside the default; empty where they were not simulated."""
    key, rows, settled = key_of(outcome), outcome.rows, outcome.rows["asyfunc"]
    return [
        Figure(
            f"{key}: with {name}",
            100 * rows[name].violations,
            "% SLO violations",
            detail=f"{rows[name].memory_bytes / GB:.3g} GB, {100 * rows[name].cpu_utility:.3g} % utility, "
            f"{rows[name].cores:.3g} cores, {rows[name].shadows} Shadows; as settled {100 * settled.violations:.3g} %, "
            f"{settled.memory_bytes / GB:.3g} GB, {100 * settled.cpu_utility:.3g} %; {outcome.extrapolated}",
        )
        for name in READINGS
        if outcome.cell.readings
    ]


def results_of(outcomes: Sequence[Outcome]) -> dict[str, list[Figure]]:
    """The figures by the result that holds them: sweeps and readings apart from hours, which may be simulated without them."""
    sweeps = [outcome for outcome in outcomes if outcome.cell.duration_s == QUARTER_S]
    others = [outcome for outcome in outcomes if outcome not in sweeps]
    read_otherwise = [figure for outcome in outcomes for figure in readings_of(outcome)]
    found = {RESULT: judged(others), READINGS_RESULT: judged(sweeps) + read_otherwise}
    return {name: figures for name, figures in found.items() if figures}


def judged(outcomes: Sequence[Outcome]) -> list[Figure]:
    """The figures of each cell, and what they say of the claims."""
    return [figure for outcome in outcomes for figure in figures_of(outcome)] + conclusions(outcomes)


def key_of(outcome: Outcome) -> str:
    """The prefix of the keys of a configuration's figures."""
    return f"{outcome.model}: {outcome.cell.name}, {outcome.cell.duration_s / 60:g} min"


def conclusions(outcomes: Iterable[Outcome]) -> list[Figure]:
    """The number of serial fractions for which each claim holds, with private weights and κ by the profile."""
    groups: dict[tuple[str, float, float], list[Outcome]] = {}
    for outcome in outcomes:
        cell = outcome.cell
        if (cell.mode, cell.kappa) == ("private", None):
            groups.setdefault((outcome.model, cell.slo, cell.duration_s / 60), []).append(outcome)
    found: list[Figure] = []
    for (model, slo, minutes), group in groups.items():
        for claim, holds in CLAIMS:
            held = [outcome for outcome in group if holds(dict(outcome.rows))]
            where = ", ".join("measured" if each.cell.serial is None else f"{each.cell.serial:.0%}" for each in held) or "none"
            found.append(
                Figure(
                    f"{model}: {slo:g} × SLO, {minutes:g} min: {claim}",
                    len(held),
                    f"of {len(group)} profiles",
                    detail=f"holds for {where}",
                )
            )
    return found


def profiles_in(folder: Path, models: Sequence[str]) -> list[Path]:
    """The profiles of these models, of all where none is named.

    Raises:
        GnomonError: 400 `bad_profile` where there are none.

    """
    found: list[Path] = []
    for path in sorted(folder.rglob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(document, dict) and document.get("format") == FORMAT:
            name = str(document["model"]).partition("@")[0].rpartition(":")[2]
            if not models or name in models:
                found.append(path)
    if not found:
        raise bad_request("bad_profile", f"{folder} holds no profile.", "Measure models with `gnomon models profile NAME`.")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--profiles", type=Path, default=ROOT / "profiles", help="where the profiles are")
    parser.add_argument("--models", nargs="*", default=(), metavar="NAME", help="only these")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--hours", action="store_true", help="whole hours of every serial fraction, objective and weight mode")
    kinds.add_argument("--readings", action="store_true", help="only sweeps and readings around the usual hour")
    parser.add_argument("--serial", type=float, nargs="*", default=(), choices=SERIAL, help="only these serial fractions")
    parser.add_argument("--slo", type=float, nargs="*", default=(), choices=SLOS, help="only these multiples of the objective")
    parser.add_argument("--modes", nargs="*", default=(), choices=MODES, help="only these weight modes")
    known = parser.add_mutually_exclusive_group()
    known.add_argument("--afresh", action="store_true", help="simulate again what an interrupted run has kept")
    known.add_argument("--kept", action="store_true", help="only what runs have kept: nothing is simulated")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many cells at once")
    options = parser.parse_args(arguments)
    run(options)


def run(options: argparse.Namespace) -> None:
    pace = pace_of(options)
    paths = profiles_in(options.profiles, options.models)
    cells = chosen_of((cell for path in paths for cell in kind_of(path, options)), options.serial, options.slo, options.modes)
    kept = ResultCache(RESULT, SOURCES)
    if options.afresh or pace.quick:
        kept.forget()
    found = {cell: kept.get(cell.key) for cell in cells}
    outcomes = [Outcome.from_json(cell, result) for cell, result in found.items() if result is not None]
    if outcomes:
        step(f"{len(outcomes)} of {len(cells)} were simulated before")
    missing = [] if options.kept else [cell for cell, result in found.items() if result is None]
    with ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for outcome in pool.map(measure, missing):
            outcomes.append(outcome)
            if not pace.quick:
                kept.keep(outcome.cell.key, outcome.to_json())
            step(f"{outcome.model}: {outcome.cell.name} ({len(outcomes)} of {len(cells)})\n{table(outcome)}")
    for name, figures in results_of(outcomes).items():
        write(name, figures, repeats=1, packages=("gnomon",), folder=pace.results)


def table(outcome: Outcome) -> str:
    """A cell for a reader."""
    load = f"SLO {outcome.slo_s * 1e3:.0f} ms, {outcome.rate_rps:.1f} rps"
    said = f"  {load}, {outcome.nodes} nodes, {outcome.best}, {outcome.extrapolated}"
    lines = [
        f"  {row.policy:26} {row.violations:7.2%} over the SLO  {row.memory_bytes / GB:7.2f} GB  {row.cpu_utility:6.1%} utility  "
        f"{row.bodies:6.2f} Bodies, {row.most} at most, {row.shadows} Shadows ({row.shadow_s:.2f})  {row.cores:6.1f} cores  "
        f"b {row.batch:.2f} by {row.scheduler}"
        for row in outcome.rows.values()
    ]
    return "\n".join((said, *lines))


if __name__ == "__main__":
    main()
