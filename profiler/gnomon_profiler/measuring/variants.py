"""Measures the variants of a model on this machine: each engine and precision that it is offered in, by cores and largest batch.

    entry with engines.json ─▶ engines and precisions × cores, a fork each ─▶ × largest batches ─▶ Variant

A variant's numbers are of one instance alone: from its files to its first answer, each batch size, the largest batch one after
the other. The share of the model's validation set that it answers right is in the model's report. Its cost is its cores, as on
one machine. One that was measured while something else used the machine says so (`disturbed`).
"""

from __future__ import annotations

from collections.abc import Sequence

from gnomon_core.engines import (
    PROGRAM,
    REPORT,
    ChosenEngine,
    EngineReport,
    EngineResult,
    choose_engine,
    cpu_arithmetic,
    engine_options,
    read_report,
    split_name,
)
from gnomon_core.interfaces import ModelEntry
from gnomon_core.profiled_variants import MeasuredEngine
from gnomon_profiler.measuring.session import Machine, MeasuringProcess


def engines_to_measure(entry: ModelEntry) -> tuple[tuple[ChosenEngine, ...], dict[str, str]]:
    """The engines and precisions that a converted model is offered in, and why it is not in the others."""
    report = _report(entry)
    refused = {name: result.reason for name, result in report.engines.items() if result.reason}
    offered = [split_name(name) for name in report.engines if name not in refused]
    return tuple(
        choose_engine(engine, entry.files, report, precision) for engine, precision in [split_name(PROGRAM), *offered]
    ), refused


def _report(entry: ModelEntry) -> EngineReport:
    return (
        read_report(entry.files[REPORT]).on_cpu(cpu_arithmetic()) if REPORT in entry.files else EngineReport(EngineResult(), {})
    )


def measure_engine(
    process: MeasuringProcess,
    entry: ModelEntry,
    engine: ChosenEngine,
    machine: Machine,
    *,
    cores: int,
    batches: Sequence[int],
    repeats: int,
    budget_s: float,
    limit_s: float | None = None,
) -> MeasuredEngine:
    """Measure an engine on some of the machine's cores; the accuracy is that of the model's report.

    Raises:
        GnomonError: 500 `measuring_failed`, also where it takes longer than `limit_s`; the process is of no use then.

    """
    order = {
        "measure": "variant",
        "program": str(entry.program),
        "weights": str(entry.weights),
        "cores": cores,
        "cpus": list(machine.cpus[-cores:]),
        "batches": list(batches),
        "repeats": repeats,
        "budget_s": budget_s,
        **engine_options(engine),
    }
    [answer] = process.measure(order, limit_s)
    return MeasuredEngine(
        f"{entry.name}@{entry.version}",
        engine.name,
        cores,
        engine.accuracy,
        float(answer["load_s"]),
        {int(batch): float(seconds) for batch, seconds in answer["latency_s"].items()},
        max(map(float, answer["spreads"].values())),
        int(answer["peak_bytes"]),
        float(answer["saturation_rps"]),
        _report(entry).result(engine.name).versions,
    )
