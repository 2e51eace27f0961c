"""Gives a model of the repository its graphs for other engines, and the report that `gnomon/engine: auto` is decided by.

    entry ─▶ convert, in a process of its own ─▶ graphs ─▶ compare with the program, time in turn ─▶ entry with engines.json

A conversion takes some seconds of one core and several times the weights' memory; the process ends with it. Timing follows in the
measuring process that profiles are made by, on one core, engines and program in turn, so that what disturbs the machine disturbs
all of them alike. An engine that cannot convert the model, or whose answers differ, is recorded with the reason.

    python -m gnomon_profiler.engines ORDER FOLDER         write the graphs that the order asks for into the folder
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gnomon_core.blocks import Layers
from gnomon_core.engines import ENGINES, GRAPH_FILES, PROGRAM, REPORT, TOLERANCE, EngineReport, EngineResult
from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import ModelEntry, ModelRepository
from gnomon_core.packaging import how_to_install
from gnomon_core.program import parse_program
from gnomon_profiler.layers_file import LAYERS
from gnomon_profiler.measuring.session import MeasuringProcess, this_machine
from gnomon_profiler.repository import PROGRAM as PROGRAM_FILE
from gnomon_profiler.repository import WEIGHTS

BATCHES = (1, 8)
REPEATS = 7
BUDGET_S = 1.0
"""A quick model is repeated for so long, each engine and batch."""
CONVERSION_TIMEOUT_S = 900.0
_OUTCOME = "outcome.json"
_PACKAGES = {"onnxruntime": ("onnx", "onnxruntime", "onnxscript"), "openvino": ("openvino",)}
"""What converting a model for an engine and running it need beside torch; modules of the same names."""
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
    background: bool = False,
) -> ModelEntry:
    """The entry with its engines, converted and measured now unless it has a report already.

    `engines` are all that are installed unless some are named. Without any there is nothing to do. In the `background` the CPU is
    left to what serves.

    Raises:
        GnomonError: 400 for an unknown engine, 501 `engine_missing` for one that is not installed.

    """
    chosen = _checked(tuple(engines)) or installed_engines()
    if not chosen or REPORT in entry.files:
        return entry
    with tempfile.TemporaryDirectory(prefix="gnomon-engines-") as directory:
        folder = Path(directory)
        reasons = convert(entry, chosen, folder, progress)
        report = measure(entry, folder, reasons, progress, background=background)
        files = {PROGRAM_FILE: entry.program, WEIGHTS: entry.weights, REPORT: folder / REPORT}
        files |= {} if entry.layers is None else {LAYERS: entry.layers}
        files |= {file: folder / file for result in report.engines.values() for file in result.files}
        files[REPORT].write_text(json.dumps(report.to_json(), indent=1, sort_keys=True), encoding="utf-8")
        return repository.put_files(entry.name, entry.version, files)


def _checked(engines: tuple[str, ...]) -> tuple[str, ...]:
    for name in engines:
        if name not in _PACKAGES:
            raise GnomonError(400, "unknown_engine", f"{name[:100]!r} is no engine.", f"Known: {', '.join(ENGINES[1:])}.")
        if name not in installed_engines():
            raise GnomonError(501, "engine_missing", f"{name} is not installed.", how_to_install(name))
    return engines


def convert(entry: ModelEntry, engines: Iterable[str], folder: Path, progress: Progress) -> dict[str, str]:
    """Write the graphs into a folder, which a process of its own does. Returns the reason of each engine that has none."""
    name = f"{entry.name}@{entry.version}"
    order = {
        "program": str(entry.program),
        "weights": str(entry.weights),
        "layers": str(entry.layers or ""),
        "engines": list(engines),
    }
    command = [sys.executable, "-m", "gnomon_profiler.engines", json.dumps(order), str(folder)]
    progress(f"{name}: converting for {', '.join(order['engines'])}")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=CONVERSION_TIMEOUT_S, check=False
        )
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        last = f"it took longer than {CONVERSION_TIMEOUT_S:.0f} s"
    outcome = folder / _OUTCOME
    if not outcome.is_file():
        return dict.fromkeys(order["engines"], f"the conversion ended early: {last[:300]}")
    reasons: dict[str, str] = json.loads(outcome.read_bytes())
    outcome.unlink()
    for engine, reason in reasons.items():
        progress(f"{name}: not for {engine}: {reason}")
    return reasons


def measure(
    entry: ModelEntry, folder: Path, reasons: Mapping[str, str], progress: Progress, *, background: bool = False
) -> EngineReport:
    """Compare each graph in a folder with the program and time both in turn, on one core."""
    name = f"{entry.name}@{entry.version}"
    results = {engine: EngineResult(reason) for engine, reason in reasons.items()}
    graphs = {engine: {file: folder / file for file in files} for engine, files in GRAPH_FILES.items() if engine not in reasons}
    graphs = {engine: files for engine, files in graphs.items() if all(path.is_file() for path in files.values())}
    machine = this_machine()
    with MeasuringProcess(background=background) as process:
        order = {
            "measure": "engines",
            "program": str(entry.program),
            "weights": str(entry.weights),
            "cpus": list(machine.cpus[-1:]),
            "batches": list(BATCHES),
            "repeats": REPEATS,
            "budget_s": BUDGET_S,
            "graphs": {engine: {file: str(path) for file, path in files.items()} for engine, files in graphs.items()},
        }
        results |= {str(answer["engine"]): _judged(str(answer["engine"]), answer) for answer in process.measure(order)}
    report = EngineReport(results.pop(PROGRAM), results, str(machine))
    for engine, result in results.items():
        if not result.reason:
            progress(f"{name}: {engine} takes {report.share(engine):.2f} of the program's time, error {result.error:.1g}")
    progress(f"{name}: engine auto is {report.auto}")
    return report


def _judged(engine: str, answer: Mapping[str, Any]) -> EngineResult:
    """An engine's result: with its files and versions where it is offered, with the reason where its answers differ."""
    result = EngineResult.from_json(answer)
    if result.reason or engine == PROGRAM:
        return result
    if not result.error <= TOLERANCE:
        return EngineResult(f"its answers differ by {result.error:.2g} of the largest; {TOLERANCE:g} is allowed", result.error)
    versions = {package: version(package) for package in _PACKAGES[engine]}
    return replace(result, files=GRAPH_FILES[engine], versions=versions)


