"""Table 7 and section 4.2: how long it takes to select a variant for a query, and to decide how many instances there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.reports.report import Claim, Measured, Results, Section, judged, unmeasured

SECOND_S = 1.0
UNCHANGED = 1.25
"""The most by which a time may differ that does not change with the number of variants."""
Holds = Callable[[Measured], tuple[bool, str]]


@dataclass(frozen=True, slots=True)
class Decision:
    """A claim on decisions that rests on these figures of a benchmark."""

    benchmark: str
    figures: tuple[str, ...]
    where: str
    says: str
    holds: Callable[[Sequence[float]], tuple[bool, str]]
    why: str


def _selects(values: Sequence[float]) -> tuple[bool, str]:
    median_us, p99_us = values
    return median_us <= 2200.0, f"{median_us:.1f} µs, 99th percentile {p99_us:.0f} µs, in the gateway's process, no store asked."


def _outruns(values: Sequence[float]) -> tuple[bool, str]:
    selected, searched = values
    return searched / selected >= 44.0, f"{searched / selected:.0f} ×: {searched:.0f} µs for the search over everything."


def _scales(values: Sequence[float]) -> tuple[bool, str]:
    few, many = values
    return many / few <= UNCHANGED, f"{few:.1f} µs with 175 variants, {many:.1f} µs with 1,000."


def _is_slow(values: Sequence[float]) -> tuple[bool, str]:
    fifty, hundred, tight = values
    said = f"{fifty:.2f} and {hundred:.2f} s, proven; {tight:.1f} s for 100 where they compete for resources."
    return min(fifty, hundred, tight) > SECOND_S, said


def _is_quick(values: Sequence[float]) -> tuple[bool, str]:
    return max(values) < SECOND_S, f"{values[0]:.2f} s for 100 architectures, {values[1]:.2f} s where they compete for resources."


def _is_near(values: Sequence[float]) -> tuple[bool, str]:
    ours, mean, printed = values
    said = (
        f"At most {ours:.1%} above the cheapest for one demand, {mean:.2%} on average; the heuristic as printed {printed:.1%} on "
        "average."
    )
    return printed < 0.1, said


DECISIONS = (
    Decision(
        "selection", ("select_175_median", "select_175_p99"), "Table 7, application requirements",
        "Selecting a loaded variant and its worker takes 2.2 ms in the median, one that is not loaded 3.5 ms.", _selects,
        "The selection asks more than the paper's did.",
    ),
    Decision(
        "selection", ("select_175_median", "brute_force_175_mean"), "Table 7, speedup",
        "The selection is 27 to 44 × faster than a search over everything.", _outruns,
        "The search over everything is done in memory as well.",
    ),
    Decision(
        "selection", ("select_175_median", "select_1000_median"), "Section 6.4",
        "Latencies do not change with the number of variants.", _scales,
        "More variants miss the processor's caches more often.",
    ),
    Decision(
        "variant_scaling", ("exact_50_architectures", "exact_100_architectures", "exact_100_architectures_tight"),
        "Section 4.2.1", "The integer program is too slow for decisions: 23 s for 50 architectures, 50 s for 100.", _is_slow,
        "Demands that share no variants and no scarce resource are programs of their own, which are solved in milliseconds.",
    ),
    Decision(
        "variant_scaling", ("greedy_100_architectures", "greedy_100_architectures_tight"), "Section 4.2.2",
        "The heuristic decides within a second.", _is_quick, "A hundred architectures are many for one core.",
    ),
    Decision(
        "variant_scaling", ("dearer_one_demand_most", "dearer_one_demand_mean", "dearer_as_printed_one_demand_mean"),
        "Section 4.2.2, comparison with the program",
        "The heuristic's cost is close to the program's (judged: within 10 % on average).",
        _is_near, "The heuristic ends with one kind of variant for a load.",
    ),
)  # fmt: skip


def section(_: object, __: Results) -> Section:
    """Table 7 and section 4.2."""
    measured = [Measured(name) for name in dict.fromkeys(decision.benchmark for decision in DECISIONS)]
    text = (
        "Selections are timed one by one in the gateway's own process, with catalogs made up within the paper's ranges; the "
        "paper's ask a Redis on the controller's machine. Decisions on instances are for all architectures at once."
    )
    tables = [
        measurement.table(f"table7-{measurement.name.replace('_', '-')}", f"{measurement.name}: all figures")
        for measurement in measured
        if measurement.there
    ]
    return Section("table7", "Table 7 and section 4.2: the time to decide", (text,), (), tuple(tables), claims())


def claims() -> tuple[Claim, ...]:
    """Table 7 and section 4.2; a query that names its variant is not timed by itself."""
    named = Claim(
        "Table 7, registered model",
        "With a model that the query names, selecting a worker takes 0.9 to 1.0 ms.",
        "not measured",
        "not measured",
        "The timed queries are mixed: one in five names an architecture, one in ten a variant.",
    )
    return (named, *(_claim(decision, Measured(decision.benchmark)) for decision in DECISIONS))


def _claim(decision: Decision, measured: Measured) -> Claim:
    figures = [measured.figure(key) for key in decision.figures]
    if any(figure is None for figure in figures):
        return unmeasured(decision.where, decision.says, f"python -m benchmarks.{decision.benchmark}")
    holds, said = decision.holds([float(figure["value"]) for figure in figures if figure is not None])
    return judged(decision.where, decision.says, said, holds=holds, why=decision.why)
