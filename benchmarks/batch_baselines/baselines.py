"""What BATCH and each of its baselines do to the same arrivals.

    rows = side_by_side(Demand(times_s, begin_s=3600.0), supply, Objective(0.5, 95.0))

Of the demand, what came before `begin_s` is history: BATCH plans its first hour from it, and the others begin in its last ten
minutes, with machines for its mean rate. Requests are judged from `begin_s` on. The same demand gives the same rows everywhere.

| name | what it is |
| --- | --- |
| `batch` | the cheapest (memory, B, T) on Lambda, planned each hour from the hour before |
| `vanilla, largest`, `vanilla, cherry-picked` | a call for each request (`gnomon_planner.vanilla`) |
| `target-tracking` | machines under that policy, a request at a time, at the half load that AWS begins with |
| `target-tracking, tuned` | the cheapest of several targets that meets the objective, chosen afterwards; else the least late |
| `mark` | machines with batches under that policy, and calls of the cherry-picked memory for what overflows |
| `batch on machines` | the policy `batch` on machines |

Machines run in the simulator, with the gateway's dispatcher and the policies that serve live; functions are unlimited and
begin at once, as in the paper. A request that nobody answered has infinite latency.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from benchmarks.batch_baselines.minutes import MINUTE_S, minutes_in, under_way
from benchmarks.batch_baselines.values import HOUR_S, Demand, Objective, Row, Served, Supply, Vector
from gnomon_core.errors import bad_request
from gnomon_core.profiles import LatencyTable
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_planner.billing import PerCall
from gnomon_planner.fit import fit
from gnomon_planner.optimizer import Landscape
from gnomon_planner.plans import Plan, Space
from gnomon_planner.replay import buffered
from gnomon_planner.samples import of_counts, of_times
from gnomon_planner.vanilla import cherry_picked, largest
from gnomon_simulator.function_plan import FunctionPlan
from gnomon_simulator.profiles import Profile
from gnomon_simulator.results import INSTANCE, OK, FunctionResult
from gnomon_simulator.simulated_node import NodePlan
from gnomon_simulator.simulation import simulate

TIMEOUTS = 49
TARGETS = (0.5, 0.65, 0.8)
"""Shares of what a machine sustains that `target-tracking, tuned` chooses from."""
LONGEST_WAIT_S = 60.0
"""After this, a machine's request is given up, as SageMaker does."""
MOST_MACHINES = 500
LEAD_S = 600.0
"""So much of the history is simulated too, so that nobody is judged by how it begins."""
SHOWN_PLANS = 3


def side_by_side(demand: Demand, supply: Supply, objective: Objective, names: Sequence[str] = ()) -> list[Row]:
    """The rows of those named, of all where none is."""
    return [served(name, demand, supply, objective).row(objective) for name in names or NAMES]


def served(name: str, demand: Demand, supply: Supply, objective: Objective) -> Served:
    """What one of `NAMES` does to the demand.

    Raises:
        GnomonError: 400 `bad_demand` for a demand without history or without requests; 400 `unknown_baseline`.

    """
    if not (demand.begin_s > 0.0 and len(demand.judged_s) and len(demand.judged_s) < len(demand.times_s)):
        raise bad_request("bad_demand", "The demand has no history, or nothing after it.", "Let begin_s lie between arrivals.")
    if name not in _KINDS:
        raise bad_request("unknown_baseline", f"{name[:100]!r} is no baseline.", f"Known ones: {', '.join(NAMES)}.")
    return _KINDS[name](name, demand, supply, objective)


