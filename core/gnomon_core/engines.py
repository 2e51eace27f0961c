"""Engines and precisions: which of them can run a model, how right and how quick each is, and which one `auto` means.

    engines.json, a file of a model's entry
        tolerance, machine, cores, batches, samples, validation
        program            {"1": ms, "8": ms}, accuracy 0.97
        openvino           error 3e-6, {"1": ms, "8": ms}, files, versions, accuracy 0.97       offered
        onnxruntime        reason "torch.onnx.export cannot convert …"                          not offered
        onnxruntime-int8   error 0.04, agreement 0.98, accuracy 0.96, …                         offered
        openvino-bf16      reason "this CPU has no bf16 arithmetic"                             not offered

The report is made when the model is added, and again when a precision or a validation set is added. An engine in fp32 is offered
if its answers agreed with the layer program's on sample inputs within a tolerance; in bf16 or int8, if its top-1 classes agreed
for a share of them and it is quicker than in fp32. The engine `auto` is the quickest that is offered in the function's precision,
`program` where that is none; the precision `auto` is the quickest of all whose measured accuracy reaches the function's floor.

An engine's name in a report, a profile and an instance has its precision behind a dash, except fp32: `openvino-int8`.
"""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gnomon_core.errors import GnomonError
from gnomon_core.packaging import how_to_install

_LOG = logging.getLogger(__name__)
FORMAT = "gnomon-engines/2"
_OUTDATED = "gnomon-engines/1"
"""The format of reports whose measurements used inputs of zeros, for which right engines of text models were refused."""
REPORT = "engines.json"
PROGRAM = "program"
AUTO = "auto"
ENGINES = (PROGRAM, "onnxruntime", "openvino")
"""Engines as functions name them; `program` runs the layer program itself, and every model has it."""
FP32, BF16, INT8 = "fp32", "bf16", "int8"
PRECISIONS = (FP32, BF16, INT8)
GRAPH_FILES: Mapping[str, tuple[str, ...]] = {
    "onnxruntime": ("model.onnx", "model.onnx.data"),
    "openvino": ("openvino.xml", "openvino.bin"),
    "onnxruntime-int8": ("model-int8.onnx",),
    "openvino-bf16": ("openvino.xml", "openvino.bin"),
    "openvino-int8": ("openvino-int8.xml", "openvino-int8.bin"),
}
"""The files of the graph of each engine and precision, as converters name them. OpenVINO itself narrows its fp32 graph."""
RUNNABLE = (PROGRAM, *GRAPH_FILES)
"""Engines with their precisions, by the names that reports, profiles and instances have them under."""
TOLERANCE = 1e-3
"""The largest difference to the program's answers, relative to the largest number of an output, of an engine that is offered."""
WORTH = 0.97
"""The share of the program's time that an engine may take to be worth its compiling and its own copy of the weights."""
AGREEMENT: Mapping[str, float] = {BF16: 0.98, INT8: 0.95}
"""The share of sample inputs for which a lower precision must have the program's top-1 class to be offered."""
ARITHMETIC: Mapping[str, tuple[frozenset[str], str]] = {
    BF16: (frozenset({"avx512_bf16", "amx_bf16", "bf16"}), "this CPU has no bf16 arithmetic"),
    INT8: (
        frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimd"}),
        "this CPU has no VNNI, without which sums of 8-bit products overflow",
    ),
}
"""The flags of CPUs that compute in a precision, any of them, and why others do not."""
PIECES_TOLERANCE = 2e-2
"""The largest difference between a graph in pieces and the whole of it, of one that may have Shadows."""


def can_borrow(engine: str) -> bool:
    """Return whether a model on this engine can use another number of cores for each batch.

    A graph is compiled for its number of threads, and each compiled one has its own copy of the weights.
    """
    return engine == PROGRAM


def engine_name(engine: str, precision: str) -> str:
    """The name of an engine at a precision. Example: "openvino", "int8" gives "openvino-int8"."""
    return engine if precision == FP32 else f"{engine}-{precision}"


