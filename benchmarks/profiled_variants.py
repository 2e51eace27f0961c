"""Profiled variants: each engine and precision of a model measured on this machine, and the file that holds the measurements.

    entry with engines.json ─▶ engines and precisions × cores, a fork each ─▶ × largest batches ─▶ Variant

    benchmarks/results/variants.json, written by `python -m benchmarks.variants`
        machine, versions, when, weights, what accuracies are of
        not_offered      architecture ─▶ engine and precision ─▶ reason
        engines          model, engine, cores ─▶ accuracy, loading, latency by batch, spread, memory, saturation

An engine on some cores makes a variant for each batch size as its largest. Its numbers are of one instance alone: from the
files to its first answer, each batch size, the largest batch one after the other. The share of the validation set that it
answers right is in the model's report. Its cost is its cores, as on one machine. One that was measured while something else used
the machine says so (`disturbed`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from gnomon_core.variants import Variant
from gnomon_profiler.measuring.session import Machine, MeasuringProcess

FORMAT = "gnomon-variants/1"
DISTURBED = 0.2
"""Above this relative interquartile range of a batch's times the machine was used by something else."""


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """One engine and precision of a model on some cores. `spread` is the largest interquartile range of a batch, relative."""

    model: str
    engine: str
    cores: int
    accuracy: float | None
    load_s: float
    latency_s: Mapping[int, float]
    spread: float
    memory_bytes: int
    saturation_rps: float
    versions: Mapping[str, str]

    @property
    def disturbed(self) -> bool:
        """Return whether something else used the machine."""
        return self.spread > DISTURBED

    def variants(self) -> Iterator[Variant]:
        """A variant for each batch size as its largest one."""
        engine, precision = split_name(self.engine)
        for batch in sorted(self.latency_s):
            sizes = {size: seconds for size, seconds in self.latency_s.items() if size <= batch}
            yield Variant(
                id=f"{self.model}/{engine}/{precision}/{self.cores}/{batch}",
                architecture=self.model.partition("@")[0],
                engine=engine,
                precision=precision,
                cores=self.cores,
                max_batch=batch,
                accuracy=self.accuracy or 0.0,
                load_s=self.load_s,
                latency_s=sizes,
                memory_bytes=self.memory_bytes,
                saturation_rps=self.saturation_rps if batch == max(self.latency_s) else batch / sizes[batch],
                cost_per_s=float(self.cores),
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "engine": self.engine,
            "cores": self.cores,
            "accuracy": self.accuracy,
            "load_s": self.load_s,
            "latency_s": {str(batch): seconds for batch, seconds in sorted(self.latency_s.items())},
            "spread": self.spread,
            "disturbed": self.disturbed,
            "memory_bytes": self.memory_bytes,
            "saturation_rps": self.saturation_rps,
            "versions": dict(self.versions),
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> MeasuredEngine:
        """The measurements in a document.

        Raises:
            KeyError, TypeError, ValueError: the document is not of this form.

        """
        accuracy = document["accuracy"]
        return MeasuredEngine(
            str(document["model"]),
            str(document["engine"]),
            int(document["cores"]),
            None if accuracy is None else float(accuracy),
            float(document["load_s"]),
            {int(batch): float(seconds) for batch, seconds in document["latency_s"].items()},
            float(document["spread"]),
            int(document["memory_bytes"]),
            float(document["saturation_rps"]),
            {str(name): str(version) for name, version in document["versions"].items()},
        )


def read_profiled(path: Path) -> tuple[MeasuredEngine, ...]:
    """The measurements in a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds none.

    """
    document = json.loads(path.read_bytes())
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{path} is not {FORMAT}")
    try:
        return tuple(MeasuredEngine.from_json(engine) for engine in document["engines"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} holds no variants: {type(error).__name__}: {error}") from None


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
