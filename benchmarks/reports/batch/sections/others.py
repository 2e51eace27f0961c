"""Figures 2, 3, 16, and SageMaker's part of 14 and 17: BATCH beside others, as `benchmarks.batch_baselines` measures them.

Figures 2, 3 and 16 are a section each, minute by minute around a surge; what concerns all of them is in another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.reports.batch.sections import surges
from benchmarks.reports.batch.sections.comparisons import BENCHMARK, Rows, cases_of, claims, slo_s
from benchmarks.reports.batch.setting import Setting
from benchmarks.reports.measured import Measured
from benchmarks.reports.pictures import MUTED, SERIES, Picture, picture
from benchmarks.reports.sections import Section
from benchmarks.reports.steps import Results
from benchmarks.reports.tables import Table, table

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
    one.name: one
    for one in (
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


def section(_: Setting, __: Results) -> Section:
    """What concerns all of them, and SageMaker's part of Figures 14 and 17."""
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
    """One figure: a picture for each of its demand's objectives, as far as minutes were kept."""
    measured = Measured(BENCHMARK)
    kept = surges.minutes()
    of_demand = {case: kept[case] for case in cases_of(measured) if case in kept and case.startswith(part.demand)}
    pictures = tuple(
        surges.over_time(
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
    return (surges.exceeding("others-ccdf", caption, shown, COLOURS),) if shown else ()


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
        panels[0].legend(ncols=4, loc="upper left", bbox_to_anchor=(0.0, 1.35))

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
