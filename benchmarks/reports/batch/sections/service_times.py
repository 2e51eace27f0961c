"""Figure 11 and the regression: is service deterministic, and do a few measured cells tell the others?"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.pace import ROOT
from benchmarks.reports.batch.services import CORES, Service, described, service_of
from benchmarks.reports.batch.setting import APPLICATIONS, Setting
from benchmarks.reports.claims import Claim, judged, unmeasured
from benchmarks.reports.measured import Measured
from benchmarks.reports.pictures import SERIES, Picture, picture
from benchmarks.reports.sections import Section
from benchmarks.reports.steps import Results
from benchmarks.reports.tables import Table, table

LARGEST_CV = 0.1
GOAL = 0.02
QUARTILES = 1.349  # between the quartiles of a normal distribution lie so many of its deviations


def section(setting: Setting, results: Results) -> Section:
    """Figure 11 and Section VI-B."""
    found = {name: service_of(results, name) for name in APPLICATIONS}
    profiles, regression = _profiles(), Measured("regression")
    text = (
        (
            "The coefficient of variation of a batch's service time, over runs of one program on so many cores. Published "
            "profiles say the same of another day: theirs come from the distance of quartiles, with 10 to 40 runs a cell."
        ),
        "In the places of the paper's: "
        + ", ".join(
            f"{described(one, setting)} for {one.name}" for one in APPLICATIONS.values() if one.stands_in or setting.quick
        )
        + ".",
    )
    tables = [_table(found), _profile_table(profiles)]
    if regression.there:
        tables.append(regression.table("regression", "The regression, as benchmarks.regression measured it"))
    title = "Figure 11 and Section VI-B: service times, and their regression"
    claims = (*_claims(found, profiles), regressed(regression))
    return Section("fig11", title, text, (_picture(found, setting),), tuple(tables), claims)


def _cv(cell: Mapping[str, Any]) -> float:
    seconds: list[float] = cell["seconds"]
    return statistics.stdev(seconds) / statistics.fmean(seconds)


def _picture(found: Mapping[str, Service], setting: Setting) -> Picture:
    def draw(panels: list[Any]) -> None:
        for number, (name, service) in enumerate(found.items()):
            for cores, line in zip(CORES, ("-", "--"), strict=True):
                cells = sorted((cell["batch"], cell) for cell in service.cells if cell["cores"] == cores)
                label = name if cores == 1 else None
                places = [batch for batch, _ in cells]
                panels[0].plot(places, [_cv(cell) for _, cell in cells], line, color=SERIES[number], marker=".", label=label)
                each_ms = [statistics.median(cell["seconds"]) / batch * 1e3 for batch, cell in cells]
                panels[1].plot(places, each_ms, line, color=SERIES[number], marker=".", label=label)
        panels[0].axhline(LARGEST_CV, color=SERIES[4], linewidth=1.0)
        panels[0].set(title="Coefficient of variation", xlabel="batch size", ylabel="CV", ylim=(0.0, None))
        panels[1].set(title="Time for each request of a batch", xlabel="batch size", ylabel="ms", yscale="log")
        panels[0].legend(loc="upper right")

    about = "published profiles" if setting.quick else "measured here"
    return picture("fig11", f"One core (solid) and two (dashed), {about}; the line at 0.1 is the paper's bound.", draw, columns=2)


def _table(found: Mapping[str, Service]) -> Table:
    rows = [
        (
            name,
            cell["cores"],
            cell["batch"],
            len(cell["seconds"]),
            statistics.median(cell["seconds"]) * 1e3,
            _cv(cell),
            cell.get("peak_mb"),
        )
        for name, service in found.items()
        for cell in service.cells
    ]
    heads = ("application", "cores", "batch", "runs", "median (ms)", "CV", "largest resident (MB)")
    return table("fig11", "Service times", heads, rows)


def _profiles() -> dict[str, dict[str, float]]:
    """The deviation of each cell of the published profiles, from its quartiles."""
    found = {}
    for path in sorted((ROOT / "profiles").glob("*.json")):
        spread = json.loads(path.read_text(encoding="utf-8"))["spread"]
        found[path.stem] = {cell: value / QUARTILES for cell, value in spread.items()}
    return found


def _profile_table(profiles: Mapping[str, Mapping[str, float]]) -> Table:
    rows = [(name, len(cells), statistics.median(cells.values()), max(cells.values())) for name, cells in profiles.items()]
    return table("fig11-profiles", "The published profiles", ("model", "cells", "median CV", "largest CV"), rows)


def _claims(found: Mapping[str, Service], profiles: Mapping[str, Mapping[str, float]]) -> Iterable[Claim]:
    cells = [(_cv(cell), name, cell) for name, service in found.items() for cell in service.cells]
    worst, name, cell = max(cells, key=lambda one: one[0])
    of_profiles = [value for one in profiles.values() for value in one.values()]
    below = sum(one[0] < LARGEST_CV for one in cells)
    yield judged(
        "Figure 11, Section VI-B",
        "Service is deterministic: its CV is always smaller than 0.1.",
        f"{below} of {len(cells)} cells have a CV below 0.1; the largest is {worst:.3f} ({name}, {cell['cores']} core(s), batch "
        f"{cell['batch']}), the median {statistics.median(one[0] for one in cells):.3f}. Published profiles: at most "
        f"{max(of_profiles):.3f} in {len(of_profiles)} cells.",
        holds=worst < LARGEST_CV,
        why="The machine is shared with whatever else runs on it, and with other guests of its host: single runs are late.",
    )


def regressed(regression: Measured) -> Claim:
    """How well few cells tell the others, by that benchmark's document alone."""
    says = "Trained on less than 3 % of the configurations, the regression's mean absolute error on the others is less than 2 %."
    if not regression.there:
        return unmeasured("Section VI-B", says, regression.command)
    errors = [one for one in regression.figures if one["goal"] is not None and "error" in one["key"]] or regression.having(
        "error"
    )
    said = "; ".join(f"{one['key']} {one['value']:.2%}" for one in errors)
    return judged(
        "Section VI-B",
        says,
        f"{said}.",
        holds=bool(errors) and all(one["value"] <= GOAL for one in errors),
        why="; ".join(str(one["detail"]) for one in errors if one["value"] > GOAL),
    )
