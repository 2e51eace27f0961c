"""AsyFunc's policies on a simulated cluster: an hour of Twitter for each model, beside od, lv, k-lv and opt (it sees the future).

    python -m benchmarks.asyfunc_cluster [--quick] [--hours | --readings] [--afresh] [--profiles FOLDER] [--models NAME …]
                                         [--processes N] [--serial 0.02 0.1 …] [--slo 1 1.5] [--modes private shared] [--kept]

For each measured profile in `profiles/`: memory × time, CPU utility (cores × seconds in inference, a waiting Shadow being idle)
and SLO violations, in both weight modes, for an SLO of t_l(16, 8) and 1.5 × it. Cores that were not measured are extrapolated
with 2, 5 and 10 % serial work, and each figure says so; the conclusions say in how many of the three they hold. `cluster_cells`
has what the paper leaves open and how it is settled here. The first cell of a model and its counterpart with shared weights are
an hour; the sweeps around them, and the first cell with the paper read otherwise, are its first quarter. With `--hours` every
serial fraction, objective and weight mode is an hour, twelve cells of a model, and there are no sweeps; with `--readings` there
are the sweeps alone. What an hour shows is in `asyfunc_cluster.json`, sweeps and readings are in `asyfunc_readings.json`.

An hour is 0.8 million requests of VGG16, which takes four minutes a cell, and 13 million of EfficientNet-Lite0, which takes an
hour: the load is scaled to eight Bodies. `--serial`, `--slo` and `--modes` leave out all other cells. What is simulated is kept
in .cache/benchmarks until the code changes: interrupted, the same command goes on from there. A result has the cells that were
asked for; with `--kept` those of them that several runs have simulated so far.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from benchmarks.cluster_cells import AS_PRINTED, C_MAX, GBPS, READINGS, RTT_MS, Cell, Outcome, Row, measure, read_model
from benchmarks.kept import Kept
from benchmarks.pace import ROOT, pace_of, pace_parser, step
from benchmarks.report import Figure, write
from gnomon_core.errors import bad_request
from gnomon_core.profiles import FORMAT

RESULT, READINGS_RESULT = "asyfunc_cluster", "asyfunc_readings"
SERIAL = (0.02, 0.05, 0.10)
USUAL = 0.05
SWEPT = (0.1, 1.0, 10.0)
SLOS = (1.5, 1.0)
MODES = ("private", "shared")
HOUR_S, QUARTER_S, QUICK_S = 3600.0, 900.0, 120.0
SOURCES = ("core", "autoscaler", "simulator", "gateway-plugin", "benchmarks/cluster_cells.py")
SIDE_BY_SIDE = ("asyfunc", "asyfunc- without layers", "asyfunc- without adaptive", AS_PRINTED, "od", "lv", "k-lv", "opt")
GB = 1e9

CLAIMS: tuple[tuple[str, Callable[[dict[str, Row]], bool]], ...] = (
    ("fewer violations than without layers", lambda by: by["asyfunc"].violations < by["asyfunc- without layers"].violations),
    ("fewer violations than od", lambda by: by["asyfunc"].violations < by["od"].violations),
    ("no more violations than k-lv", lambda by: by["asyfunc"].violations <= by["k-lv"].violations),
    ("less memory than k-lv", lambda by: by["asyfunc"].memory_bytes < by["k-lv"].memory_bytes),
    ("higher CPU utility than k-lv", lambda by: by["asyfunc"].cpu_utility > by["k-lv"].cpu_utility),
)


def cells_of(path: Path, *, quick: bool, readings: bool) -> list[Cell]:
    """What is simulated for one profile: the usual hour in both weight modes, and the sweeps around it."""
    usual, *others = serials_of(path)
    first = Cell(path, usual, SLOS[0], MODES[0], None, QUICK_S if quick else HOUR_S, readings and quick)
    if quick:
        return [first]
    brief = replace(first, duration_s=QUARTER_S)
    found = [first, replace(first, mode="shared"), replace(brief, readings=readings)]
    found += [replace(brief, slo=SLOS[1], mode=mode) for mode in MODES]
    found += [replace(brief, serial=serial, slo=slo) for serial in others for slo in SLOS]
    found += [replace(brief, kappa=kappa) for kappa in SWEPT]
    return [*found, replace(brief, mode="shared", kappa=SWEPT[-1])]


def hours_of(path: Path) -> list[Cell]:
    """Every serial fraction, objective and weight mode as a whole hour, the usual ones first."""
    serials = serials_of(path)
    return [Cell(path, serial, slo, mode, None, HOUR_S) for serial in serials for slo in SLOS for mode in MODES]


def sweeps_of(path: Path) -> list[Cell]:
    """What is around the usual hour: the sweeps, and the paper read otherwise."""
    return [cell for cell in cells_of(path, quick=False, readings=True) if cell.duration_s == QUARTER_S]


def kind_of(path: Path, asked: argparse.Namespace) -> list[Cell]:
    """The cells of a profile that the command line asks for."""
    if asked.quick or not (asked.hours or asked.readings):
        return cells_of(path, quick=asked.quick, readings=True)
    return hours_of(path) if asked.hours else sweeps_of(path)


def serials_of(path: Path) -> tuple[float | None, ...]:
    """The serial fractions that a profile is extrapolated with, the usual one first; None where it has all cores."""
    if read_model(path, None).whole.measured(C_MAX):
        return (None,)
    return (USUAL, *(serial for serial in SERIAL if serial != USUAL))


def chosen_of(cells: Iterable[Cell], serials: Sequence[float], slos: Sequence[float], modes: Sequence[str]) -> list[Cell]:
    """Those with one of each; nothing named means all."""
    return [
        cell
        for cell in cells
        if (not serials or cell.serial in serials) and (not slos or cell.slo in slos) and (not modes or cell.mode in modes)
    ]


def figures_of(outcome: Outcome) -> list[Figure]:
    """A cell's three figures are those of `asyfunc`; the other policies stand beside them."""
    key, rows = key_of(outcome), outcome.rows
    load = f"{outcome.best} for {outcome.rate_rps:.1f} rps"
    scheduled = f"scheduled by {rows['asyfunc'].scheduler}"
    said = f"{load}, {scheduled}, {outcome.nodes} nodes, {GBPS:g} Gbit/s and {RTT_MS:g} ms between them, {outcome.extrapolated}"
    beside = SIDE_BY_SIDE[1:]

    def figure(what: str, unit: str, value: Callable[[Row], float]) -> Figure:
        others = ", ".join(f"{name} {value(rows[name]):.3g}" for name in beside)
        return Figure(f"{key}: {what}", value(rows["asyfunc"]), unit, detail=f"{others}; {said}")

    asyfunc = rows["asyfunc"]
    shadows = f"{asyfunc.shadows} Shadows, {asyfunc.elsewhere} asked for on another node, {asyfunc.shadow_s:.3g} at a time"
    return [
        figure("SLO violations", "%", lambda row: 100 * row.violations),
        figure("memory", "GB", lambda row: row.memory_bytes / GB),
        figure("CPU utility", "%", lambda row: 100 * row.cpu_utility),
        figure("Bodies", f"on average; {shadows}", lambda row: row.bodies),
    ]


