"""BATCH beside other systems, as `benchmarks.batch_baselines` measures them: figures 2, 3, 16, and SageMaker's part of 14 and 17.

Figures 2, 3 and 16 are a section each, minute by minute around a surge; the claims on all of them are in a section of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.reports.batch import arrivals
from benchmarks.reports.batch.setting import Setting
from benchmarks.reports.report import (
    MUTED,
    SERIES,
    Claim,
    Measured,
    Picture,
    Results,
    Section,
    Table,
    judged,
    legend_above,
    picture,
    table,
    unmeasured,
)

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
    """The paper's claims on other systems, checked against the benchmark's document; of one section, or of all."""
    for comparison in COMPARISONS:
        if part not in ("", comparison.part):
            continue
        cases = cases_of(measured).items()
        found = [(case, *comparison.holds(case, rows)) for case, rows in cases if case.startswith(comparison.demands)]
        if not found:
            yield unmeasured(comparison.where, comparison.says, measured.command)
            continue
        held = [holds for _, holds, _ in found]
        said = "; ".join(f"{case}: {seen}" for case, _, seen in found)
        yield judged(
            comparison.where, comparison.says, f"{said}.", holds=any(held) if comparison.once else all(held), why=comparison.why
        )


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
    """The percentile in a case's name: 95 of “Twitter, 22 h, P95 ≤ 800 ms”."""
    return float(case.rsplit("P", 1)[1].split(" ", 1)[0])


def slo_s(case: str) -> float:
    """The latency objective in a case's name, in seconds: 0.8 of “Twitter, 22 h, P95 ≤ 800 ms”."""
    return float(case.rsplit("≤ ", 1)[1].split(" ", 1)[0]) / 1e3


def _percentile(case: str, row: Mapping[str, Any]) -> str:
    seconds = _seconds(row)
    return f"P{_percent(case):g} {'without end' if seconds == math.inf else f'{seconds * 1e3:.0f} ms'}"


def _seconds(row: Mapping[str, Any]) -> float:
    return math.inf if row["percentile_s"] is None else float(row["percentile_s"])


COLOURS = {
    "batch": SERIES[0],
    "vanilla, largest": SERIES[1],
    "vanilla, cherry-picked": SERIES[2],
    "target-tracking": SERIES[3],
    "target-tracking, tuned": SERIES[4],
    "mark": SERIES[5],
    "batch on machines": MUTED,
}


@dataclass(frozen=True, slots=True)
class Part:
    """A figure of its own: who serves this demand, minute by minute."""

    name: str
    title: str
    text: str
    demand: str
    who: tuple[str, ...]


PARTS = {
    comparison.name: comparison
    for comparison in (
        Part(
            "fig2-machines",
            "Figures 2(a) and 2(c): SageMaker's machines follow the load",
            "Target tracking (machines with a target of invocations a minute, the default and the best of several, chosen "
            "afterwards) beside a call for each request at the largest memory.",
            "Twitter",
            ("target-tracking", "target-tracking, tuned", "vanilla, largest"),
        ),
        Part(
            "fig3",
            "Figure 3: MArk at a surge, beside Lambda",
            "MArk's machines serve batches for a predicted rate, functions what overflows; beside it a call for each request.",
            "W14",
            ("mark", "vanilla, cherry-picked"),
        ),
        Part(
            "fig16",
            "Figure 16: MArk and BATCH over time",
            "The same hours of W14, with BATCH's plan of each hour from the hour before.",
            "W14",
            ("mark", "batch"),
        ),
    )
}


def machines(_: Setting, __: Results) -> Section:
    """Figures 2(a) and 2(c)."""
    return _part(PARTS["fig2-machines"])


def mark(_: Setting, __: Results) -> Section:
    """Figure 3."""
    return _part(PARTS["fig3"])


def bursts(_: Setting, __: Results) -> Section:
    """Figure 16."""
    return _part(PARTS["fig16"])


