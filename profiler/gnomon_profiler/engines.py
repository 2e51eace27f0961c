"""Gives a model of the repository its graphs for other engines, and the report that `gnomon/engine: auto` is decided by.

    entry ─▶ convert, in a process of its own ─▶ graphs ─▶ compare with the program, time in turn ─▶ entry with engines.json
               int8: ranges from sample inputs               accuracy, where the entry has a validation set

A conversion takes some seconds of one core, with low priority in the background, and several times the weights' memory; the
process ends with it. Timing follows in the
measuring process that profiles are made by, on one core, engines and program in turn, so that what disturbs the machine disturbs
all of them alike. An engine that cannot convert the model, or whose answers differ, is recorded with the reason. So is a
precision that the machine has no arithmetic for, that agrees with the program too rarely, or that is not quicker than fp32.

    python -m gnomon_profiler.engines ORDER FOLDER         write the graphs that the order asks for into the folder
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from gnomon_core.blocks import Layers
from gnomon_core.engines import (
    AGREEMENT,
    AUTO,
    BF16,
    ENGINES,
    FP32,
    GRAPH_FILES,
    INT8,
    PRECISIONS,
    PROGRAM,
    REPORT,
    TOLERANCE,
    EngineReport,
    EngineResult,
    cpu_arithmetic,
    engine_name,
    read_report,
    split_name,
    unsupported,
)
from gnomon_core.errors import GnomonError, stopping
from gnomon_core.interfaces import ModelEntry, ModelRepository
from gnomon_core.packaging import how_to_install
from gnomon_core.program import parse_program
from gnomon_profiler.child_processes import ChildProcesses
from gnomon_profiler.layers_file import LAYERS
from gnomon_profiler.measuring.session import MeasuringProcess, this_machine
from gnomon_profiler.repository import PROGRAM as PROGRAM_FILE
from gnomon_profiler.repository import WEIGHTS
from gnomon_profiler.sample_sets import SAMPLES, VALIDATION, classes_of, read_samples, sample_set, write_samples

BATCHES = (1, 8)
REPEATS = 7
BUDGET_S = 1.0
"""Seconds for which a quick model is repeated, for each engine and batch."""
CONVERSION_TIMEOUT_S = 900.0
_OUTCOME = "outcome.json"
_KEPT, _LABELLED = "kept.npz", "labelled.npz"
_GRAPHS = frozenset(file for files in GRAPH_FILES.values() for file in files)
_PACKAGES = {"onnxruntime": ("onnx", "onnxruntime", "onnxscript"), "openvino": ("openvino",)}
"""The packages, and modules of the same names, that converting a model for an engine and running it need besides torch."""
Progress = Callable[[str], None]


def installed_engines() -> tuple[str, ...]:
    """The engines besides `program` whose packages are installed here."""
    return tuple(name for name, packages in _PACKAGES.items() if all(find_spec(package) for package in packages))


def add_engines(
    repository: ModelRepository,
    entry: ModelEntry,
    engines: Iterable[str] = (),
    progress: Progress = lambda _: None,
    *,
    precisions: Iterable[str] = (FP32,),
    background: bool = False,
    processes: ChildProcesses | None = None,
) -> ModelEntry:
    """The entry with its engines, converted and measured now unless its report has them already.

    `engines` are all that are installed unless some are named. Without any there is nothing to do. Precisions besides fp32 are
    added to the report that there is, and all are measured again. So are accuracies, once the entry has a validation set. In the
    `background` the CPU is left to what serves. The work is done by `processes`.

    Raises:
        GnomonError: 400 for an unknown engine or precision, 501 `engine_missing` for an engine that is not installed, 422 for
            samples or a validation set that cannot be used; 503 `stopping`.

    """
    processes = processes or ChildProcesses()
    chosen = _checked(tuple(engines)) or installed_engines()
    if not chosen:
        return entry
    report = read_report(entry.files[REPORT]) if REPORT in entry.files else None
    reported = set() if report is None else set(report.engines)
    outdated = report is not None and report.outdated
    requested = reported | {engine_name(engine, precision) for precision in _precisions(precisions) for engine in chosen}
    validation = entry.sha256.get(VALIDATION, "")
    if report is not None and requested == reported and report.validation == validation and not outdated:
        return entry
    # What an outdated report refused is converted once more: the graphs were not kept.
    kept = {name for name in reported if not outdated or _can_be_measured(entry, name)}
    with tempfile.TemporaryDirectory(prefix="gnomon-engines-") as directory:
        folder = Path(directory)
        reasons = (
            {} if report is None else {name: report.result(name).reason for name in kept if not _can_be_measured(entry, name)}
        )
        reasons |= convert(entry, sorted(requested - kept), folder, progress, background=background, processes=processes)
        arithmetic = {BF16: BF16, INT8: _arithmetic_of_int8(entry, report)}
        report = measure(entry, folder, reasons, progress, background=background, names=requested, processes=processes)
        report = replace(
            report,
            engines={
                name: replace(result, arithmetic=arithmetic.get(split_name(name)[1], ""))
                for name, result in report.engines.items()
            },
        )
        files = dict(entry.files) | {PROGRAM_FILE: entry.program, WEIGHTS: entry.weights, REPORT: folder / REPORT}
        files |= {} if entry.layers is None else {LAYERS: entry.layers}
        made = {file for result in report.engines.values() for file in result.files}
        files |= {file: folder / file for file in made if (folder / file).is_file()}
        files[REPORT].write_text(json.dumps(report.to_json(), indent=1, sort_keys=True), encoding="utf-8")
        return repository.put_files(entry.name, entry.version, files)


def add_samples(
    repository: ModelRepository, entry: ModelEntry, validation: Path | None = None, samples: Path | None = None
) -> ModelEntry:
    """The entry with a validation set, or with samples that precisions are compared on. A version's never change.

    Raises:
        GnomonError: 422 `invalid_validation` or `invalid_samples`; 409 `model_exists` where the version has others.

    """
    files = {name: path for name, path in ((VALIDATION, validation), (SAMPLES, samples)) if path is not None}
    if not files:
        return entry
    for name, path in files.items():
        read_samples(path, entry.signature, labelled=name == VALIDATION)
    # A repository moves files that are put: the user's stay where they are.
    with tempfile.TemporaryDirectory(prefix="gnomon-samples-") as folder:
        copies = {name: Path(shutil.copy(path, Path(folder) / name)) for name, path in files.items()}
        return repository.put_files(entry.name, entry.version, {**entry.files, **copies})


def _precisions(names: Iterable[str]) -> tuple[str, ...]:
    """The precisions to have; `auto` needs all of them, and each is compared with fp32.

    Raises:
        GnomonError: 400 `unknown_precision`.

    """
    chosen = tuple(names)
    for name in chosen:
        if name not in (AUTO, *PRECISIONS):
            known = ", ".join((AUTO, *PRECISIONS))
            raise GnomonError(400, "unknown_precision", f"{name[:100]!r} is no precision.", f"Known: {known}.")
    return PRECISIONS if AUTO in chosen else tuple(dict.fromkeys((FP32, *chosen)))


def _arithmetic_of_int8(entry: ModelEntry, report: EngineReport | None) -> str:
    """The arithmetic that the entry's int8 graphs need, all of one calibration: this CPU's where they are yet to be made."""
    [quantised] = GRAPH_FILES[engine_name("onnxruntime", INT8)]
    if report is not None and quantised in entry.files:
        return max((result.arithmetic for name, result in report.engines.items() if split_name(name)[1] == INT8), default="")
    return INT8 if INT8 in cpu_arithmetic() else ""


def _can_be_measured(entry: ModelEntry, name: str) -> bool:
    return all(file in entry.files for file in GRAPH_FILES.get(name, ("",)))


def _checked(engines: tuple[str, ...]) -> tuple[str, ...]:
    for name in engines:
        if name not in _PACKAGES:
            raise GnomonError(400, "unknown_engine", f"{name[:100]!r} is no engine.", f"Known: {', '.join(ENGINES[1:])}.")
        if name not in installed_engines():
            raise GnomonError(501, "engine_missing", f"{name} is not installed.", how_to_install(name))
    return engines


def convert(
    entry: ModelEntry,
    engines: Iterable[str],
    folder: Path,
    progress: Progress,
    *,
    background: bool = False,
    processes: ChildProcesses | None = None,
) -> dict[str, str]:
    """Write the graphs into a folder, which a process of its own does. Returns the reason of each engine that has none.

    Engines are named with their precisions. Graphs in fp32 that the entry has are not converted again.
    """
    label = f"{entry.name}@{entry.version}"
    reasons = {name: unsupported(*split_name(name)) for name in engines if name not in GRAPH_FILES}
    # OpenVINO narrows its fp32 graph to bf16 by itself: there is nothing to convert.
    convertible = [name for name in engines if name in GRAPH_FILES and split_name(name)[1] != BF16]
    convertible += ["openvino"] if engine_name("openvino", BF16) in engines and "openvino" not in convertible else []
    convertible = [name for name in convertible if not (split_name(name)[1] == FP32 and _can_be_measured(entry, name))]
    if not convertible:
        return reasons
    order = {
        "program": str(entry.program),
        "weights": str(entry.weights),
        "layers": str(entry.layers or ""),
        "engines": convertible,
        "background": background,
        "graphs": {file: str(path) for file, path in entry.files.items() if file in _GRAPHS},
        "samples": {file: str(path) for file, path in entry.files.items() if file in (SAMPLES, VALIDATION)},
    }
    command = [sys.executable, "-m", "gnomon_profiler.engines", json.dumps(order), str(folder)]
    progress(f"{label}: converting for {', '.join(convertible)}")
    last = _conversion(processes or ChildProcesses(), command)
    outcome = folder / _OUTCOME
    if not outcome.is_file():
        return reasons | dict.fromkeys(convertible, f"the conversion ended early: {last[:300]}")
    reasons |= json.loads(outcome.read_bytes())
    outcome.unlink()
    for engine, reason in reasons.items():
        progress(f"{label}: not for {engine}: {reason}")
    return reasons


def _conversion(processes: ChildProcesses, command: Sequence[str]) -> str:
    """The last line of a conversion's errors, or how it ended.

    Raises:
        GnomonError: 503 `stopping`, where it was told to end: that says nothing about the model.

    """
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with processes.running(command, **pipes, text=True, errors="replace") as process:
        try:
            _, errors = process.communicate(timeout=CONVERSION_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"it took longer than {CONVERSION_TIMEOUT_S:.0f} s"
    processes.raise_if_ended()
    if process.returncode == -signal.SIGTERM:  # as a service manager sends it to every process of a service
        raise stopping()
    lines: list[str] = errors.strip().splitlines()
    return lines[-1] if lines else f"status {process.returncode}"


def measure(
    entry: ModelEntry,
    folder: Path,
    reasons: Mapping[str, str],
    progress: Progress,
    *,
    background: bool = False,
    names: Iterable[str] = (),
    processes: ChildProcesses | None = None,
) -> EngineReport:
    """Compare each graph in a folder or in the entry with the program and time all in turn, on one core.

    `names` are the engines with their precisions; all of which there are graphs unless some are named.
    """
    label = f"{entry.name}@{entry.version}"
    results = {engine: EngineResult(reason) for engine, reason in reasons.items()}
    candidates = [name for name in (sorted(names) or GRAPH_FILES) if name not in reasons and name in GRAPH_FILES]
    graphs = {name: {file: _place(file, folder, entry) for file in GRAPH_FILES[name]} for name in candidates}
    for name in [name for name, files in graphs.items() if not all(path.is_file() for path in files.values())]:
        del graphs[name]
        if names:
            without = split_name(name)[0]
            results[name] = EngineResult(reasons.get(without) or "the model was not converted for it")
    narrow = any(split_name(name)[1] != FP32 for name in graphs)
    compared = narrow and classes_of(entry.signature)
    samples = sample_set(parse_program(entry.program.read_bytes()), entry.files) if compared else None
    validation = entry.files.get(VALIDATION)
    machine = this_machine()
    with MeasuringProcess(background=background, processes=processes) as process:
        order = {
            "measure": "engines",
            "program": str(entry.program),
            "weights": str(entry.weights),
            "layers": str(entry.layers or ""),
            "cpus": list(machine.cpus[-1:]),
            "batches": list(BATCHES),
            "repeats": REPEATS,
            "budget_s": BUDGET_S,
            "graphs": {engine: {file: str(path) for file, path in files.items()} for engine, files in graphs.items()},
            "samples": "",
            "validation": "",
        }
        if samples is not None:
            order["samples"] = str(folder / _KEPT)
            write_samples(samples, entry.signature, folder / _KEPT)
        if validation is not None:
            order["validation"] = str(folder / _LABELLED)
            labelled = read_samples(validation, entry.signature, labelled=True)
            write_samples(labelled, entry.signature, folder / _LABELLED)
        measured = {str(answer["engine"]): EngineResult.from_json(answer) for answer in process.measure(order)}
    program = measured.pop(PROGRAM)
    results |= {name: _judged(name, result, EngineReport(program, measured)) for name, result in measured.items()}
    source = "" if samples is None else samples.source
    digest = "" if validation is None else entry.sha256[VALIDATION]
    report = EngineReport(program, results, str(machine), samples=source, validation=digest)
    for name, result in results.items():
        if result.latency_s:
            accuracy = "" if result.accuracy is None else f", accuracy {result.accuracy:.4g}"
            agreement = "" if result.agreement is None else f", top-1 agreement {result.agreement:.3g}"
            progress(
                f"{label}: {name} takes {report.share(name):.2f} of the program's time, error {result.error:.1g}"
                f"{agreement}{accuracy}{f'; not offered: {result.reason}' if result.reason else ''}"
            )
        elif name in measured:
            progress(f"{label}: not for {name}: {result.reason}")
    progress(f"{label}: engine auto is {report.auto}")
    return report


def _place(file: str, folder: Path, entry: ModelEntry) -> Path:
    return folder / file if (folder / file).is_file() else entry.files.get(file, folder / file)


def _judged(name: str, result: EngineResult, measured: EngineReport) -> EngineResult:
    """An engine's result with its files and versions, and with the reason where it is not offered."""
    if result.reason:
        return result
    engine, precision = split_name(name)
    if precision == FP32 and not result.error <= TOLERANCE:
        return EngineResult(f"its answers differ by {result.error:.2g} of the largest; {TOLERANCE:g} is allowed", result.error)
    made_by = (*_PACKAGES[engine], *(("onnxruntime",) if precision == INT8 else ()))
    versions = {package: version(package) for package in made_by}
    reason = "" if precision == FP32 else _why_not(result, precision, measured.share(name) / measured.share(engine))
    return replace(result, reason=reason, files=GRAPH_FILES[name], versions=versions)


