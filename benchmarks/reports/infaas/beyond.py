"""Results beyond the paper, simulated: less accuracy where queries accept it, and relief for an Overloaded variant."""

from __future__ import annotations

from statistics import fmean

from benchmarks import degrading, relieving
from benchmarks.reports.infaas.serving import Setting
from benchmarks.reports.report import Measured, Results, Section, Table

SYSTEMS = ("plan", "overload", "shadows")
TEXT = (
    (
        "INFaaS queues or refuses queries that no variant answers in time, and replicates or upgrades an Overloaded variant by "
        "the mean load. Applications here have two mechanisms more, which are simulated below; no machine was measured."
    ),
    (
        "A query may accept less accuracy than it wishes (`accuracy_floor`). Where the machines do not suffice for the wished "
        "variants, less accurate ones are loaded and answer in time what would be late or lost."
    ),
    (
        "An Overloaded variant gets the instances that its last period's load needs, and its ready instances have Shadows until "
        "these have started. The figures are means of four profiled models. Where instances start as these profiles say, as on "
        "one machine, Shadows add next to nothing; where they take seconds, they save a quarter of what is lost or more."
    ),
)


def section(_: Setting, __: Results) -> Section:
    """The section on both mechanisms, each by its benchmark's figures."""
    return Section("beyond", "Beyond the paper, simulated", TEXT, tables=tuple(filter(None, (_degraded(), _relieved()))))


def _degraded() -> Table | None:
    measured = Measured("degrading")
    if not measured.there:
        return None
    rows = []
    for peak_rps in degrading.PEAKS_RPS:
        key = f"simulated {peak_rps:.0f}/s"
        values = [
            _value(measured, f"{key}: {name}, {what}")
            for name, what in (("without a floor", "violations"), ("with a floor", "violations"), ("with a floor", "degraded"))
        ]
        rows.append((f"{peak_rps:g}", *(f"{value:.3g}" for value in values)))
    columns = ("peak (queries/s)", "without a floor: late or lost (%)", "with a floor: late or lost (%)", "less accurate (%)")
    title = "Queries that wish 0.776 and accept 0.698, on four workers of eight cores, simulated"
    return Table("beyond-floors", title, columns, tuple(rows), measured.command)


def _relieved() -> Table | None:
    measured = Measured("relieving")
    if not measured.there:
        return None
    rows = []
    for start_s in relieving.STARTS_S:
        for peak in relieving.PEAKS:
            cells = []
            for what in ("violations", "cores", "memory"):
                for system in SYSTEMS:
                    keys = [f"simulated {name}, {start_s or 'own'} s, x{peak:g}: {system}, {what}" for name in relieving.MODELS]
                    mean = fmean(_value(measured, key) for key in keys)
                    cells.append(f"{mean:.0f}" if what == "memory" else f"{mean:.3g}")
            start = "0.08 to 0.93, as profiled" if start_s is None else f"{start_s:g}"
            rows.append((start, f"{peak:g} ×", *(" / ".join(cells[first : first + 3]) for first in (0, 3, 6))))
    columns = ("instances start in (s)", "burst", "late or lost (%)", "cores", "memory (MiB)")
    title = "Bursts of ten seconds: the plan alone / with instances for the last period / with Shadows as well, simulated"
    return Table("beyond-overload", title, columns, tuple(rows), measured.command)


def _value(measured: Measured, key: str) -> float:
    found = measured.figure(key)
    return float("nan") if found is None else float(found["value"])
