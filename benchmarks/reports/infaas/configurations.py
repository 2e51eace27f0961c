"""Tables 2 and 3: variants of ResNet50, and the cheapest instances of them for a load, by the program and by the heuristic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.infaas import TABLE_3
from benchmarks.reports.infaas.catalog import measured_variants
from benchmarks.reports.report import Claim, Measured, Results, Section, Table, judged, table, unmeasured
from benchmarks.simulation.variant_catalogs import table_2_variants
from gnomon_autoscaler.policies.infaas import exact, greedy
from gnomon_autoscaler.policies.infaas.problem import Options
from gnomon_core.variant_scaling import ApplicationObservation, Demand, ScalingPlan, VariantMember
from gnomon_core.variants import Variant

PAPER_PLANS = ("two of A", "one of B", "two of B and one of C")
PAPER_NAMES = ("A", "B", "C")
CHEAPER_THAN = ((0, "C", 8.0), (1, "C", 5.3), (2, "A", 9.0))
"""Section 2.2: the row of Table 3, the variant alone, and by how much the row's plan is cheaper."""
AS_PRINTED = Options(slack=1.0, late_share=None)
RESNETS = ("resnet50", "resnet34", "resnet18")
"""The ResNets that were measured here; the first is the one of Table 2."""


@dataclass(frozen=True, slots=True)
class Configured:
    """The plans for a load, and the cost of each variant alone where it meets the objective."""

    load_rps: float
    latency_s: float
    exact: ScalingPlan
    greedy: ScalingPlan
    alone: dict[str, float]


def configured(variants: Sequence[Variant], load_rps: float, latency_s: float) -> Configured:
    """The cheapest instances of these variants for a load, from none on, without slack and without room for waiting."""
    members = tuple(VariantMember(variant) for variant in variants)
    observation = ApplicationObservation(0.0, variants[0].architecture, members, (Demand(load_rps, latency_s),))
    alone = {
        variant.id: math.ceil(load_rps / variant.saturation_rps - 1e-9) * variant.cost_per_s
        for variant in variants
        if variant.inference_s <= latency_s
    }
    plan, _ = greedy.decide(observation, greedy.GreedyState(), AS_PRINTED)
    return Configured(load_rps, latency_s, exact.solve(observation, AS_PRINTED), plan, alone)


def section(_: object, __: Results) -> Section:
    """Tables 2 and 3 from the paper's variants, and the same for a ResNet that was measured here."""
    ours = _ours()
    text = (
        "The paper's variants of ResNet50 are those of its Table 2; both solvers calculate plans for them, and nothing is "
        "served. Beside them stand the variants of a ResNet that were profiled here, on cores of this machine: their cost is the "
        "number of cores, and their images are of 64 × 64."
    )
    tables = [_plans("table3", "Table 3: plans for the paper's variants, calculated", table_2_variants())]
    if ours:
        tables += [_table_2(ours), _plans("table3-here", "Table 3 for the variants measured here, calculated", ours)]
    return Section("table3", "Tables 2 and 3: the cheapest variants for a load", (text,), tables=tuple(tables), claims=claims())


def _ours() -> list[Variant]:
    """The measured variants of the first ResNet of which there are any."""
    every = measured_variants()
    found = ([variant for variant in every if variant.architecture == name] for name in RESNETS)
    return next((variants for variants in found if variants), [])


def claims() -> tuple[Claim, ...]:
    """Table 3 by both solvers, the savings of section 2.2, and the same of what was measured here."""
    return (*_of_table_3(Measured("infaas_resnet50")), *_savings(), *_measured_here())


def _of_table_3(found: Measured) -> list[Claim]:
    made = []
    for (load_rps, latency_s, cost), plan in zip(TABLE_3, PAPER_PLANS, strict=True):
        where = f"Table 3, {load_rps:.0f} queries/s within {1e3 * latency_s:.0f} ms"
        says = f"The cheapest is {plan}, {cost:g} $/s."
        key = f"table_3_{load_rps:.0f}_rps_{1e3 * latency_s:.0f}_ms"
        by = {name: found.figure(f"{key}_{name}") for name in ("exact", "greedy")}
        if any(value is None for value in by.values()):
            made.append(unmeasured(where, says, "python -m benchmarks.infaas resnet50"))
            continue
        costs = {name: float(row["value"]) for name, row in by.items() if row is not None}
        said = f"calculated: {costs['exact']:g} $/s by the program, {costs['greedy']:g} $/s by the heuristic"
        holds = all(math.isclose(table_cost, cost) for table_cost in costs.values())
        made.append(judged(where, says, said, holds=holds, why="The solver found another plan."))
    return made