def _why_not(result: EngineResult, precision: str, of_fp32: float) -> str:
    """The reason why a lower precision is not offered; "" if it is. `of_fp32` is its time as a share of the engine's in fp32."""
    needed = AGREEMENT[precision]
    if result.agreement is None:
        return "the model's outputs have no scores of classes, whose agreement could be judged"
    if result.agreement < needed:
        return f"its top-1 class is the program's for {result.agreement:.3g} of the samples; {needed:g} is needed"
    return f"it takes {of_fp32:.2f} of the time that the engine takes in fp32 here" if of_fp32 >= 1 else ""


def _convert_here(order: Mapping[str, Any], folder: Path) -> None:
    """Convert in this process: the files and, in `_OUTCOME`, the reason of each engine that has none."""
    from gnomon_profiler.conversion import CONVERTERS, export  # noqa: PLC0415 - torch takes seconds
    from gnomon_profiler.weights import read_weights  # noqa: PLC0415

    program = parse_program(Path(order["program"]).read_bytes())
    layers = Layers.from_json(json.loads(Path(order["layers"]).read_bytes())) if order["layers"] else None
    reasons: dict[str, str] = {}
    graphs = {file: Path(path) for file, path in order["graphs"].items()}
    plain = [name for name in order["engines"] if name in CONVERTERS]
    narrow = [name for name in order["engines"] if name not in CONVERTERS]
    needed = ["onnxruntime"] if narrow and not graphs.keys() >= set(GRAPH_FILES["onnxruntime"]) else []
    try:
        exported = None
        for engine in dict.fromkeys((*plain, *needed)):
            if exported is None:
                weights = read_weights(Path(order["weights"]).read_bytes(), program.weights)
                exported = export(program, weights, layers)
            try:
                for file, data in CONVERTERS[engine](exported).items():
                    (folder / file).write_bytes(data)
                    graphs[file] = folder / file
            except GnomonError as error:
                reasons[engine] = error.message
    except GnomonError as error:
        reasons = dict.fromkeys(order["engines"], error.message)
    else:
        reasons |= _quantise_here(narrow, order, graphs, folder, reasons)
    reasons = {name: reason for name, reason in reasons.items() if name in order["engines"]}
    (folder / _OUTCOME).write_text(json.dumps(reasons))