def _convert_here(order: Mapping[str, Any], folder: Path) -> None:
    """Convert in this process: the files and, in `_OUTCOME`, the reason of each engine that has none."""
    from gnomon_profiler.conversion import CONVERTERS, export  # noqa: PLC0415 - torch takes seconds
    from gnomon_profiler.weights import read_weights  # noqa: PLC0415

    program = parse_program(Path(order["program"]).read_bytes())
    weights = read_weights(Path(order["weights"]).read_bytes(), program.weights)
    layers = Layers.from_json(json.loads(Path(order["layers"]).read_bytes())) if order["layers"] else None
    reasons: dict[str, str] = {}
    try:
        exported = export(program, weights, layers)
    except GnomonError as error:
        reasons = dict.fromkeys(order["engines"], error.message)
    else:
        for engine in order["engines"]:
            try:
                for file, data in CONVERTERS[engine](exported).items():
                    (folder / file).write_bytes(data)
            except GnomonError as error:
                reasons[engine] = error.message
    (folder / _OUTCOME).write_text(json.dumps(reasons))


if __name__ == "__main__":
    # What serves goes first; one thread, so that a conversion takes one core.
    os.nice(10)
    os.environ["OMP_NUM_THREADS"] = "1"
    _convert_here(json.loads(sys.argv[1]), Path(sys.argv[2]))
