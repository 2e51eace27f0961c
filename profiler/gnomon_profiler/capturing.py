"""Captures a model in a process of its own, so that a gateway or the command line neither imports torch nor keeps the memory.

    python -m gnomon_profiler '{"name": "efficientnet-lite0"}' DIRECTORY

The process writes the files of an entry into the directory and a line for each step to its output; an error is a line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gnomon_core.errors import GnomonError
from gnomon_core.program import parse_program
from gnomon_profiler.child_processes import ChildProcesses
from gnomon_profiler.importing.sources import ONNX, TRANSFORMERS, format_of, is_address
from gnomon_profiler.layers_file import LAYERS
from gnomon_profiler.names import in_catalog
from gnomon_profiler.repository import PROGRAM, WEIGHTS

if TYPE_CHECKING:
    from gnomon_profiler.catalog import CatalogModel

ERROR_PREFIX = "error "
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """A request to capture a model.

    A name of the catalog; or with `source` what is kept under the name: a model of the catalog, a module of the user's own, whose
    inputs may have `shapes`, or a model in another tool's format (`importing`), whose sequences may have a `length`; or with
    `captured`, a folder, only the layer blocks of the program and weights in it, which are checked sample by sample.
    """

    name: str
    weights: str = ""
    source: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    captured: str = ""
    length: int = 0


def capture_here(request: CaptureRequest, progress: Progress = lambda _: None) -> dict[str, bytes]:
    """The files of an entry, captured in this process.

    Raises:
        GnomonError: 422 for what cannot be captured, 404 or 400 for what is not there.

    """
    if request.captured:
        return _layers_of(Path(request.captured), request.name, progress)
    progress(f"{request.name}: loading torch and the weights")
    from gnomon_profiler.extractor import capture  # noqa: PLC0415 - torch takes seconds

    imported = format_of(request.source) if request.source else ""
    model = _imported(request, imported, progress) if imported else _model(request)
    progress(f"{request.name}: capturing the network")
    files = capture(model.module, model.example, model.description)
    if request.source:
        compares = model.random_inputs
        progress(f"{request.name}: comparing it with the source" if compares else f"{request.name}: checking sample by sample")
        from gnomon_profiler.importing.row_check import check_rows  # noqa: PLC0415 - torch

        check_rows(files, model.module if compares else None)
    return files


def capture_elsewhere(
    request: CaptureRequest, progress: Progress = lambda _: None, processes: ChildProcesses | None = None
) -> dict[str, bytes]:
    """The files of an entry, captured in a separate process, one of `processes`.

    Raises:
        GnomonError: that process's, or 422 `capture_failed` with its last words; 503 `stopping`.

    """
    processes = processes or ChildProcesses()
    with tempfile.TemporaryDirectory(prefix="gnomon-capture-") as directory:
        command = [sys.executable, "-m", "gnomon_profiler", json.dumps(asdict(request)), directory]
        error: GnomonError | None = None
        noise: list[str] = []
        with processes.running(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace"
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                text = line.rstrip("\n")
                if (document := _error_of(text)) is not None:
                    error = document
                elif text.startswith(f"{request.name}: "):
                    progress(text)
                else:
                    noise.append(text)
        processes.raise_if_ended()
        if error is not None:
            raise error
        if process.returncode != 0:
            last = " ".join(noise[-3:])[-500:]
            raise GnomonError(422, "capture_failed", f"Capturing {request.name} ended with status {process.returncode}: {last}")
        return {path.name: path.read_bytes() for path in sorted(Path(directory).iterdir())}


def _error_of(line: str) -> GnomonError | None:
    """Parse an error from a line of the process; None for other lines, which the user's code may print."""
    try:
        return GnomonError(**json.loads(line.removeprefix(ERROR_PREFIX))) if line.startswith(ERROR_PREFIX) else None
    except (ValueError, TypeError):
        return None


def _model(request: CaptureRequest) -> CatalogModel:
    if request.source and not in_catalog(request.source):
        from gnomon_profiler.catalog import load_own  # noqa: PLC0415 - torch

        return load_own(request.name, request.source, request.shapes)
    from gnomon_profiler.catalog import load_model  # noqa: PLC0415 - torch

    model = load_model(request.source or request.name, Path(request.weights) if request.weights else None)
    return replace(model, description=replace(model.description, model=request.name))


def _imported(request: CaptureRequest, kind: str, progress: Progress) -> CatalogModel:
    """The model in another tool's format; each needs torch and the tool's library."""
    path = Path(request.source)
    if kind == ONNX:
        from gnomon_profiler.importing.onnx_module import load_onnx  # noqa: PLC0415

        return load_onnx(request.name, path, request.shapes)
    if kind == TRANSFORMERS:
        from gnomon_profiler.importing.transformers_folder import load_transformers  # noqa: PLC0415

        if is_address(request.source):
            from gnomon_profiler.importing.hub import download  # noqa: PLC0415

            path = download(request.source, lambda step: progress(f"{request.name}: {step}"))
        return load_transformers(request.name, path, request.length, origin=request.source)
    from gnomon_profiler.importing.sklearn_estimator import load_skops  # noqa: PLC0415

    return load_skops(request.name, path)


def _layers_of(folder: Path, name: str, progress: Progress) -> dict[str, bytes]:
    """The file `layers.json`, unless it is there; empty for a program without operations."""
    files = {file: (folder / file).read_bytes() for file in (PROGRAM, WEIGHTS)}
    document = files[PROGRAM]
    program = parse_program(document)
    if not program.operations:
        return {}
    progress(f"{name}: checking sample by sample")
    from gnomon_profiler.importing.row_check import check_rows  # noqa: PLC0415 - torch

    check_rows(files)
    if (folder / LAYERS).exists():
        return {}
    progress(f"{name}: finding its layer blocks")
    from gnomon_profiler.layers import dump_layers, find_layers  # noqa: PLC0415 - torch
    from gnomon_profiler.weights import read_weights  # noqa: PLC0415

    weights = read_weights(files[WEIGHTS], program.weights)
    return {LAYERS: dump_layers(find_layers(program, weights, document=document))}