def split_name(name: str) -> tuple[str, str]:
    """The engine and the precision of a name. Example: "openvino-int8" gives ("openvino", "int8")."""
    engine, _, precision = name.partition("-")
    return engine, precision or FP32


@dataclass(frozen=True, slots=True)
class EngineResult:
    """One engine's conversion of one model.

    `error` is the largest relative difference to the program, `latency_s` the median of a batch by its size on one core,
    `spread` the largest relative interquartile range among them, and `load_s` seconds from the files to a compiled graph.
    `reason` says why the engine is not offered; empty where it is. `agreement` is the share of the sample inputs that have the
    program's top-1 class, `accuracy` that of the validation set that is answered right, and `pieces_error` the largest relative
    difference between the graph in pieces and the whole of it, 1 of one that cannot be cut; None where they were not measured.
    `arithmetic` is the precision that a CPU needs arithmetic for to answer as it was measured, "" where any CPU does.
    """

    reason: str = ""
    error: float = 0.0
    latency_s: Mapping[int, float] = field(default_factory=dict)
    spread: float = 0.0
    load_s: float = 0.0
    files: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    agreement: float | None = None
    accuracy: float | None = None
    pieces_error: float | None = None
    arithmetic: str = ""

    @property
    def has_pieces(self) -> bool:
        """Return whether pieces of the graph answer as the whole does, so that a Shadow may compute some."""
        return self.pieces_error is None or self.pieces_error <= PIECES_TOLERANCE

    def to_json(self) -> dict[str, Any]:
        optional = {"agreement": self.agreement, "accuracy": self.accuracy, "pieces_error": self.pieces_error}
        shares = {name: value for name, value in optional.items() if value is not None}
        if self.reason and not self.latency_s:
            return {"reason": self.reason, "error": self.error, "versions": dict(self.versions), **shares}
        return {
            **({"reason": self.reason} if self.reason else {}),
            **shares,
            **({"arithmetic": self.arithmetic} if self.arithmetic else {}),
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
            _share(document, "agreement"),
            _share(document, "accuracy"),
            _share(document, "pieces_error"),
            str(document.get("arithmetic", "")),
        )


def _share(document: Mapping[str, Any], key: str) -> float | None:
    return None if document.get(key) is None else float(document[key])


