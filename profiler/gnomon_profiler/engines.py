"""Gives a model of the repository its graphs for other engines, and the report that `gnomon/engine: auto` is decided by.

    entry ─▶ convert, in a process of its own ─▶ graphs ─▶ compare with the program, time in turn ─▶ entry with engines.json

A conversion takes some seconds of one core and several times the weights' memory; the process ends with it. Timing follows in the
measuring process that profiles are made by, on one core, engines and program in turn, so that what disturbs the machine disturbs
all of them alike. An engine that cannot convert the model, or whose answers differ, is recorded with the reason.

    python -m gnomon_profiler.engines FOLDER         convert what is in the folder: lines of progress, an object at the end
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gnomon_core.blocks import Layers
from gnomon_core.engines import ENGINES, GRAPH_FILES, PROGRAM, REPORT, TOLERANCE, EngineReport, EngineResult
from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import ModelEntry, ModelRepository
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
_MODULES = {"onnxruntime": ("onnxruntime", "onnx", "onnxscript"), "openvino": ("openvino",)}
Progress = Callable[[str], None]


def installed_engines() -> tuple[str, ...]:
    """The engines besides `program` whose packages are installed here."""
    return tuple(name for name, modules in _MODULES.items() if all(find_spec(module) for module in modules))


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
    files, reasons = convert(entry, chosen, progress)
    report = measure(entry, files, reasons, progress, background=background)
    kept = {file for result in report.engines.values() for file in result.files}
    document = json.dumps(report.to_json(), indent=1, sort_keys=True).encode()
    stored = {PROGRAM_FILE: entry.program.read_bytes(), WEIGHTS: entry.weights.read_bytes()}
    stored |= {} if entry.layers is None else {LAYERS: entry.layers.read_bytes()}
    stored |= {REPORT: document, **{file: data for file, data in files.items() if file in kept}}
    return repository.put(entry.name, entry.version, stored)


def _checked(engines: tuple[str, ...]) -> tuple[str, ...]:
    for name in engines:
        if name not in _MODULES:
            raise GnomonError(400, "unknown_engine", f"{name[:100]!r} is no engine.", f"Known: {', '.join(ENGINES[1:])}.")
        if name not in installed_engines():
            from gnomon_core.packaging import how_to_install  # noqa: PLC0415 - rarely

            raise GnomonError(501, "engine_missing", f"{name} is not installed.", how_to_install(name))
    return engines


def convert(entry: ModelEntry, engines: Iterable[str], progress: Progress) -> tuple[dict[str, bytes], dict[str, str]]:
    """The graphs' files, and the reason of each engine that has none. A process of its own converts.

    Raises:
        GnomonError: 422 `conversion_failed`: the process ended without a result.

    """
    name = f"{entry.name}@{entry.version}"
    with tempfile.TemporaryDirectory(prefix="gnomon-convert-") as directory:
        folder = Path(directory)
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
        outcome = folder / "outcome.json"
        if not outcome.is_file():
            return {}, dict.fromkeys(order["engines"], f"the conversion ended early: {last[:300]}")
        reasons: dict[str, str] = json.loads(outcome.read_bytes())
        outcome.unlink()
        for engine, reason in reasons.items():
            progress(f"{name}: not for {engine}: {reason}")
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}, reasons


def measure(
    entry: ModelEntry, files: Mapping[str, bytes], reasons: Mapping[str, str], progress: Progress, *, background: bool = False
) -> EngineReport:
    """Compare each graph with the program and time both in turn, on one core."""
    from gnomon_profiler.conversion import versions  # noqa: PLC0415 - needs torch

    name = f"{entry.name}@{entry.version}"
    results = {engine: EngineResult(reason) for engine, reason in reasons.items()}
    converted = [engine for engine, needed in GRAPH_FILES.items() if set(needed) <= set(files)]
    program = EngineResult()
    with tempfile.TemporaryDirectory(prefix="gnomon-engines-") as directory:
        folder = Path(directory)
        for file, data in files.items():
            (folder / file).write_bytes(data)
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
                "graphs": {engine: {file: str(folder / file) for file in GRAPH_FILES[engine]} for engine in converted},
            }
            for answer in process.measure(order):
                engine = str(answer["engine"])
                if engine == PROGRAM:
                    program = _result(answer)
                    continue
                result = EngineResult(str(answer["reason"])) if "reason" in answer else _result(answer)
                if not result.reason and not result.error <= TOLERANCE:
                    result = EngineResult(
                        f"its answers differ by {result.error:.2g} of the largest; {TOLERANCE:g} is allowed", result.error
                    )
                results[engine] = result if result.reason else _offered(result, GRAPH_FILES[engine], versions(engine))
    report = EngineReport(program, results, str(machine))
    for engine, result in results.items():
        if not result.reason:
            progress(f"{name}: {engine} takes {report.share(engine):.2f} of the program's time, error {result.error:.1g}")
    progress(f"{name}: engine auto is {report.auto}")
    return report


def _result(answer: Mapping[str, Any]) -> EngineResult:
    return EngineResult.from_json({**answer, "latency_s": answer["latency_s"]})


def _offered(result: EngineResult, files: tuple[str, ...], versions: Mapping[str, str]) -> EngineResult:
    return EngineResult("", result.error, result.latency_s, result.spread, result.load_s, files, versions)


def _convert_here(order: Mapping[str, Any], folder: Path) -> None:
    """Convert in this process: the files and, in `outcome.json`, the reason of each engine that has none."""
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
    (folder / "outcome.json").write_text(json.dumps(reasons))


if __name__ == "__main__":
    # What serves goes first; one thread, so that a conversion takes one core.
    os.nice(10)
    os.environ["OMP_NUM_THREADS"] = "1"
    _convert_here(json.loads(sys.argv[1]), Path(sys.argv[2]))
