"""The page: docs/evaluation.md with its figures, and all rows as CSV and JSON beside them.

Every number on it is simulated, and every table, figure and verdict says so. A table that lacks cells because only a part of the
grid was run has fewer rows; nothing is filled in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.report import interpreter, machine
from benchmarks.reports.evaluation.grid import LOADS, MODEL, Cell
from benchmarks.reports.evaluation.loads import FILE
from benchmarks.reports.evaluation.runs import Row
from benchmarks.reports.evaluation.verdicts import (
    Estimate,
    Found,
    Value,
    area_between,
    by_policy,
    claims,
    least_cost,
    of_all,
    points,
)
from benchmarks.reports.report import SERIES, Picture, Table, counted, legend_above, picture, table

METRICS: Mapping[str, Value] = {
    "late (%)": lambda row: 100.0 * row.late,
    "late after start-up (%)": lambda row: 100.0 * row.steady,
    "memory (GB)": lambda row: row.memory_gb,
    "cores": lambda row: row.cores,
    "CPU utility (%)": lambda row: 100.0 * row.utility,
    "Bodies": lambda row: row.bodies,
    "Shadows": lambda row: float(row.shadows),
    "p95 (ms)": lambda row: row.p95_ms,
}
PARETO = ("asyfunc", "asyfunc without layers", "gnomon", "od", "lv", "kpa", "batch", "k-lv", "batch+")
COSTS: Mapping[str, Value] = {"memory (GB)": lambda row: row.memory_gb, "cores": lambda row: row.cores}
FOLDER = "figures/evaluation"
FARTHEST = 0.3
"""The share of late requests at which curves end."""


@dataclass(frozen=True, slots=True)
class Section:
    """A group of cells: the properties by which its tables are told apart, in the order of a table's columns."""

    group: str
    title: str
    text: str
    apart: tuple[str, ...]


SECTIONS = (
    Section(
        "head to head", "The policies as they come",
        "Twitter's hour from second 74,220, on the paper's cluster, for both objectives (1.5 and 1.0 times the latency of a full "
        "batch on 16 cores) and both weight modes. The instances of `gnomon` borrow cores for each batch.",
        ("objective", "weights"),
    ),
    Section("models", "Other models", "The same for other profiles.", ("model",)),
    Section("arrivals", "Arrival processes", "From calm to on/off, traces, and eight functions on one cluster.", ("load",)),
    Section("start", "When a Body is ready", "Seconds from its creation to its first batch, under MMPP arrivals.", ("ready_s",)),
    Section(
        "clusters", "A cluster that is measured in every cell",
        "Bodies of one or two cores, eight and more a node, where sharing weights shows; nothing is extrapolated.", ("weights",),
    ),
    Section("ablation", "Ablation of asyfunc", "Under MMPP arrivals.", ()),
    Section("sensitivity", "Sensitivity of asyfunc", "Under MMPP arrivals, one parameter at a time.", ()),
    Section("files", "Traces of your own", "Every policy on both clusters.", ("load", "cluster")),
)  # fmt: skip


def published(cells: Sequence[Cell], rows: Mapping[str, Row], duration_s: float, folder: Path) -> Path:
    """Write the page and all that belongs to it; its path."""
    found = [(cell, rows[cell.key]) for cell in cells if cell.key in rows]
    facts = {
        "Machine": machine(),
        "Python": interpreter(),
        "Made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "Run": _part(cells, rows, duration_s),
    }
    made = claims(found)
    tables = [made_table for section in SECTIONS if (made_table := _table(section, found)) is not None]
    areas = _areas(found)
    pictures = _pictures(found)
    figures_folder = folder / FOLDER
    figures_folder.mkdir(parents=True, exist_ok=True)
    verdicts = [
        (claim.where, claim.says, claim.found, f"**{claim.verdict}**" + (f": {claim.why}" if claim.why else "")) for claim in made
    ]
    judged = table("claims", "AsyFunc's claims, simulated", ("where", "the paper says", "found here", "verdict"), verdicts)
    for page_part in (_rows(found), judged, areas, *tables):
        (figures_folder / f"{page_part.name}.csv").write_text(page_part.to_csv(), encoding="utf-8")
        (figures_folder / f"{page_part.name}.json").write_text(
            json.dumps(page_part.to_json(), ensure_ascii=False) + "\n", encoding="utf-8"
        )
    for drawn in pictures:
        (figures_folder / f"{drawn.name}.svg").write_text(drawn.svg, encoding="utf-8")
    parts = [_head(facts, duration_s), f"## AsyFunc's claims beside ours\n\n{len(made)} claims, simulated: {counted(made)}.\n"]
    parts.append(judged.to_markdown())
    parts.append(_pareto_text(areas, pictures))
    for section in SECTIONS:
        name = _name(section.group)
        mine = [table for table in tables if table.name == name]
        if mine:
            drawn = "".join(
                f"![{picture.caption}]({FOLDER}/{picture.name}.svg)\n\n" for picture in pictures if picture.name == name
            )
            text = f"## {section.title}\n\n{section.text} Simulated; [CSV]({FOLDER}/{name}.csv), [JSON]({FOLDER}/{name}.json).\n"
            parts.append(f"{text}\n{drawn}{mine[0].to_markdown()}")
    page = folder / "evaluation.md"
    page.write_text("\n".join(parts), encoding="utf-8")
    return page


