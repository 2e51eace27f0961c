"""Claims beside what was simulated, and the numbers that they rest on.

An `Estimate` is a mean over seeds with half its 95 % interval. A claim of a saving "up to" a share is reproduced if the largest
saving over the models that were simulated reaches it, the interval included.

**Pareto curves.** A policy's curve is the least cost (memory or cores) at which it is late for no more than a share x of the
requests, over all headrooms that were simulated. The area between two curves is the mean of their distance over x from 0.01 to
10 % on a logarithmic scale, where both have a point, as a share of the first one's cost.

    A: 0.1 % at 10 GB, 1 % at 8 GB    B: 0.1 % at 12 GB    from 0.1 to 1 % B costs 20 %, above 50 % more than A
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.report import half_width
from benchmarks.reports.evaluation.grid import MODEL, Cell
from benchmarks.reports.evaluation.runs import Row
from benchmarks.reports.report import Claim, judged, unmeasured

Found = Sequence[tuple[Cell, Row]]
Value = Callable[[Row], float]
COMMAND = "make evaluate"
LATE = [10 ** (-4 + step / 20) for step in range(61)]
"""Shares of late requests at which curves are compared: 0.01 to 10 %."""


ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Estimate:
    """The mean over `runs` seeds, and half of its 95 % interval: 0 for one seed, which says nothing about its spread."""

    mean: float
    half: float
    runs: int

    @staticmethod
    def of(values: Sequence[float]) -> Estimate:
        return Estimate(statistics.fmean(values), half_width(values), len(values))

    def __str__(self) -> str:
        return f"{_digits(self.mean, 3)} ± {_digits(self.half, 2)}" if self.runs > 1 else _digits(self.mean, 3)


def _digits(value: float, digits: int) -> str:
    """A number with so many digits; rounding errors of sums are 0, and no power of ten is written."""
    if abs(value) < ROUNDING:
        return "0"
    whole = abs(value) >= 10**digits - 0.5  # rounded, it has more digits than that
    return f"{value:,.0f}" if whole else f"{value:.{digits}g}"


def by_policy(found: Found, **chosen: object) -> dict[str, dict[int, Row]]:
    """Label of a policy ▶ seed ▶ row, of the cells with these properties."""
    rows: dict[str, dict[int, Row]] = {}
    for cell, row in found:
        if all(getattr(cell, name) == value for name, value in chosen.items()):
            rows.setdefault(cell.policy.label, {})[cell.seed] = row
    return rows


def of_all(rows: Mapping[int, Row], value: Value) -> Estimate:
    return Estimate.of([value(row) for row in rows.values()])


def compared(
    rows: Mapping[str, Mapping[int, Row]], ours: str, theirs: str, value: Callable[[Row, Row], float]
) -> Estimate | None:
    """A comparison of two policies seed by seed; None where they have none in common."""
    mine, other = rows.get(ours, {}), rows.get(theirs, {})
    values = [value(mine[seed], other[seed]) for seed in mine if seed in other]
    return Estimate.of(values) if values else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A claim that a policy is better than another by so much, on any model or on one. Values are in percent or points."""

    where: str
    says: str
    least: float
    ours: str
    theirs: str
    value: Callable[[Row, Row], float]
    unit: str
    why: str
    model: str = ""


def _saving(value: Value) -> Callable[[Row, Row], float]:
    return lambda ours, theirs: 100.0 * (1.0 - value(ours) / value(theirs))


def _memory(row: Row) -> float:
    return row.memory_gb


def _cores(row: Row) -> float:
    return row.cores


def _points(ours: Row, theirs: Row) -> float:
    return 100.0 * (ours.utility - theirs.utility)


COMPARISONS = (
    Comparison(
        "Abstract of the draft, section 7.3", "Up to 23.4 % less memory than the state of the art.", 23.4, "asyfunc", "batch",
        _saving(_memory), "% less memory than batch",
        "BATCH plans from its arrivals' statistics and holds about as many instances; AsyFunc keeps a fifth of them as headroom.",
    ),
    Comparison(
        "Abstract as published", "Up to 32.5 % less memory.", 32.5, "asyfunc", "batch", _saving(_memory),
        "% less memory than batch", "As for the draft's claim.",
    ),
    Comparison(
        "Abstract as published", "Up to 31.1 % fewer compute resources.", 31.1, "asyfunc", "batch", _saving(_cores),
        "% fewer cores than batch", "Both have Bodies of the same cores; Shadows come on top.",
    ),
    Comparison(
        "Section 7.2, Figure 12", "CPU utility is 12 points higher than BATCH's.", 12.0, "asyfunc", "batch", _points,
        "points of CPU utility above batch", "Cores of Bodies at α = 0.8 stand idle a fifth of the time by design.",
    ),
    Comparison(
        "Section 7.2, Figure 12", "Adaptive scheduling raises InceptionV3's CPU utility by about 11 %.", 11.0, "batch+", "batch",
        _points, "points of CPU utility of batch+ above batch",
        "The number of instances, not their schedule, decides what they compute on average.", "inception_v3",
    ),
    Comparison(
        "Section 7.3", "ViT needs about 8 % less memory than with BATCH.", 8.0, "asyfunc", "batch", _saving(_memory),
        "% less memory than batch", "As for the draft's claim.", "vit_b_16",
    ),
)  # fmt: skip


