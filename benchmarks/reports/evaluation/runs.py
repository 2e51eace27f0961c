"""One cell simulated: the cluster's load, the policy, and the figures of its run."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.asyfunc_cluster import B_MAX, C_MAX, FIRST_S, NODE_BYTES, NODE_CORES, USUAL, chosen, read_model
from benchmarks.programs import ROOT
from benchmarks.reports.evaluation.grid import Cell
from benchmarks.reports.evaluation.loads import arrivals
from gnomon_autoscaler.policies.asyfunc import AsyFunc, Options
from gnomon_autoscaler.policies.batch.policy import Batch
from gnomon_autoscaler.policies.rates import Rate
from gnomon_autoscaler.registry import BUILT_IN, Policies, replica_policy_plugin
from gnomon_core.policy_registry import PolicyPlugin
from gnomon_core.profiles import ModelProfile
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_simulator.profiles import modelled
from gnomon_simulator.results import OK, FunctionResult, percentile
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, simulate

PROFILES = ROOT / "profiles"
GB = 1e9


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster with room for six times the load's mean.

    `max_cores` are a Body's, cores that were not measured are extrapolated with `serial` work, the load deserves `bodies`.
    """

    max_cores: int
    serial: float | None
    bodies: int
    nodes: Sequence[NodePlan]


CLUSTERS = {
    "paper": Cluster(C_MAX, USUAL, 8, [NodePlan(f"node-{number}", NODE_CORES, NODE_BYTES) for number in range(64)]),
    "measured": Cluster(2, None, 40, [NodePlan(f"node-{number}", 4 * NODE_CORES, 4 * NODE_BYTES) for number in range(5)]),
}


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one cell, start-up included but for `steady`.

    `late` and `steady` are shares of the requests; `memory_gb` and `cores` are means over the run, `utility` the share of core
    time in inference, `spent_s` the processor time of the simulation.
    """

    late: float
    steady: float
    memory_gb: float
    cores: float
    utility: float
    bodies: float
    most: int
    shadows: int
    mean_ms: float
    p95_ms: float
    batch: float
    requests: int
    spent_s: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(cell: Cell) -> Row:
    """Simulate a cell."""
    begun_s = time.process_time()
    cluster = CLUSTERS[cell.cluster]
    model = profile_of(cell.model, cluster.serial)
    settings = _settings(cell, model, cluster)
    rate_rps = 1e6
    for _ in range(2):  # the best configuration depends on the rate, by the time in which its batch fills
        rate_rps = cluster.bodies * 0.8 * chosen(model, settings, rate_rps).rate_rps
    best = chosen(model, settings, rate_rps)
    settings = replace(settings, cores=best.cores, target_rps=best.rate_rps, **_headroom(cell))
    if cell.policy.autoscaler in ("od", "lv", "k-lv", "kpa"):
        settings = replace(settings, max_batch=best.batch)
    profile = modelled(model, cell.weights)
    profile = profile if cell.ready_s is None else replace(profile, load_s=cell.ready_s)
    loads = arrivals(cell.load, rate_rps, cell.duration_s, cell.seed)
    policies = _policies(cell)
    plans = [
        FunctionPlan(f"f{number}", settings, profile, times, "given", warm=_warm(times, best.rate_rps), policies=policies)
        for number, times in enumerate(loads)
        if len(times)
    ]
    pool = int(cell.policy.options.get("pool", 1))
    nodes = [replace(node, pool=pool) for node in cluster.nodes]
    results = simulate(plans, nodes, cell.seed)
    return row(list(results.values()), time.process_time() - begun_s)


def row(results: Sequence[FunctionResult], spent_s: float) -> Row:
    """The figures of all functions of a cluster together."""
    duration_s = max(result.duration_s for result in results)
    requests = sum(len(result.requests) for result in results)
    violations = sum(result.violations for result in results)
    starting = sum(result.start_up_requests for result in results)
    steady = violations - sum(result.start_up_violations for result in results)
    latencies_s = sorted(latency for result in results for latency in result.requests.latencies_s())
    executed = [
        batch
        for result in results
        for batch, status in zip(result.requests.batch, result.requests.status, strict=True)
        if status == OK and batch
    ]
    core_s = sum(result.core_s for result in results)
    return Row(
        late=violations / requests,
        steady=steady / (requests - starting) if requests > starting else 0.0,
        memory_gb=sum(result.cost.memory_byte_s for result in results) / duration_s / GB,
        cores=core_s / duration_s,
        utility=sum(result.busy_core_s for result in results) / core_s if core_s else 0.0,
        bodies=sum(result.instance_s for result in results) / duration_s,
        most=sum(result.most_instances for result in results),
        shadows=sum(result.cost.shadows for result in results),
        mean_ms=1e3 * math.fsum(latencies_s) / len(latencies_s) if latencies_s else 0.0,
        p95_ms=1e3 * (percentile(latencies_s, 95.0) or 0.0),
        batch=len(executed) / sum(1 / batch for batch in executed) if executed else 0.0,
        requests=requests,
        spent_s=spent_s,
    )


def profile_of(name: str, serial: float | None) -> ModelProfile:
    """The published profile of a model."""
    return read_model(Path(PROFILES / f"{name}.json"), serial)


def _settings(cell: Cell, model: ModelProfile, cluster: Cluster) -> Settings:
    full_s = model.whole.at(cluster.max_cores, B_MAX)
    assert full_s is not None, f"{model.model} has no latency on {cluster.max_cores} cores"
    slo_s = cell.objective * full_s
    return Settings(
        autoscaler=cell.policy.autoscaler, slo_s=slo_s, deadline_s=slo_s, max_batch=B_MAX, max_cores=cluster.max_cores,
        weight_mode=cell.weights, queue_max_requests=10**6, scale=ScaleSettings(min=1, max=10**4),
    )  # fmt: skip


def _headroom(cell: Cell) -> Mapping[str, Any]:
    if cell.policy.alpha is None:
        return {}
    # Below α there must be room for β: AsyFunc's 0.6 of 0.8.
    given = {"alpha": cell.policy.alpha, "beta": 0.75 * cell.policy.alpha}
    return {"target_utilization": cell.policy.alpha} if cell.policy.autoscaler == "kpa" else given


def _policies(cell: Cell) -> Policies:
    policy = cell.policy
    if policy.autoscaler == "asyfunc":
        fields = {name: value for name, value in policy.options.items() if name != "pool"}
        options = replace(Options(weight_mode=cell.weights), **{**_headroom(cell), **fields})
        return {**BUILT_IN, "asyfunc": PolicyPlugin(lambda _: AsyFunc("asyfunc", options), policy.name)}
    if policy.name == "batch, hourly":
        return {**BUILT_IN, "batch": PolicyPlugin(lambda settings: Batch("batch", settings, rule=None), policy.name)}
    if policy.alpha is not None and policy.autoscaler in ("od", "lv", "k-lv"):
        period_s = BUILT_IN[policy.autoscaler].make(Settings()).period_s
        rate = Rate(policy.autoscaler, period_s, factor=1.0 / policy.alpha)
        return {**BUILT_IN, policy.autoscaler: replica_policy_plugin(lambda _: rate, policy.name)}
    return BUILT_IN


def _warm(times: Sequence[float], each_rps: float) -> int:
    """As many instances as the first ten seconds deserve."""
    return max(1, math.ceil(sum(time_s < FIRST_S for time_s in times) / FIRST_S / 0.8 / each_rps))