def readings_of(outcome: Outcome) -> list[Figure]:
    """What each other reading of the paper makes of the cell, beside the default; nothing where they were not simulated."""
    key, rows, settled = key_of(outcome), outcome.rows, outcome.rows["asyfunc"]
    return [
        Figure(
            f"{key}: with {name}",
            100 * rows[name].violations,
            "% SLO violations",
            detail=f"{rows[name].memory_bytes / GB:.3g} GB, {100 * rows[name].cpu_utility:.3g} % utility, "
            f"{rows[name].cores:.3g} cores, {rows[name].shadows} Shadows; as settled {100 * settled.violations:.3g} %, "
            f"{settled.memory_bytes / GB:.3g} GB, {100 * settled.cpu_utility:.3g} %; {outcome.extrapolated}",
        )
        for name in READINGS
        if outcome.cell.readings
    ]


def results_of(outcomes: Sequence[Outcome]) -> dict[str, list[Figure]]:
    """The figures by the result that holds them: sweeps and readings apart from hours, which may be simulated without them."""
    sweeps = [outcome for outcome in outcomes if outcome.cell.duration_s == QUARTER_S]
    others = [outcome for outcome in outcomes if outcome not in sweeps]
    read_otherwise = [figure for outcome in outcomes for figure in readings_of(outcome)]
    found = {RESULT: judged(others), READINGS_RESULT: judged(sweeps) + read_otherwise}
    return {name: figures for name, figures in found.items() if figures}


def judged(outcomes: Sequence[Outcome]) -> list[Figure]:
    """The figures of each cell, and what they say of the claims."""
    return [figure for outcome in outcomes for figure in figures_of(outcome)] + conclusions(outcomes)


def key_of(outcome: Outcome) -> str:
    """What the keys of a cell's figures begin with."""
    return f"{outcome.model}: {outcome.cell.name}, {outcome.cell.duration_s / 60:g} min"