def claims(found: Found) -> list[Claim]:
    """AsyFunc's claims on the paper's cluster: Twitter, private weights, 1.5 times the objective."""
    usual = [
        (cell, row)
        for cell, row in found
        if (cell.load, cell.cluster, cell.objective, cell.weights, cell.ready_s) == ("twitter", "paper", 1.5, "private", None)
    ]
    models = list(dict.fromkeys(cell.model for cell, _ in usual))
    made = [_claim(comparison, usual, [comparison.model] if comparison.model else models) for comparison in COMPARISONS]
    return [*made, _utility(usual, models), _bursts(found)]


def _claim(comparison: Comparison, found: Found, models: Iterable[str]) -> Claim:
    values = {
        model: value
        for model in models
        if (value := compared(by_policy(found, model=model), comparison.ours, comparison.theirs, comparison.value)) is not None
    }
    if not values:
        return unmeasured(comparison.where, comparison.says, COMMAND)
    said = ", ".join(f"{model} {value}" for model, value in values.items())
    holds = any(value.mean + value.half >= comparison.least for value in values.values())
    return judged(comparison.where, comparison.says, f"simulated: {said} {comparison.unit}", holds=holds, why=comparison.why)


def _utility(found: Found, models: Iterable[str]) -> Claim:
    where, says = "Section 7.2, Figure 12", "CPU utility is up to 96 %."
    all_rows = {model: by_policy(found, model=model).get("asyfunc") for model in models}
    values = {model: of_all(rows, lambda row: 100.0 * row.utility) for model, rows in all_rows.items() if rows}
    if not values:
        return unmeasured(where, says, COMMAND)
    said = ", ".join(f"{model} {value}" for model, value in values.items())
    holds = any(value.mean + value.half >= 96.0 for value in values.values())
    return judged(where, says, f"simulated: {said} %", holds=holds, why="At α = 0.8 a fifth of the capacity is headroom.")


def _bursts(found: Found) -> Claim:
    where, says = "Abstract, section 7", "Shadows keep violations low through bursts."
    rows = by_policy(found, load="mmpp", cluster="paper", objective=1.5, weights="private", ready_s=None, model=MODEL)
    with_them, without = rows.get("asyfunc"), rows.get("asyfunc without layers")
    if not with_them or not without:
        return unmeasured(where, says, COMMAND)
    late, alone = (of_all(each, lambda row: 100.0 * row.steady) for each in (with_them, without))
    memory = compared(
        rows, "asyfunc", "asyfunc without layers", lambda ours, theirs: 100.0 * (ours.memory_gb / theirs.memory_gb - 1)
    )
    text = f"simulated: {late} % late after start-up with Shadows, {alone} % without, for {memory} % more memory (MMPP)"
    return judged(where, says, text, holds=late.mean < alone.mean, why="Bodies alone met the bursts of these seeds.")


Points = Sequence[tuple[float, float]]
"""Share of late requests and cost, one for each headroom."""


def points(found: Found, autoscaler_name: str, value: Value) -> Points:
    """A policy's points over the headrooms that were simulated, means over seeds."""
    rows: dict[str, list[Row]] = {}
    for cell, row in found:
        if cell.policy.name == autoscaler_name:
            rows.setdefault(cell.policy.label, []).append(row)
    return sorted(
        (statistics.fmean(row.steady for row in each), statistics.fmean(value(row) for row in each)) for each in rows.values()
    )


def least_cost(curve: Points, late: float) -> float | None:
    """The least cost at which the policy is late for no more than this share; None where it never is."""
    return min((cost for share, cost in curve if share <= late), default=None)


def area_between(first: Points, second: Points) -> float | None:
    """The extra cost of the second over the first, as a share; None where they have no late share in common."""
    distances: list[float] = []
    for late in LATE:
        ours, theirs = least_cost(first, late), least_cost(second, late)
        if ours is not None and theirs is not None:
            distances.append(theirs / ours - 1.0)
    return statistics.fmean(distances) if distances else None