def _savings() -> list[Claim]:
    names = {variant.id: name for variant, name in zip(table_2_variants(), PAPER_NAMES, strict=True)}
    made = []
    for row, name, factor in CHEAPER_THAN:
        load_rps, latency_s, _ = TABLE_3[row]
        plans = configured(table_2_variants(), load_rps, latency_s)
        alone = {names[plan_name]: cost for plan_name, cost in plans.alone.items()}[name]
        made.append(
            judged(
                f"Section 2.2, {load_rps:.0f} queries/s within {1e3 * latency_s:.0f} ms",
                f"The plan is {factor:g} × cheaper than instances of {name} alone.",
                f"calculated: {alone / plans.exact.cost_per_s:.2f} ×",
                holds=alone / plans.exact.cost_per_s >= factor,
                why="The solver found another plan.",
            )
        )
    return made


def _measured_here() -> list[Claim]:
    where = "Table 2 and section 2.2, variants measured here"
    says = "The cheapest variants change with load and objective; at 1,000 queries/s the worst variant alone costs 9 × as much."
    ours = _ours()
    if not ours:
        return [unmeasured(where, says, "python -m benchmarks.variants")]
    plans = [configured(ours, load_rps, latency_s) for load_rps, latency_s, _ in TABLE_3]
    different = {tuple(sorted(plan.exact.instances)) for plan in plans if plan.alone}
    unmet = sum(not plan.alone for plan in plans)
    last = plans[-1]
    dearest = max(last.alone, key=lambda name: last.alone[name])
    ratio = last.alone[dearest] / last.exact.cost_per_s
    said = (
        f"calculated from {len(ours)} measured variants of {ours[0].architecture}: {len(different)} different sets of variants "
        f"for the three loads (no variant meets the objective of {unmet} of them); at "
        f"1,000 queries/s {last.exact.cost_per_s:g} cores by the program, {last.greedy.cost_per_s:g} by the heuristic; {dearest} "
        f"alone needs {ratio:.1f} × as many"
    )
    why = "All variants run on cores of one kind: what differs is the engine and the batch, not the price of a device."
    return [judged(where, says, said, holds=len(different) > 1 and ratio >= CHEAPER_THAN[-1][2], why=why)]


def _plans(name: str, title: str, variants: Sequence[Variant]) -> Table:
    """A row for each load of Table 3."""
    rows = []
    for load_rps, latency_s, cost in TABLE_3:
        found = configured(variants, load_rps, latency_s)
        dearest = max(found.alone.values(), default=None)
        paper = cost if name == "table3" else None
        plan = _text(found.exact)
        rows.append((load_rps, 1e3 * latency_s, plan, found.exact.cost_per_s, found.greedy.cost_per_s, dearest, paper))
    heads = ("queries/s", "within (ms)", "plan", "program", "heuristic", "dearest variant alone", "the paper")
    unit = "Costs are in $/s of Table 2." if name == "table3" else "Costs are in cores."
    return table(name, title, heads, rows, unit)


def _text(plan: ScalingPlan) -> str:
    """Example: "2 × resnet50-neuron-inferentia1-2"."""
    return ", ".join(f"{count} × {instance}" for instance, count in sorted(plan.instances.items()) if count) or "none"


def _table_2(variants: Sequence[Variant]) -> Table:
    """The variants of one sample and of the largest batch, as they were measured."""
    rows = [
        (
            variant.id,
            1e3 * variant.inference_s,
            variant.saturation_rps,
            variant.cost_per_s,
            100.0 * variant.accuracy,
            variant.load_s,
        )
        for variant in variants
        if variant.max_batch in (1, max(other.max_batch for other in variants))
    ]
    heads = ("variant", "batch takes (ms)", "samples/s", "cores", "accuracy on digits (%)", "load (s)")
    return table(
        "table2-here",
        f"Table 2 for {variants[0].architecture} as measured here: model/engine/precision/cores/largest batch",
        heads,
        rows,
    )