@dataclass(frozen=True, slots=True)
class EngineReport:
    """All engines of one model, by their names with precisions.

    `program` are the seconds of the layer program, measured in turn with the engines'. `samples` says what agreement and int8's
    ranges were measured on, and `validation` is the SHA-256 of the validation set; "" where there was none. An `outdated` report
    is of an earlier version, and measured anew.
    """

    program: EngineResult
    engines: Mapping[str, EngineResult]
    machine: str = ""
    tolerance: float = TOLERANCE
    samples: str = ""
    validation: str = ""
    outdated: bool = False

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
        """The quickest engine in fp32 that is offered and worth it."""
        shares = {name: self.share(name) for name in self.offered(FP32)}
        quickest = min(shares, key=lambda name: shares[name], default=PROGRAM)
        return quickest if shares.get(quickest, 1.0) <= WORTH else PROGRAM

    def offered(self, precision: str) -> tuple[str, ...]:
        """The names of the engines besides the program that are offered in a precision."""
        return tuple(name for name, result in self.engines.items() if not result.reason and split_name(name)[1] == precision)

    def quickest_above(self, floor: float, engine: str = AUTO) -> str:
        """The quickest engine and precision whose accuracy was measured and reaches a floor; "" where that is none."""
        names = [PROGRAM, *(name for name, result in self.engines.items() if not result.reason)]
        names = [name for name in names if engine in (AUTO, split_name(name)[0])]
        right = [name for name in names if (self.result(name).accuracy or -1.0) >= floor]
        return min(right, key=lambda name: 1.0 if name == PROGRAM else self.share(name), default="")

    def on_cpu(self, arithmetic: AbstractSet[str]) -> EngineReport:
        """The report for a CPU with arithmetic for these precisions: what needs another one is not offered."""
        return replace(self, engines={name: _on_cpu(result, arithmetic) for name, result in self.engines.items()})

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "machine": self.machine,
            "tolerance": self.tolerance,
            **({"samples": self.samples} if self.samples else {}),
            **({"validation": self.validation} if self.validation else {}),
            "program": self.program.to_json(),
            "engines": {name: result.to_json() for name, result in self.engines.items()},
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> EngineReport:
        """The report in a document.

        Raises:
            ValueError: it holds none.

        """
        if document.get("format") not in (FORMAT, _OUTDATED):
            raise ValueError(f"not {FORMAT}")
        try:
            return EngineReport(
                EngineResult.from_json(document["program"]),
                {str(name): EngineResult.from_json(result) for name, result in document["engines"].items()},
                str(document.get("machine", "")),
                float(document.get("tolerance", TOLERANCE)),
                str(document.get("samples", "")),
                str(document.get("validation", "")),
                document["format"] == _OUTDATED,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no report on engines: {type(error).__name__}: {error}") from None


def _on_cpu(result: EngineResult, arithmetic: AbstractSet[str]) -> EngineResult:
    if result.reason or result.arithmetic in ("", *arithmetic):
        return result
    return replace(result, reason=ARITHMETIC[result.arithmetic][1])


@dataclass(frozen=True, slots=True)
class ChosenEngine:
    """The engine that runs a model, its files by name, and the reason if it is not the requested engine, else "".

    `name` has the precision behind it where that is not fp32. `accuracy` is the one that was measured, and `has_pieces` says
    whether Shadows may compute parts of it.
    """

    name: str = PROGRAM
    files: Mapping[str, Path] = field(default_factory=dict)
    shortfall: str = ""
    accuracy: float | None = None
    has_pieces: bool = True

    @property
    def engine(self) -> str:
        return split_name(self.name)[0]

    @property
    def precision(self) -> str:
        return split_name(self.name)[1]

    def __str__(self) -> str:
        """The engine's name, with the reason if it is not the requested engine."""
        return f"{self.name} ({self.shortfall})" if self.shortfall else self.name


def choose_engine(
    requested: str,
    files: Mapping[str, Path],
    report: EngineReport | None,
    precision: str = FP32,
    floor: float = 0.0,
) -> ChosenEngine:
    """The engine for a model with these files, in a precision, or with `auto` in the quickest whose accuracy reaches the floor.

    Where a precision is not offered, the engine serves in fp32, and where the engine is not, the program; with the reason.
    """
    if precision == FP32:
        return _engine_in_fp32(requested, files, report)
    name, reason = _narrower(requested, report, precision, floor)
    if not reason:
        if name == PROGRAM:
            return _program(report)
        reason = _missing(name, files, report)
        if not reason:
            assert report is not None, "a name without a reason is of a report"
            return _with_files(name, files, report.result(name))
    full = _engine_in_fp32(requested, files, report)
    both = "; ".join(filter(None, (reason, full.shortfall)))
    return replace(full, shortfall=both)


def _engine_in_fp32(requested: str, files: Mapping[str, Path], report: EngineReport | None) -> ChosenEngine:
    if requested == PROGRAM:
        return _program(report)
    if report is None:
        return ChosenEngine(shortfall="the model has not been converted for other engines yet")
    name = report.auto if requested == AUTO else requested
    if name == PROGRAM:
        return _program(report)
    reason = _missing(name, files, report)
    if reason:
        return replace(_program(report), shortfall=reason)
    return _with_files(name, files, report.result(name))


def _narrower(requested: str, report: EngineReport | None, precision: str, floor: float) -> tuple[str, str]:
    """The name of the engine in a precision that is not fp32, or the reason why there is none."""
    if report is None:
        return "", f"{precision}: the model has not been converted for other engines yet"
    if precision == AUTO:
        name = report.quickest_above(floor, requested)
        if name:
            return name, ""
        best = max((result.accuracy for result in (report.program, *report.engines.values()) if result.accuracy), default=None)
        known = "no accuracy was measured" if best is None else f"the best accuracy is {best:g}"
        return "", f"{AUTO}: no precision reaches the accuracy floor {floor:g}: {known}"
    if requested != AUTO:
        name = engine_name(requested, precision)
        return name, "" if name in GRAPH_FILES else f"{name}: {unsupported(requested, precision)}"
    offered = report.offered(precision)
    if offered:
        return min(offered, key=report.share), ""
    names = [name for name in report.engines if split_name(name)[1] == precision]
    reasons = [f"{name}: {report.result(name).reason}" for name in names]
    return "", "; ".join(reasons) or f"{precision}: the model has not been converted to it yet"


def unsupported(engine: str, precision: str) -> str:
    """The reason why an engine does not have a precision."""
    if engine == PROGRAM:
        return "the layer program runs in the model's own types"
    return f"{engine} has no kernels for {precision} on CPUs"


def _missing(name: str, files: Mapping[str, Path], report: EngineReport | None) -> str:
    """The reason why an engine is not available; "" if it is."""
    result = EngineResult("there is no report") if report is None else report.result(name)
    reason = result.reason or next((f"the model's entry has no {file}" for file in result.files if file not in files), "")
    return f"{name}: {reason}" if reason else ""


def _program(report: EngineReport | None) -> ChosenEngine:
    return ChosenEngine(accuracy=None if report is None else report.program.accuracy)


def _with_files(name: str, files: Mapping[str, Path], result: EngineResult) -> ChosenEngine:
    return ChosenEngine(
        name, {file: files[file] for file in result.files}, accuracy=result.accuracy, has_pieces=result.has_pieces
    )


_PACKAGES = {"onnxruntime": ("onnxruntime", "onnx"), "openvino": ("openvino",)}
"""The packages that an instance imports; a conversion needs more."""


def engine_of(files: Mapping[str, Path], requested: str, precision: str = FP32, floor: float = 0.0) -> ChosenEngine:
    """The engine here for a model with these files; the program, with the reason, where the requested one cannot be had."""
    report = _readable_report(files.get(REPORT))
    report = None if report is None else report.on_cpu(cpu_arithmetic())
    chosen = choose_engine(requested, files, report, precision, floor)
    if chosen.name != PROGRAM and not is_installed(chosen.engine):
        return ChosenEngine(shortfall=f"{chosen.engine} is not installed. {how_to_install(chosen.engine)}")
    return chosen


def engine_of_environment(files: Mapping[str, Path], variables: Mapping[str, str]) -> ChosenEngine:
    """The engine that an image's variables name; the program by default.

    They are `GNOMON_ENGINE`, `GNOMON_PRECISION` and `GNOMON_ACCURACY_FLOOR`. A floor that cannot be read is one of 1.
    """
    try:
        floor = float(variables.get("GNOMON_ACCURACY_FLOOR") or 0.0)
    except ValueError:
        floor = 1.0
    return engine_of(files, variables.get("GNOMON_ENGINE") or PROGRAM, variables.get("GNOMON_PRECISION") or FP32, floor)


@cache
def cpu_arithmetic() -> frozenset[str]:
    """The precisions that this machine's CPU has arithmetic for, besides fp32."""
    try:
        return arithmetic_of(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return frozenset()


def arithmetic_of(cpuinfo: str) -> frozenset[str]:
    """The precisions that a CPU has arithmetic for, from the flags in /proc/cpuinfo.

    ARM CPUs (`asimd`) sum products of 8-bit numbers in 32 bits.
    """
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    flags = next((value.split() for name, _, value in lines if name.strip() in ("flags", "Features")), [])
    return frozenset(precision for precision, (any_of, _) in ARITHMETIC.items() if any_of & set(flags))


@cache
def is_installed(engine: str) -> bool:
    """Return whether the packages that run this engine are installed."""
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


def not_convertible(tool: str, task: str, error: Exception) -> GnomonError:
    """422: a tool of an engine cannot convert or quantise (`task`) the model. The message has the first line of its error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Converters put a traceback or a whole graph into their errors; the first line names the operation.
    return GnomonError(422, "not_convertible", f"{tool} cannot {task} the model: {(lines or [type(error).__name__])[0][:300]}")
