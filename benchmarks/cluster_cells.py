"""One cell of the simulated cluster: a model, an objective, a weight mode, and every policy on the same hour.

The paper does not say how many nodes it has, how its trace is scaled, nor the cores and batch of its baselines. Here
(docs/decisions/0011-mls.md):

- the trace is scaled so that its mean rate deserves `BODIES` Bodies as model-level scaling chooses them: as it is, one Body of 16
  cores carries all of it, and no policy has anything to decide;
- nodes of 26 cores and 96 GB, 1.5 × as many as `opt` needs at its peak, with 10 Gbit/s and 0.2 ms between them;
- the baselines have the cores and the largest batch that model-level scaling chooses for the hour's mean rate;
- all begin with as many instances as the first ten seconds deserve;
- a request that misses the objective is worth nothing: the deadline is the objective, as Algorithm 3 drops such requests.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from gnomon_autoscaler.policies.asyfunc import AsyFunc, Options
from gnomon_autoscaler.policies.asyfunc.mls import Configuration, configurations
from gnomon_autoscaler.policies.asyfunc.pairing import Knowledge
from gnomon_autoscaler.registry import Offer, Policies
from gnomon_core.profiles import ModelProfile, Network
from gnomon_core.scaling import CreateShadow
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_simulator.arrivals import from_trace
from gnomon_simulator.events import stream
from gnomon_simulator.function_plan import FunctionPlan
from gnomon_simulator.opt import with_opt, without_loading
from gnomon_simulator.profiles import Profile, modelled
from gnomon_simulator.results import FunctionResult
from gnomon_simulator.simulated_node import NodePlan
from gnomon_simulator.simulation import simulate
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
    """What is simulated.

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
    """One policy's hour."""

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
        """All of it but the cell, which has a key."""
        return {name: value for name, value in asdict(self).items() if name != "cell"}

    @staticmethod
    def from_json(cell: Cell, document: Mapping[str, Any]) -> Outcome:
        """The outcome of this cell as `to_json` told it."""
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
    rows = {"opt": _row("opt", run.baseline("opt", without_loading(profile), best, MANY))}
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


@cache
def hour(duration_s: float, rate_rps: float) -> list[float]:
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
    """The same hour under one policy after the other."""

    def __init__(self, settings: Settings, profile: Profile, arrivals: list[float], warm: int) -> None:
        self._settings = settings
        self._profile = profile
        self._arrivals = arrivals
        self._warm = warm
        self._policies = with_opt(arrivals)

    def asyfunc(self, options: Options, nodes: int, *, scheduler: str | None = None) -> FunctionResult:
        policies = {**self._policies, "asyfunc": Offer(lambda _: AsyFunc("asyfunc", options), "One reading of the paper.")}
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
    """How many Shadows were asked for on another node than their Body's."""
    actions = (action for record in result.decisions for action in record.actions)
    return sum(isinstance(action, CreateShadow) and action.pair.node is not None for action in actions)