def _part(cells: Sequence[Cell], rows: Mapping[str, Row], duration_s: float) -> str:
    unique = {cell.key for cell in cells}
    run = len(unique & rows.keys())
    return f"{run} of the {len(unique)} cells of the grid, {duration_s:g} s of virtual time each"


def _head(facts: Mapping[str, str], duration_s: float) -> str:
    said = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    return f"""# The scaling policies beside each other, simulated

Every number on this page is **simulated**: the gateway's dispatcher and the autoscaler in virtual time, with service times from
published profiles. `make evaluate` makes the page again and goes on where it was; `make evaluate TRACES="a.csv b.json.gz"` adds
files of demand; `make evaluate QUICK=1` sees that it works. What the clusters, arrival processes and headrooms are:
`benchmarks/reports/evaluation/grid.py` and `loads.py`.

{said}

A value is the mean over its seeds with half of the 95 % interval; a value without one has one seed. The model is {MODEL} where
none is named. The first 60 s are start-up, in which windows are shorter than policies look back; the other
{max(0.0, duration_s - 60):g} s stand apart. All rows: [CSV]({FOLDER}/rows.csv), [JSON]({FOLDER}/rows.json); the claims:
[CSV]({FOLDER}/claims.csv), [JSON]({FOLDER}/claims.json).
"""


def _name(group: str) -> str:
    return group.replace(" ", "-")


def _table(section: Section, found: Found) -> Table | None:
    """A row for each policy and combination of the properties that are told apart; None without cells."""
    mine = [(cell, row) for cell, row in found if cell.group == section.group]
    if not mine:
        return None
    kinds = list(dict.fromkeys(tuple(getattr(cell, name) for name in section.apart) for cell, _ in mine))
    lines: list[tuple[Any, ...]] = []
    for kind in kinds:
        chosen = dict(zip(section.apart, kind, strict=True))
        for label, rows in by_policy(mine, **chosen).items():
            kind_cells = [_shown_property(value) for value in kind]
            lines.append((*kind_cells, label, *(str(of_all(rows, value)) for value in METRICS.values()), len(rows)))
    heads = (*(name.replace("_s", " after (s)") for name in section.apart), "policy", *METRICS, "seeds")
    return table(_name(section.group), f"{section.title}, simulated", heads, lines)


def _shown_property(value: Any) -> str:
    return Path(str(value)).name if str(value).startswith(FILE) else str(value)


def _rows(found: Found) -> Table:
    """Every cell with all its digits."""
    heads = (
        "load",
        "cluster",
        "model",
        "objective",
        "weights",
        "ready after (s)",
        "seed",
        "virtual (s)",
        "policy",
        "alpha",
        "options",
    )
    lines: dict[str, tuple[Any, ...]] = {}
    for cell, row in found:
        options = json.dumps(dict(cell.policy.options), ensure_ascii=False) if cell.policy.options else ""
        cell_fields = (
            _shown_property(cell.load), cell.cluster, cell.model, cell.objective, cell.weights, cell.ready_s, cell.seed,
            cell.duration_s, cell.policy.name, cell.policy.alpha, options,
        )  # fmt: skip
        lines[cell.key] = (*cell_fields, *(round(value, 6) for value in asdict(row).values()))
    fields = tuple(f"{name}, simulated" for name in Row.__dataclass_fields__)
    return table("rows", "All cells, simulated", (*heads, *fields), list(lines.values()))


def _areas(found: Found) -> Table:
    """The table of the extra cost of each policy over asyfunc at equal shares of late requests, and of asyfunc over it."""
    lines: list[tuple[Any, ...]] = []
    swept = [(cell, row) for cell, row in found if cell.group == "pareto"]
    for load in dict.fromkeys(cell.load for cell, _ in swept):
        here = [(cell, row) for cell, row in swept if cell.load == load]
        for name in PARETO[1:]:
            areas = [area_between(points(here, "asyfunc", value), points(here, name, value)) for value in COSTS.values()]
            if any(cell.policy.name == name for cell, _ in here):
                lines.append((load, name, *(None if area is None else 100.0 * area for area in areas)))
    heads = ("load", "policy", "memory beyond asyfunc's (%)", "cores beyond asyfunc's (%)")
    return table("pareto", "Area between the Pareto curves, simulated", heads, lines)