def _batch(name: str, demand: Demand, supply: Supply, objective: Objective) -> Served:
    latencies, begun, taken, usd, said = [], [], [], 0.0, []
    for since_s in np.arange(demand.begin_s, demand.times_s[-1] + 1e-9, HOUR_S):
        times = demand.between(since_s, since_s + HOUR_S)
        plan = _plan(demand, since_s, supply, objective)
        seconds = np.array(plan.size.service_s[: plan.buffer.batch])
        sent = buffered(times, plan.buffer.batch, plan.buffer.timeout_s)
        latencies.append(sent.latency_s(seconds))
        sizes = sent.sizes[sent.first]
        usd += float(supply.price.per_call(plan.size.memory_mb, seconds)[sizes - 1].sum())
        begun.append((times + sent.wait_s)[sent.first] - demand.begin_s)
        taken.append(seconds[sizes - 1])
        said.append(str(plan))
    latency_s = np.concatenate(latencies)
    more = f"; {len(said)} in all" if len(said) > SHOWN_PLANS else ""
    plans = "; ".join(dict.fromkeys(said[:SHOWN_PLANS])) + more
    arrived_s, calls = demand.judged_s, np.concatenate(begun)
    instances = under_way(calls, np.concatenate(taken), minutes_in(arrived_s))
    return Served(name, arrived_s, latency_s, instances, usd, len(latency_s) / max(len(calls), 1), 0.0, 1.0, plans)


def _plan(demand: Demand, now_s: float, supply: Supply, objective: Objective) -> Plan:
    """The cheapest plan within the objective for the arrivals of the hour before; the quickest where there is none."""
    since_s = max(0.0, now_s - HOUR_S)
    before = demand.between(since_s, now_s)
    if demand.bin_s is None:
        sample = of_times(before)
    else:
        edges = np.linspace(since_s, now_s, round((now_s - since_s) / demand.bin_s) + 1)
        sample = of_counts(np.histogram(before, edges)[0].astype(float), demand.bin_s)
    batches = tuple(range(1, min(len(size.service_s) for size in supply.functions) + 1))
    timeouts_s = tuple(objective.slo_s * step / TIMEOUTS for step in range(1, TIMEOUTS + 1))
    space = Space(supply.functions, batches, timeouts_s)
    return Landscape(fit(sample).process, space, PerCall(supply.price), objective.percent).cheapest(objective.slo_s).plan


def _largest(name: str, demand: Demand, supply: Supply, objective: Objective) -> Served:
    return _alone(name, demand, largest(supply.functions, supply.price, objective.percent))


def _cherry_picked(name: str, demand: Demand, supply: Supply, objective: Objective) -> Served:
    return _alone(name, demand, cherry_picked(supply.functions, supply.price, objective.percent, objective.slo_s).plan)


def _alone(name: str, demand: Demand, plan: Plan) -> Served:
    arrived_s = demand.judged_s
    latency_s = np.full(len(arrived_s), plan.latency_s)
    instances = under_way(arrived_s, latency_s, minutes_in(arrived_s))
    return Served(name, arrived_s, latency_s, instances, len(arrived_s) * plan.usd_per_request, 1.0, 0.0, 1.0, plan.size.name)


def _target_tracking(name: str, demand: Demand, supply: Supply, objective: Objective, share: float = TARGETS[0]) -> Served:
    """SageMaker's autoscaling; its first machines are those that the history's mean rate deserves."""
    target_rps = share / supply.machine.service_s[0]
    settings = _settings("target-tracking", objective, 1, target_rps=target_rps)
    warm = max(1, math.ceil(demand.known_rps / target_rps))
    found = _on_machines(name, demand, supply, settings, warm=warm)
    return replace(found, said=f"target {60.0 * target_rps:.0f} a minute ({share:.0%} of what one sustains); {found.said}")


def _tuned(name: str, demand: Demand, supply: Supply, objective: Objective) -> Served:
    tried = [_target_tracking(name, demand, supply, objective, share) for share in TARGETS]
    late = [objective.late(one.latency_s) for one in tried]
    within = [one for one, share in zip(tried, late, strict=True) if share <= 1.0 - objective.percent / 100.0]
    return min(within, key=lambda one: one.usd) if within else tried[late.index(min(late))]


def _mark(name: str, demand: Demand, supply: Supply, objective: Objective) -> Served:
    """Machines for a predicted rate; what overflows is called one by one at the cherry-picked memory."""
    function = cherry_picked(supply.functions, supply.price, objective.percent, objective.slo_s).plan
    settings = _settings("mark", objective, len(supply.machine.service_s))
    each_rps = max(
        batch / seconds for batch, seconds in enumerate(supply.machine.service_s, start=1) if seconds <= objective.slo_s
    )
    warm = max(1, math.ceil(demand.known_rps / (settings.alpha * each_rps)))
    return _on_machines(name, demand, supply, settings, warm=warm, function=function)


