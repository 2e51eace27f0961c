"""What the paper says of BATCH beside others, and whether it is so in `benchmarks.batch_baselines`' document."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.reports.claims import Claim, judged, unmeasured
from benchmarks.reports.measured import Measured

BENCHMARK = "batch_baselines"
ALIKE, MUCH = 0.25, 1.5
Rows = Mapping[str, Mapping[str, Any]]
Judge = Callable[[str, Rows], tuple[bool, str]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A claim about every case whose demand is one of these, or that some are like it (`once`).

    Of a case, `holds` tells whether it is so there, and what was seen.
    """

    part: str
    where: str
    says: str
    demands: tuple[str, ...]
    holds: Judge
    why: str
    once: bool = False


def cases_of(measured: Measured) -> dict[str, Rows]:
    """The rows of each case, by name."""
    return {case["case"]: {row["name"]: row for row in case["rows"]} for case in measured.document.get("cases", ())}


def claims(measured: Measured, part: str = "") -> Iterable[Claim]:
    """What the paper says of others, by the benchmark's document alone; of one section, or of all."""
    for one in COMPARISONS:
        if part not in ("", one.part):
            continue
        cases = cases_of(measured).items()
        found = [(case, *one.holds(case, rows)) for case, rows in cases if case.startswith(one.demands)]
        if not found:
            yield unmeasured(one.where, one.says, measured.command)
            continue
        held = [holds for _, holds, _ in found]
        said = "; ".join(f"{case}: {seen}" for case, _, seen in found)
        yield judged(one.where, one.says, f"{said}.", holds=any(held) if one.once else all(held), why=one.why)


def _slow(case: str, rows: Rows) -> tuple[bool, str]:
    late, allowed = rows["target-tracking"]["late"], 1.0 - _percent(case) / 100.0
    return late > allowed, f"{late:.2%} late, {_percentile(case, rows['target-tracking'])}"


def _dearer(_: str, rows: Rows) -> tuple[bool, str]:
    ratios = [
        rows[name]["usd_per_million"] / rows["target-tracking"]["usd_per_million"]
        for name in ("vanilla, largest", "vanilla, cherry-picked")
    ]
    seen = f"{ratios[0]:.2f} times SageMaker's cost at the largest memory, {ratios[1]:.2f} at the cherry-picked"
    return min(ratios) > 1.0, seen


def _lagging(case: str, rows: Rows) -> tuple[bool, str]:
    mark, lambda_ = rows["mark"], rows["vanilla, cherry-picked"]
    late = mark["late"] > 1.0 - _percent(case) / 100.0
    ratio = lambda_["usd_per_million"] / mark["usd_per_million"]
    of_lambda = f"Lambda {lambda_['late']:.2%} late at {ratio:.2f} times its cost"
    seen = f"MArk {mark['late']:.2%} late, {_percentile(case, mark)}, {of_lambda}"
    return late and lambda_["late"] == 0.0 and ratio > 1.0, seen


def _quickest(case: str, rows: Rows) -> tuple[bool, str]:
    tuned, batch, largest = rows["target-tracking, tuned"], rows["batch"], rows["vanilla, largest"]
    ratio = tuned["usd_per_million"] / largest["usd_per_million"]
    at_cost = f"at {ratio:.2f} of the cost of vanilla Lambda, largest"
    seen = f"{_percentile(case, tuned)} beside BATCH's {_percentile(case, batch)}, {at_cost}"
    return _seconds(tuned) < _seconds(batch) and ratio < 1.0, seen


def _violating(case: str, rows: Rows) -> tuple[bool, str]:
    mark, batch, allowed = rows["mark"], rows["batch"], 1.0 - _percent(case) / 100.0
    ratio = batch["usd_per_million"] / mark["usd_per_million"]
    seen = f"MArk {mark['late']:.2%} late, BATCH {batch['late']:.2%} at {ratio:.2f} times its cost"
    return mark["late"] > allowed >= batch["late"] and abs(ratio - 1.0) <= ALIKE, seen


def _longer(case: str, rows: Rows) -> tuple[bool, str]:
    ratio = _seconds(rows["target-tracking"]) / _seconds(rows["batch"])
    return ratio > MUCH, f"{_percentile(case, rows['target-tracking'])} beside BATCH's {_percentile(case, rows['batch'])}"


COMPARISONS: Sequence[Comparison] = (
    Comparison(
        "fig2-machines",
        "Figure 2(a), Section II-B",
        "SageMaker's scaling takes minutes to answer a surge, and latency suffers.",
        ("Twitter",),
        _slow,
        "At half of what a machine sustains, which AWS begins with, Twitter's plateaus do not fill machines before more are "
        "there.",
    ),
    Comparison(
        "fig2-machines",
        "Figure 2(c), Section II-C",
        "Without batches, Lambda costs more than SageMaker.",
        ("Twitter",),
        _dearer,
        "Lambda's prices per millisecond leave nothing to round up, and the machines stand half idle.",
    ),
    Comparison(
        "fig3",
        "Figure 3, Section II-C",
        "MArk reacts to a surge after a lag; Lambda has none, and costs more.",
        ("W14",),
        _lagging,
        "What overflows goes to functions at once here, so that what is late is only what waited for a machine before.",
    ),
    Comparison(
        "others",
        "Figure 14, column 3",
        "Under Twitter, with batches allowed, fine-tuned SageMaker has the least P95, at a low cost.",
        ("Twitter",),
        _quickest,
        "Machines that keep P95 low stand idle half of the time.",
    ),
    Comparison(
        "fig16",
        "Figure 16, Section VI-D",
        "At similar cost, MArk violates the SLO at surges; BATCH always meets it.",
        ("W14",),
        _violating,
        "BATCH plans an hour from the one before, and with bursts like W14's the two differ; what MArk's machines and calls "
        "cost beside it depends on the prices of the day.",
    ),
    Comparison(
        "others",
        "Figure 17(b)",
        "SageMaker's latency may be much longer than BATCH's.",
        ("Twitter", "Azure", "W14"),
        _longer,
        "SageMaker serves requests one at a time, without waiting for a batch.",
        once=True,
    ),
)


def _percent(case: str) -> float:
    """Of the objective in a case's name: 95 of “Twitter, 22 h, P95 ≤ 800 ms”."""
    return float(case.rsplit("P", 1)[1].split(" ", 1)[0])


def slo_s(case: str) -> float:
    """Of the objective in a case's name: 0.8 of “Twitter, 22 h, P95 ≤ 800 ms”."""
    return float(case.rsplit("≤ ", 1)[1].split(" ", 1)[0]) / 1e3


def _percentile(case: str, row: Mapping[str, Any]) -> str:
    seconds = _seconds(row)
    return f"P{_percent(case):g} {'without end' if seconds == math.inf else f'{seconds * 1e3:.0f} ms'}"


def _seconds(row: Mapping[str, Any]) -> float:
    return math.inf if row["percentile_s"] is None else float(row["percentile_s"])