def _pareto_text(areas: Table, pictures: Sequence[Picture]) -> str:
    if not areas.rows:
        return ""
    drawn = "".join(
        f"![{picture.caption}]({FOLDER}/{picture.name}.svg)\n\n" for picture in pictures if picture.name.startswith("pareto")
    )
    return (
        "## At equal headroom: Pareto curves\n\nThe headroom α of each policy is swept from 0.5 to 0.95; `batch`, `k-lv` and "
        "others without one are single points. The area is how much more a policy costs than `asyfunc` where both are late for "
        "the same share of requests after start-up, from 0.01 to 10 %; negative: less; –: no share in common. Simulated; "
        f"[CSV]({FOLDER}/pareto.csv), [JSON]({FOLDER}/pareto.json).\n\n{drawn}{areas.to_markdown()}"
    )


def _pictures(found: Found) -> list[Picture]:
    drawn: list[Picture] = []
    swept = [(cell, row) for cell, row in found if cell.group == "pareto"]
    for load in dict.fromkeys(cell.load for cell, _ in swept):
        here = [(cell, row) for cell, row in swept if cell.load == load]
        caption = f"Late requests against memory and cores under {load}, simulated: each point is a headroom."
        drawn.append(picture(f"pareto-{load}", caption, _curves(here), columns=2))
    mixed = [(cell, row) for cell, row in found if cell.group == "arrivals"]
    if mixed:
        caption = "Late requests after start-up and memory by arrival process, simulated."
        drawn.append(picture("arrivals", caption, _bars(mixed), rows=2, columns=2))
    return drawn


def _curves(found: Found) -> Callable[[list[Any]], None]:
    def draw(panels: list[Any]) -> None:
        for panel, (cost, value) in zip(panels, COSTS.items(), strict=True):
            for number, name in enumerate(PARETO):
                curve = points(found, name, value)
                if curve:
                    colour = SERIES[number % len(SERIES)]
                    marker = "o" if number < len(SERIES) else "s"
                    panel.plot(
                        [100.0 * late for late, _ in curve], [each for _, each in curve], marker, markersize=3.5, color=colour
                    )
                    ends = sorted({0.0, *(late for late, _ in curve), FARTHEST})
                    front = [(late, least) for late in ends if (least := least_cost(curve, late)) is not None]
                    across = [100.0 * late for late, _ in front]
                    panel.step(across, [each for _, each in front], where="post", linewidth=1.0, color=colour)
                    panel.plot([], [], f"-{marker}", markersize=3.5, color=colour, label=name)
            panel.set_xscale("symlog", linthresh=0.01)
            panel.set(xlabel="late after start-up (%), simulated", ylabel=f"{cost}, simulated", xlim=(-0.001, None))
        legend_above(panels, 5)

    return draw


def _bars(found: Found) -> Callable[[list[Any]], None]:
    def draw(panels: list[Any]) -> None:
        loads = [load for load in LOADS if any(cell.load == load for cell, _ in found)]
        names = list(dict.fromkeys(cell.policy.label for cell, _ in found))
        shown_metrics = ("late after start-up (%)", "memory (GB)", "cores", "CPU utility (%)")
        for panel, metric in zip(panels, shown_metrics, strict=True):
            for number, name in enumerate(names):
                estimates = [_estimate(found, load, name, METRICS[metric]) for load in loads]
                places = [place + (number - len(names) / 2) * 0.8 / len(names) for place in range(len(loads))]
                heights = [0.0 if estimate is None else estimate.mean for estimate in estimates]
                errors = [0.0 if estimate is None else estimate.half for estimate in estimates]
                alpha = 1.0 if number < len(SERIES) else 0.45
                colour = SERIES[number % len(SERIES)]
                panel.bar(
                    places, heights, 0.8 / len(names), yerr=errors, color=colour, alpha=alpha, label=name, error_kw={"lw": 0.5}
                )
            panel.set_xticks(range(len(loads)), loads, fontsize=6.0, rotation=20)
            panel.set(title=f"{metric}, simulated")
        panels[0].set_yscale("symlog", linthresh=0.1)
        legend_above(panels, 5)

    return draw


def _estimate(found: Found, load: str, label: str, value: Value) -> Estimate | None:
    rows = by_policy(found, load=load).get(label)
    return of_all(rows, value) if rows else None