def others(_: Setting, __: Results) -> Section:
    """Notes on all comparisons, and SageMaker's part of Figures 14 and 17."""
    measured = Measured(BENCHMARK)
    cases = cases_of(measured)
    text = (
        (
            "Target tracking is SageMaker's autoscaling (machines with a target of invocations a minute, the default and the "
            "best of several that was chosen afterwards); MArk has machines with batches for a predicted rate, and calls of "
            "functions for what overflows. Both are policies here, and run in virtual time beside BATCH on ResNet50's published "
            "profile. A machine serves two minutes after it was asked for. Times and sizes differ from the other figures': "
            "objectives are 800 and 150 ms, Lambda's price is today's."
        ),
    )
    pictures = (_picture(cases), *_distributions(cases)) if cases else ()
    tables = (_table(measured, cases),) if cases else ()
    title = "Figures 14 and 17: SageMaker's part, and everybody beside BATCH"
    return Section("others", title, text, pictures, tables, tuple(claims(measured, "others")))


def _part(part: Part) -> Section:
    """One figure: a picture for each objective of its arrivals, where minutes were kept."""
    measured = Measured(BENCHMARK)
    kept = arrivals.minutes()
    of_demand = {case: kept[case] for case in cases_of(measured) if case in kept and case.startswith(part.demand)}
    pictures = tuple(
        arrivals.over_time(
            part.name if not number else f"{part.name}-{number + 1}",
            f"{case}: {', '.join(part.who)}.",
            {who: minutes[who] for who in part.who},
            slo_s(case),
            COLOURS,
        )
        for number, (case, minutes) in enumerate(of_demand.items())
    )
    missing = () if pictures else (f"What each minute was like has not been measured yet: {measured.command}.",)
    return Section(part.name, part.title, (part.text, *missing), pictures, (), tuple(claims(measured, part.name)))


def _distributions(cases: Mapping[str, Rows]) -> tuple[Picture, ...]:
    """Figure 14's second row with SageMaker in it; nothing of a result that has no distributions."""
    shown = {
        case: {name: row["ccdf"] for name, row in rows.items() if name in COLOURS}
        for case, rows in cases.items()
        if all(row.get("ccdf") for row in rows.values())
    }
    caption = "The share of the requests that take longer than a multiple of the SLO."
    return (arrivals.exceeding("others-ccdf", caption, shown, COLOURS),) if shown else ()


def _picture(cases: Mapping[str, Rows]) -> Picture:
    names = [name for name in COLOURS if any(name in rows for rows in cases.values())]
    width = 0.8 / len(names)

    def draw(panels: list[Any]) -> None:
        for number, name in enumerate(names):
            places = [place + (number - (len(names) - 1) / 2.0) * width for place in range(len(cases))]
            late = [100.0 * rows[name]["late"] for rows in cases.values()]
            cost = [rows[name]["usd_per_million"] / rows["batch"]["usd_per_million"] for rows in cases.values()]
            panels[0].bar(places, late, width, color=COLOURS[name], label=name)
            panels[1].bar(places, cost, width, color=COLOURS[name])
        panels[0].set(title="Requests over the SLO", ylabel="%")
        panels[1].set(title="Cost", ylabel="÷ BATCH's")
        for panel in panels:
            panel.set_xticks(range(len(cases)), [case.replace(", P", "\nP") for case in cases], fontsize=7.0)
        panels[0].set_yscale("symlog", linthresh=0.1)
        legend_above(panels, 4)

    return picture("others", "Requests over the SLO (zero stays zero on this scale), and cost relative to BATCH's.", draw, rows=2)


def _table(measured: Measured, cases: Mapping[str, Rows]) -> Table:
    heads = ("case", "who", "late", "percentile (ms)", "median (ms)", "$ per million", "mean batch", "machines", "called", "how")
    rows = [
        (
            case, name, row["late"], _ms(row["percentile_s"]), _ms(row["median_s"]), row["usd_per_million"], row["batch"],
            row["machines"], row["on_demand"], row["said"],
        )
        for case, each in cases.items()
        for name, row in each.items()
    ]  # fmt: skip
    note = f"{measured.command}, {measured.document.get('measured_at', '')}"
    return table("others", "BATCH beside its baselines", heads, rows, note)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
