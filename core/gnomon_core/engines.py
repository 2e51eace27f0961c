"""Engines: which of them can run a model, how right and how quick each is, and which one `auto` means.

    engines.json, a file of a model's entry
        tolerance, machine, cores, batches
        program       {"1": ms, "8": ms}
        openvino      error 3e-6, {"1": ms, "8": ms}, files, versions           offered
        onnxruntime   reason "torch.onnx.export cannot convert …"               not offered

The report is made once, when the model is added. An engine is offered if its answers agreed with the layer program's on sample
inputs; `auto` is the quickest engine that is offered, `program` where that is none.
"""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gnomon_core.packaging import how_to_install

_LOG = logging.getLogger(__name__)
FORMAT = "gnomon-engines/1"
REPORT = "engines.json"
PROGRAM = "program"
AUTO = "auto"
ENGINES = (PROGRAM, "onnxruntime", "openvino")
"""Engines by name; `program` runs the layer program itself, and every model has it."""
GRAPH_FILES: Mapping[str, tuple[str, ...]] = {
    "onnxruntime": ("model.onnx", "model.onnx.data"),
    "openvino": ("openvino.xml", "openvino.bin"),
}
"""The files of each engine's graph, as converters name them."""
TOLERANCE = 1e-3
"""The largest difference to the program's answers, relative to the largest number of an output, of an engine that is offered."""
WORTH = 0.97
"""The share of the program's time that an engine may take to be worth its compiling and its own copy of the weights."""


@dataclass(frozen=True, slots=True)
class EngineResult:
    """One engine's conversion of one model.

    `error` is the largest relative difference to the program, `latency_s` the median of a batch by its size on one core,
    `spread` the largest relative interquartile range among them, and `load_s` seconds from the files to a compiled graph.
    `reason` says why the engine is not offered; empty where it is.
    """

    reason: str = ""
    error: float = 0.0
    latency_s: Mapping[int, float] = field(default_factory=dict)
    spread: float = 0.0
    load_s: float = 0.0
    files: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        if self.reason:
            return {"reason": self.reason, "error": self.error, "versions": dict(self.versions)}
        return {
            "error": self.error,
            "latency_s": {str(batch): seconds for batch, seconds in self.latency_s.items()},
            "spread": self.spread,
            "load_s": self.load_s,
            "files": list(self.files),
            "versions": dict(self.versions),
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> EngineResult:
        return EngineResult(
            str(document.get("reason", "")),
            float(document.get("error", 0.0)),
            {int(batch): float(seconds) for batch, seconds in document.get("latency_s", {}).items()},
            float(document.get("spread", 0.0)),
            float(document.get("load_s", 0.0)),
            tuple(map(str, document.get("files", ()))),
            {str(name): str(version) for name, version in document.get("versions", {}).items()},
        )


@dataclass(frozen=True, slots=True)
class EngineReport:
    """All engines of one model. `program` are the seconds of the layer program, measured in turn with the engines'."""

    program: EngineResult
    engines: Mapping[str, EngineResult]
    machine: str = ""
    tolerance: float = TOLERANCE

    def result(self, engine: str) -> EngineResult:
        """The result of an engine; one that was never converted has a reason."""
        if engine == PROGRAM:
            return self.program
        return self.engines.get(engine, EngineResult("the model was not converted for it"))

    def share(self, engine: str) -> float:
        """The engine's time as a share of the program's: the geometric mean over the batches that both have."""
        ours, theirs = self.program.latency_s, self.result(engine).latency_s
        ratios = [theirs[batch] / ours[batch] for batch in theirs if ours.get(batch)]
        return statistics.geometric_mean(ratios) if ratios else float("inf")

    @property
    def auto(self) -> str:
        """The quickest engine that is offered and worth it."""
        shares = {name: self.share(name) for name, result in self.engines.items() if not result.reason}
        quickest = min(shares, key=lambda name: shares[name], default=PROGRAM)
        return quickest if shares.get(quickest, 1.0) <= WORTH else PROGRAM

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "machine": self.machine,
            "tolerance": self.tolerance,
            "program": self.program.to_json(),
            "engines": {name: result.to_json() for name, result in self.engines.items()},
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> EngineReport:
        """The report in a document.

        Raises:
            ValueError: it holds none.

        """
        if document.get("format") != FORMAT:
            raise ValueError(f"not {FORMAT}")
        try:
            return EngineReport(
                EngineResult.from_json(document["program"]),
                {str(name): EngineResult.from_json(result) for name, result in document["engines"].items()},
                str(document.get("machine", "")),
                float(document.get("tolerance", TOLERANCE)),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no report on engines: {type(error).__name__}: {error}") from None


@dataclass(frozen=True, slots=True)
class ChosenEngine:
    """The engine that runs a model, its files by name, and why it is another one than was asked for; "" if it is not."""

    name: str = PROGRAM
    files: Mapping[str, Path] = field(default_factory=dict)
    shortfall: str = ""

    def __str__(self) -> str:
        """The engine's name, with the reason if it is not the requested engine."""
        return f"{self.name} ({self.shortfall})" if self.shortfall else self.name


def choose_engine(requested: str, files: Mapping[str, Path], report: EngineReport | None) -> ChosenEngine:
    """The engine for a model with these files. Where the requested one is not offered, the program serves, with the reason."""
    if requested == PROGRAM:
        return ChosenEngine()
    if report is None:
        return ChosenEngine(shortfall="the model has not been converted for other engines yet")
    name = report.auto if requested == AUTO else requested
    if name == PROGRAM:
        return ChosenEngine()
    result = report.result(name)
    reason = result.reason or next((f"the model's entry has no {file}" for file in result.files if file not in files), "")
    if reason:
        return ChosenEngine(shortfall=f"{name}: {reason}")
    return ChosenEngine(name, {file: files[file] for file in result.files})


_PACKAGES = {"onnxruntime": ("onnxruntime", "onnx"), "openvino": ("openvino",)}
"""The packages that an instance imports; a conversion needs more."""


def engine_of(files: Mapping[str, Path], requested: str) -> ChosenEngine:
    """The engine here for a model with these files; the program, with the reason, where the requested one cannot be had."""
    chosen = choose_engine(requested, files, _readable_report(files.get(REPORT)))
    if chosen.name != PROGRAM and not is_installed(chosen.name):
        return ChosenEngine(shortfall=f"{chosen.name} is not installed. {how_to_install(chosen.name)}")
    return chosen


@cache
def is_installed(engine: str) -> bool:
    """Whether the packages that run this engine are installed."""
    return all(find_spec(package) is not None for package in _PACKAGES[engine])


def engine_options(chosen: ChosenEngine) -> dict[str, Any]:
    """The options of a launch that name the engine; none for the program."""
    return {"engine": chosen.name, "graph": {file: str(path) for file, path in chosen.files.items()}} if chosen.files else {}


def _readable_report(path: Path | None) -> EngineReport | None:
    try:
        return None if path is None else _cached_report(path)
    except (OSError, ValueError) as error:
        _LOG.warning("the report on engines %s cannot be read: %s", path, error)
        return None


@cache
def _cached_report(path: Path) -> EngineReport:
    """The report in a file, whose name is the hash of its content: it is read once."""
    return read_report(path)


def read_report(path: Path) -> EngineReport:
    """The report in a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds none.

    """
    return EngineReport.from_json(json.loads(path.read_bytes()))
