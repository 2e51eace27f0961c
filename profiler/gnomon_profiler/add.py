"""Puts models into a repository: those of the catalog, once, your own, and those in other tools' formats.

    from gnomon_profiler import add_from, add_model
    add_model(module, torch.zeros(1, 3, 224, 224), "flowers", ".gnomon/models")
    add_from(".gnomon/models", "trees", "torchvision:resnet50")
    add_from(".gnomon/models", "reviews", "exported.onnx")

A repository is an object, a folder or an address such as s3://bucket/models. Capturing needs torch and a few seconds. What has a
name or a source is captured by a process of its own (`capturing`); a module that you hold is captured where it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.interfaces import ModelEntry, ModelRepository
from gnomon_core.model_files import check_name
from gnomon_profiler.capturing import CaptureRequest, capture_elsewhere, capture_here
from gnomon_profiler.child_processes import ChildProcesses
from gnomon_profiler.importing.sources import ONNX, TRANSFORMERS, format_of
from gnomon_profiler.layers_file import LAYERS
from gnomon_profiler.names import in_catalog, meant, not_in_catalog
from gnomon_profiler.repository import PROGRAM, WEIGHTS, check_files, open_repository

if TYPE_CHECKING:
    from torch import Tensor, nn

VERSION = "1"


def ensure_model(
    repository: ModelRepository | str | Path,
    name: str,
    *,
    version: str = VERSION,
    weights: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
    own_process: bool = True,
    processes: ChildProcesses | None = None,
) -> ModelEntry:
    """The repository's entry of a catalog model, captured first if it is not there.

    One that was captured without its layer blocks gets them. Blocks for seconds when it captures, in one of `processes`.
    `progress` gets a line for each step.

    Raises:
        GnomonError: 404 for a name the catalog does not have; 400 for weights of a model that has its own; 409 `model_exists` for
            other weights than this version has; 422 for a model that cannot be captured; 503 `stopping`.

    """
    opened = _opened(repository)
    found = existing(opened, f"{name}@{version}")
    if found is not None and weights is None:
        return found if found.layers else _completed(opened, found, progress, processes)
    if not in_catalog(name):
        raise not_in_catalog(name)
    request = CaptureRequest(name, weights=str(weights or ""))
    files = capture_elsewhere(request, progress, processes) if own_process else capture_here(request, progress)
    progress(f"{name}: storing {sum(map(len, files.values())) / 1e6:.1f} MB")
    return opened.put(name, version, files)


def add_model(
    module: nn.Module | object,
    example: Tensor | Sequence[Tensor] | None,
    name: str,
    repository: ModelRepository | str | Path,
    *,
    version: str = VERSION,
    input_names: Sequence[str] = (),
    output_names: Sequence[str] = (),
) -> ModelEntry:
    """Capture a module, or a fitted estimator of scikit-learn, and put it into a repository.

    `example` is one input or several, the batch as first axis; values do not matter where the module does not branch on them. An
    estimator needs none (None). Without names, inputs are called as the parameters of `forward`, and outputs "output" or by the
    keys of a dict.

    Raises:
        GnomonError: 422 `unsupported_model`; 409 `model_exists` for another content under this name and version.

    """
    from torch import nn  # noqa: PLC0415 - torch takes seconds

    from gnomon_profiler.catalog import examples  # noqa: PLC0415
    from gnomon_profiler.extractor import Description, capture  # noqa: PLC0415
    from gnomon_profiler.importing.row_check import check_rows  # noqa: PLC0415

    described = Description(name, version, input_names=tuple(input_names), output_names=tuple(output_names))
    if isinstance(module, nn.Module):
        files = capture(module, examples(name, example), described)
        check_rows(files)
        return _opened(repository).put(name, version, files)
    from gnomon_profiler.importing.sklearn_estimator import is_estimator, model_of_estimator  # noqa: PLC0415

    if not is_estimator(module):
        raise bad_request(
            "invalid_source", f"{type(module).__name__} is neither a torch module nor an estimator.", "Pass one of these."
        )
    model = model_of_estimator(module, described)
    files = capture(model.module, model.example, model.description)
    check_rows(files, model.module)
    return _opened(repository).put(name, version, files)


def add_from(
    repository: ModelRepository | str | Path,
    name: str,
    source: str,
    *,
    version: str = VERSION,
    shapes: Sequence[Sequence[int]] = (),
    weights: Path | None = None,
    length: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> ModelEntry:
    """Put a model into a repository under a name of your own.

    `source` is a callable that makes it (`own_models`), a name of the catalog, for which there may be `weights` and which may be
    short where it has one meaning (`names.meant`), a file or folder in another tool's format (`importing`): `.onnx`, a folder of
    transformers or its address on a hub, `.skops`; or a folder with what `extractor.capture` gave; layer blocks are found where
    the folder has none. `shapes` are of one sample of each input, where the source leaves them open; `length` is of a text
    model's sequences.

    Raises:
        GnomonError: 400 `invalid_source`, `unsafe_source` or `invalid_model_name`; 422 for a model that cannot be captured; 409
            `model_exists`.

    """
    check_name(name, version)
    folder = Path(source)
    imported = format_of(source)
    source = source if folder.is_dir() or imported else meant(name, source)
    from_catalog = in_catalog(source) and not folder.is_dir() and not imported
    _check_options(source, imported, from_catalog=from_catalog, shapes=shapes, weights=weights, length=length)
    if folder.is_dir() and not imported:
        files = _captured(folder)
        check_files(files)
        files |= capture_elsewhere(CaptureRequest(name, captured=str(folder)), progress)
    else:
        request = CaptureRequest(name, str(weights or ""), source, tuple(map(tuple, shapes)), length=length)
        files = capture_elsewhere(request, progress)
    progress(f"{name}: storing {sum(map(len, files.values())) / 1e6:.1f} MB")
    return _opened(repository).put(name, version, files)


def _opened(repository: ModelRepository | str | Path) -> ModelRepository:
    if not isinstance(repository, str | Path):
        return repository
    return open_repository(str(repository))


def _check_options(
    source: str, imported: str, *, from_catalog: bool, shapes: Sequence[Sequence[int]], weights: Path | None, length: int
) -> None:
    if from_catalog and shapes:
        raise bad_request(
            "invalid_source", f"The inputs of {source}, a model of the catalog, are fixed.", "Leave out the shapes."
        )
    if imported not in ("", ONNX) and shapes:
        raise bad_request("invalid_source", f"{source[:200]} states the shapes of its inputs.", "Leave out the shapes.")
    if weights is not None and not from_catalog:
        raise bad_request("invalid_source", f"{source[:200]} comes with its own weights.", "Leave out --weights.")
    if length < 0:
        raise bad_request("invalid_source", f"A length of {length} tokens is none.", "Say --length 128, for example.")
    if length and imported != TRANSFORMERS:
        raise bad_request(
            "invalid_source",
            f"{source[:200]} is no transformers folder, with config.json in it, and no others have a length of sequences.",
            "Leave out --length, or correct the path.",
        )


def existing(repository: ModelRepository, reference: str) -> ModelEntry | None:
    """The entry of a model, NAME or NAME@VERSION; None if the repository has none that can be read."""
    try:
        return repository.get(reference)
    except GnomonError as error:
        if error.code in ("model_not_found", "model_corrupt"):
            return None
        raise


def _completed(
    repository: ModelRepository, entry: ModelEntry, progress: Callable[[str], None], processes: ChildProcesses | None
) -> ModelEntry:
    """The entry with its layer blocks; as it is where they cannot be found, since it serves without them."""
    files = {PROGRAM: entry.program.read_bytes(), WEIGHTS: entry.weights.read_bytes()}
    with tempfile.TemporaryDirectory(prefix="gnomon-layers-") as folder:
        for file, data in files.items():
            (Path(folder) / file).write_bytes(data)
        try:
            found = capture_elsewhere(CaptureRequest(entry.name, captured=folder), progress, processes)
        except GnomonError as error:
            progress(f"{entry.name}: has no layer blocks: {error.message}")
            return entry
    return repository.put(entry.name, entry.version, files | found)


def _captured(folder: Path) -> dict[str, bytes]:
    missing = [file for file in (PROGRAM, WEIGHTS) if not (folder / file).is_file()]
    if missing:
        raise bad_request(
            "invalid_source",
            f"{folder} has no {' and no '.join(missing)}.",
            "Write what gnomon_profiler.extractor.capture gives.",
        )
    return {file: (folder / file).read_bytes() for file in (PROGRAM, WEIGHTS, LAYERS) if (folder / file).is_file()}