def conclusions(outcomes: Iterable[Outcome]) -> list[Figure]:
    """Of each claim, in how many of the serial fractions it holds, with private weights and κ by the profile."""
    groups: dict[tuple[str, float, float], list[Outcome]] = {}
    for outcome in outcomes:
        cell = outcome.cell
        if (cell.mode, cell.kappa) == ("private", None):
            groups.setdefault((outcome.model, cell.slo, cell.duration_s / 60), []).append(outcome)
    found: list[Figure] = []
    for (model, slo, minutes), group in groups.items():
        for claim, holds in CLAIMS:
            held = [outcome for outcome in group if holds(dict(outcome.rows))]
            where = ", ".join("measured" if each.cell.serial is None else f"{each.cell.serial:.0%}" for each in held) or "none"
            found.append(
                Figure(
                    f"{model}: {slo:g} × SLO, {minutes:g} min: {claim}",
                    len(held),
                    f"of {len(group)} profiles",
                    detail=f"holds for {where}",
                )
            )
    return found


def profiles_in(folder: Path, models: Sequence[str]) -> list[Path]:
    """The profiles of these models, of all where none is named.

    Raises:
        GnomonError: 400 `bad_profile` where there are none.

    """
    found: list[Path] = []
    for path in sorted(folder.rglob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(document, dict) and document.get("format") == FORMAT:
            name = str(document["model"]).partition("@")[0].rpartition(":")[2]
            if not models or name in models:
                found.append(path)
    if not found:
        raise bad_request("bad_profile", f"{folder} holds no profile.", "Measure models with `gnomon models profile NAME`.")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--profiles", type=Path, default=ROOT / "profiles", help="where the profiles are")
    parser.add_argument("--models", nargs="*", default=(), metavar="NAME", help="only these")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--hours", action="store_true", help="whole hours of every serial fraction, objective and weight mode")
    kinds.add_argument("--readings", action="store_true", help="only sweeps and readings around the usual hour")
    parser.add_argument("--serial", type=float, nargs="*", default=(), choices=SERIAL, help="only these serial fractions")
    parser.add_argument("--slo", type=float, nargs="*", default=(), choices=SLOS, help="only these multiples of the objective")
    parser.add_argument("--modes", nargs="*", default=(), choices=MODES, help="only these weight modes")
    known = parser.add_mutually_exclusive_group()
    known.add_argument("--afresh", action="store_true", help="simulate again what an interrupted run has kept")
    known.add_argument("--kept", action="store_true", help="only what runs have kept: nothing is simulated")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many cells at once")
    asked = parser.parse_args(arguments)
    run(asked)


def run(asked: argparse.Namespace) -> None:
    pace = pace_of(asked)
    paths = profiles_in(asked.profiles, asked.models)
    cells = chosen_of((cell for path in paths for cell in kind_of(path, asked)), asked.serial, asked.slo, asked.modes)
    kept = Kept(RESULT, SOURCES)
    if asked.afresh or pace.quick:
        kept.forget()
    found = {cell: kept.get(cell.key) for cell in cells}
    outcomes = [Outcome.from_json(cell, result) for cell, result in found.items() if result is not None]
    if outcomes:
        step(f"{len(outcomes)} of {len(cells)} were simulated before")
    missing = [] if asked.kept else [cell for cell, result in found.items() if result is None]
    with ProcessPoolExecutor(asked.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for outcome in pool.map(measure, missing):
            outcomes.append(outcome)
            if not pace.quick:
                kept.keep(outcome.cell.key, outcome.to_json())
            step(f"{outcome.model}: {outcome.cell.name} ({len(outcomes)} of {len(cells)})\n{table(outcome)}")
    for name, figures in results_of(outcomes).items():
        write(name, figures, repeats=1, packages=("gnomon",), folder=pace.results)


def table(outcome: Outcome) -> str:
    """A cell for a reader."""
    load = f"SLO {outcome.slo_s * 1e3:.0f} ms, {outcome.rate_rps:.1f} rps"
    said = f"  {load}, {outcome.nodes} nodes, {outcome.best}, {outcome.extrapolated}"
    lines = [
        f"  {row.policy:26} {row.violations:7.2%} over the SLO  {row.memory_bytes / GB:7.2f} GB  {row.cpu_utility:6.1%} utility  "
        f"{row.bodies:6.2f} Bodies, {row.most} at most, {row.shadows} Shadows ({row.shadow_s:.2f})  {row.cores:6.1f} cores  "
        f"b {row.batch:.2f} by {row.scheduler}"
        for row in outcome.rows.values()
    ]
    return "\n".join((said, *lines))


if __name__ == "__main__":
    main()