def _quantise_here(
    names: Iterable[str], order: Mapping[str, Any], graphs: dict[str, Path], folder: Path, reasons: Mapping[str, str]
) -> dict[str, str]:
    """The int8 graphs, all from one calibration. Returns the reason of each that there is none of."""
    from gnomon_profiler.quantisation import to_onnx_int8, to_openvino_int8  # noqa: PLC0415 - extras

    int8_names = tuple(names)
    if not int8_names:
        return {}
    program = parse_program(Path(order["program"]).read_bytes())
    of_onnx, of_openvino = engine_name("onnxruntime", INT8), engine_name("openvino", INT8)
    [quantised] = GRAPH_FILES[of_onnx]
    try:
        if quantised not in graphs:
            if "onnxruntime" in reasons:
                return dict.fromkeys(int8_names, reasons["onnxruntime"])
            samples = sample_set(program, {file: Path(path) for file, path in order["samples"].items()})
            source = {file: graphs[file] for file in GRAPH_FILES["onnxruntime"]}
            (folder / quantised).write_bytes(to_onnx_int8(source, samples, program.inputs)[quantised])
            graphs[quantised] = folder / quantised
        if of_openvino in int8_names:
            for file, data in to_openvino_int8(graphs[quantised]).items():
                (folder / file).write_bytes(data)
    except GnomonError as error:
        return dict.fromkeys(int8_names, error.message)
    except ImportError as error:
        return dict.fromkeys(int8_names, f"int8 needs ONNX Runtime's quantisation: {error}. {how_to_install('onnxruntime')}")
    return {}


if __name__ == "__main__":
    _ORDER = json.loads(sys.argv[1])
    if _ORDER["background"]:
        os.nice(10)  # what serves goes first
    # One thread, so that a conversion takes one core.
    os.environ["OMP_NUM_THREADS"] = "1"
    # Both converters report their use over the network. OpenVINO's does without the package that would do it.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    sys.modules["openvino_telemetry"] = cast("ModuleType", None)
    _convert_here(_ORDER, Path(sys.argv[2]))
