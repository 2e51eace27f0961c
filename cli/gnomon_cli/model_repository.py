"""The model repository that a command uses: a folder or S3, with the profiles beside it, or a server's (`-g URL`).

The options locate a repository; `RemoteModels` is a server's:

    entry in the local repository ─▶ archive, chunk by chunk ─▶ PUT /gnomon/models/NAME/VERSION

Nothing is sent where the server has the same content already. An upload that is interrupted leaves nothing on the server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from gnomon_cli.client import Gateway
from gnomon_cli.command import option_group
from gnomon_cli.output import WrongCommand
from gnomon_core.interfaces import ModelEntry, ModelRepository
from gnomon_core.model_files import MEDIA_TYPE, Archive, check_name
from gnomon_profiler.measuring.store import ProfileStore
from gnomon_profiler.repository import PROGRAM, S3_SCHEME, WEIGHTS, open_repository
from gnomon_server.options import FETCHED, state_folder

folder_options = option_group(
    click.option(
        "--models",
        "folder",
        default="",
        metavar="FOLDER",
        help="Model repository, a folder or s3://BUCKET/PREFIX; default: models in the state folder.",
    ),
    click.option("--state", default="", metavar="FOLDER", help="State folder of `gnomon serve`; default .gnomon here."),
)
"""`--models` and `--state`, given to the command as `folder` and `state`."""


class Shape(click.ParamType[tuple[int, ...]]):
    """`3x224x224`."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            sizes = tuple(int(size) for size in value.lower().split("x") if size)
        except ValueError:
            sizes = ()
        if not sizes or min(sizes) < 1:
            self.fail(f"{value!r} is no shape such as 3x224x224.", param, ctx)
        return sizes


source_options = option_group(
    click.option(
        "--from",
        "source",
        default="",
        metavar="SOURCE",
        help="Source of the model: FILE.py:CALLABLE or MODULE:CALLABLE that returns a torch module and an example of its inputs, "
        f"or an estimator of scikit-learn; a model of the catalog; a folder with {PROGRAM} and {WEIGHTS}; an ONNX file (.onnx); "
        "a folder of Hugging Face transformers (config.json and safetensors) or the address of one on a hub; or an estimator "
        "of scikit-learn in a file (.skops).",
    ),
    click.option(
        "--shape",
        "shapes",
        multiple=True,
        type=Shape(),
        metavar="3x224x224",
        help="Shape of one sample of an input, where the callable returns the module alone (float32) or an ONNX file leaves "
        "sizes open; once for each input.",
    ),
    click.option(
        "--length",
        type=click.IntRange(min=1),
        default=None,
        help="Tokens of a sequence, for a text model of transformers; default 128, or what the model takes at most.",
    ),
)
"""`--from`, `--shape` and `--length`, given to the command as `source`, `shapes` and `length`."""


def check_source(source: str, shapes: Sequence[tuple[int, ...]], length: int) -> None:
    """Refuse --shape and --length without --from."""
    if not source and (shapes or length):
        raise WrongCommand("--shape and --length are of a model that --from names.", "Leave them out, or say --from.")


def model_folder(folder: str, state: str) -> Path:
    """The repository's folder; for a remote repository, the folder of what was fetched from it."""
    if folder.startswith(S3_SCHEME):
        return state_folder(state, os.environ) / FETCHED
    return Path(folder).expanduser() if folder else state_folder(state, os.environ) / "models"


def model_repository(folder: str, state: str) -> ModelRepository:
    """The repository in this folder; one in S3 caches what it fetches in the state folder."""
    return open_repository(folder or str(model_folder("", state)), state_folder(state, os.environ) / FETCHED)


def profile_store(folder: str, state: str) -> ProfileStore:
    """The profiles beside it."""
    return ProfileStore(model_folder(folder, state))


PATH = "/gnomon/models"
_NOTES = 10
"""The number of progress lines of an upload."""
_LEAST_BYTES = 8 << 20
"""Lines of progress are at least this far apart."""


class RemoteModels:
    """The models of one server, as its documents: name, version, signature, and by file sizes and SHA-256.

    Raises:
        CommandFailed: from every method, where the server cannot be reached or refuses.

    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def list(self) -> list[dict[str, Any]]:
        documents: list[dict[str, Any]] = self._gateway.json("GET", PATH)
        return documents

    def get(self, reference: str, *, layers: bool = False) -> dict[str, Any]:
        """A model, with its report on engines (`engines`) and on demand its layer blocks (`layers`), if it has them."""
        query = {"layers": "true"} if layers else None
        document: dict[str, Any] = self._gateway.json("GET", f"{PATH}/{quote(reference, safe='@:')}", query=query)
        return document

    def find(self, reference: str) -> dict[str, Any] | None:
        """The document of a model, NAME or NAME@VERSION; None if the server has none."""
        name, _, version = reference.partition("@")
        check_name(name, version or "1")
        answer = self._gateway.call("GET", f"{PATH}/{quote(reference, safe='@:')}")
        if answer.status == HTTPStatus.NOT_FOUND and b'"model_not_found"' in answer.data:
            return None
        self._gateway.check(answer)
        document: dict[str, Any] = json.loads(answer.data)
        return document

    def upload(self, entry: ModelEntry, progress: Callable[[str], None]) -> dict[str, Any]:
        """Add a version with all of its files, and return its document. `progress` gets a line now and then."""
        reference = f"{entry.name}@{entry.version}"
        there = self.find(reference)
        if there is not None and dict(entry.sha256).items() <= there["sha256"].items():
            progress(f"{reference}: {self._gateway.url} has it already")
            return there
        archive = Archive(entry.files, entry.sha256)
        answer = self._gateway.call(
            "PUT",
            f"{PATH}/{quote(entry.name, safe=':')}/{quote(entry.version)}",
            body=_with_progress(archive, archive.size_bytes, lambda text: progress(f"{reference}: {text}")),
            headers={"Content-Type": MEDIA_TYPE, "Content-Length": str(archive.size_bytes)},
            patient=True,
        )
        self._gateway.check(answer)
        document: dict[str, Any] = json.loads(answer.data)
        return document


def _with_progress(chunks: Iterable[bytes], size_bytes: int, progress: Callable[[str], None]) -> Iterator[bytes]:
    step = max(size_bytes // _NOTES, _LEAST_BYTES)
    sent = noted = 0
    progress(f"uploading {size_bytes / 1e6:.1f} MB")
    for chunk in chunks:
        yield chunk
        sent += len(chunk)
        if sent - noted >= step:
            noted = sent
            progress(f"sent {sent / 1e6:.1f} of {size_bytes / 1e6:.1f} MB")