def _batch_on_machines(name: str, demand: Demand, supply: Supply, objective: Objective) -> Served:
    settings = _settings("batch", objective, len(supply.machine.service_s))
    warm = max(1, math.ceil(demand.known_rps * supply.machine.service_s[0]))
    return _on_machines(name, demand, supply, settings, warm=warm)


def _settings(policy: str, objective: Objective, max_batch: int, target_rps: float | None = None) -> Settings:
    return Settings(
        autoscaler=policy, slo_s=objective.slo_s, slo_percentile=objective.percent, deadline_s=LONGEST_WAIT_S,
        max_batch=max_batch, queue_max_requests=10**6, target_rps=target_rps, scale=ScaleSettings(min=1, max=MOST_MACHINES),
    )  # fmt: skip


def _on_machines(
    name: str, demand: Demand, supply: Supply, settings: Settings, *, warm: int, function: Plan | None = None
) -> Served:
    """Simulated from the last `LEAD_S` of the history, with as many machines as are `warm`; counted where it is judged."""
    lead_s = min(LEAD_S, demand.begin_s)
    arrivals = demand.between(demand.begin_s - lead_s, math.inf) - (demand.begin_s - lead_s)
    table = LatencyTable({1: dict(enumerate(supply.machine.service_s, start=1))})
    profile = Profile(supply.machine.name, table, supply.start_s)
    called_s = None if function is None else function.latency_s
    plan = FunctionPlan(name, settings, profile, arrivals.tolist(), "given", warm=warm, on_demand_s=called_s)
    # An instance is a machine: the simulated cluster has a core for each.
    result = simulate([plan], [NodePlan("cloud", MOST_MACHINES * 2)])[name]
    judged = slice(int(np.searchsorted(arrivals, lead_s)), None)
    until_s = float(arrivals[-1])
    machine_s = result.instance_s_between(lead_s, until_s)
    called = _called(result)[judged]
    usd = machine_s * supply.usd_per_machine_s + called.sum() * (0.0 if function is None else function.usd_per_request)
    batches = np.array(result.requests.batch)[judged]
    executed = batches[batches > 0]
    said = f"{result.fewest_instances} to {result.most_instances} of {supply.machine.name}"
    if function is not None:
        said += f"; {called.sum()} calls at {function.size.name}"
    arrived_s = arrivals[judged] - lead_s
    begins_s = [lead_s + MINUTE_S * number for number in range(minutes_in(arrived_s))]
    return Served(
        name,
        arrived_s,
        _latency_s(result)[judged],
        [result.instance_s_between(begin_s, begin_s + MINUTE_S) / MINUTE_S for begin_s in begins_s],
        float(usd),
        len(executed) / max(float((1.0 / executed).sum()), 1.0),
        machine_s / (until_s - lead_s),
        float(called.mean()),
        said,
    )


def _latency_s(result: FunctionResult) -> Vector:
    rows = result.requests
    taken: Vector = np.array(rows.finished_s) - np.array(rows.arrived_s)
    found: Vector = np.where(np.array(rows.status) == OK, taken, math.inf)
    return found


def _called(result: FunctionResult) -> npt.NDArray[np.bool_]:
    """Which requests functions have served."""
    rows = result.requests
    number = rows.instances.index(INSTANCE) if INSTANCE in rows.instances else None
    found: npt.NDArray[np.bool_] = np.array(rows.instance) == number if number is not None else np.zeros(len(rows), dtype=bool)
    return found


_KINDS: Mapping[str, Callable[[str, Demand, Supply, Objective], Served]] = {
    "batch": _batch,
    "vanilla, largest": _largest,
    "vanilla, cherry-picked": _cherry_picked,
    "target-tracking": _target_tracking,
    "target-tracking, tuned": _tuned,
    "mark": _mark,
    "batch on machines": _batch_on_machines,
}
NAMES = tuple(_KINDS)
