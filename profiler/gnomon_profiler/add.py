"""Puts a catalog model into a repository, once.

Capturing needs torch and a few seconds. By default a process of its own does it, so that a gateway neither imports torch nor
keeps the memory; what it writes is put into the repository whole.

    python -m gnomon_profiler.add efficientnet-lite0 DIRECTORY
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from gnomon_core.errors import GnomonError, not_found
from gnomon_core.seam_values import ModelEntry
from gnomon_core.seams import ModelRepository
from gnomon_profiler.entries import PROGRAM, WEIGHTS
from gnomon_profiler.names import in_catalog, known_names

VERSION = "1"
_ERROR_PREFIX = "error "


def ensure_model(
    repository: ModelRepository,
    name: str,
    *,
    weights: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
    own_process: bool = True,
) -> ModelEntry:
    """The repository's entry of a catalog model, captured first if it is not there.

    Blocks for seconds when it captures. `progress` gets a line for each step.

    Raises:
        GnomonError: 404 for a name the catalog does not have; 422 for a model that cannot be captured.

    """
    found = _existing(repository, name)
    if found is not None and weights is None:
        return found
    if not in_catalog(name):
        raise not_found("model_not_found", f"The catalog has no model {name[:200]!r}.", f"It has: {', '.join(known_names())}.")
    files = _captured_elsewhere(name, weights, progress) if own_process else capture_model(name, weights, progress)
    progress(f"{name}: storing {sum(map(len, files.values())) / 1e6:.1f} MB")
    return repository.put(name, VERSION, files)


def capture_model(name: str, weights: Path | None, progress: Callable[[str], None]) -> Mapping[str, bytes]:
    """The files of a catalog model, captured in this process."""
    progress(f"{name}: loading torch and the weights")
    from gnomon_profiler.catalog import load_model  # noqa: PLC0415 - torch takes seconds
    from gnomon_profiler.extractor import capture  # noqa: PLC0415

    model = load_model(name, weights)
    progress(f"{name}: capturing the network")
    return capture(model.module, model.example, model.description)


def _existing(repository: ModelRepository, name: str) -> ModelEntry | None:
    try:
        return repository.get(f"{name}@{VERSION}")
    except GnomonError as error:
        if error.code in ("model_not_found", "model_corrupt"):
            return None
        raise


def _captured_elsewhere(name: str, weights: Path | None, progress: Callable[[str], None]) -> Mapping[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="gnomon-capture-") as directory:
        command = [sys.executable, "-m", "gnomon_profiler.add", name, directory, *([str(weights)] if weights else [])]
        error: GnomonError | None = None
        noise: list[str] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                text = line.rstrip("\n")
                if text.startswith(_ERROR_PREFIX):
                    error = GnomonError(**json.loads(text.removeprefix(_ERROR_PREFIX)))
                elif text.startswith(f"{name}: "):
                    progress(text)
                else:
                    noise.append(text)
        if error is not None:
            raise error
        if process.returncode != 0:
            last = " ".join(noise[-3:])[-500:]
            raise GnomonError(422, "capture_failed", f"Capturing {name} ended with status {process.returncode}: {last}")
        return {file: (Path(directory) / file).read_bytes() for file in (PROGRAM, WEIGHTS)}


def _main(arguments: list[str]) -> int:
    name, directory, *weights = arguments
    try:
        files = capture_model(name, Path(weights[0]) if weights else None, lambda line: print(line, flush=True))  # noqa: T201 - read by the parent
    except GnomonError as error:
        document = {"status": error.status, "code": error.code, "message": error.message, "hint": error.hint}
        print(_ERROR_PREFIX + json.dumps(document), flush=True)  # noqa: T201
        return 1
    for file, data in files.items():
        (Path(directory) / file).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
