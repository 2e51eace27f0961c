"""Image → runtime: the table that says how an image is served without a container, and what a function must name for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

import yaml

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.functions import FunctionSpec
from gnomon_core.interfaces import ModelRepository

BUILT_IN = Path(__file__).with_name("images.yml")
KINDS = ("process", "redirect", "model")


class BuiltHandler(Protocol):
    """A handler whose image was built on this platform."""

    @property
    def folder(self) -> Path:
        """The handler's folder."""
        ...

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        ...

    @property
    def preload(self) -> tuple[str, ...]:
        """The modules that its zygote preloads."""
        ...

    @property
    def content_id(self) -> str: ...


class BuiltImages(Protocol):
    """Images that were built here."""

    def resolve(self, image: str) -> BuiltHandler | None:
        """Resolve an image to its handler; None if it was not built here."""
        ...


@dataclass(frozen=True, slots=True)
class ImageEntry:
    """A row of the image table."""

    match: str
    kind: str
    environment: Mapping[str, str] = field(default_factory=dict)


class ImageTable:
    """The rows: a user's own first, then ours."""

    def __init__(self, extra: Path | None = None) -> None:
        """Read the table.

        Raises:
            GnomonError: 400 `invalid_images`, naming the file and what is wrong in it.

        """
        self.file = extra or BUILT_IN
        self._entries = [*(_read(extra) if extra is not None else ()), *_read(BUILT_IN)]

    def find(self, image: str) -> ImageEntry | None:
        """The first row that fits."""
        name = bare_name(image)
        return next((entry for entry in self._entries if fnmatchcase(name, entry.match)), None)

    def unknown(self, image: str) -> GnomonError:
        """The refusal of an image that no row fits."""
        known = ", ".join(entry.match for entry in self._entries)
        own = f"a row of {self.file}" if self.file != BUILT_IN else "a table of your own (gnomon serve --images FILE)"
        return bad_request(
            "unknown_image",
            f"This gateway runs functions as processes and pulls no images from a registry, so it cannot serve {image[:200]!r}.",
            f"Write it as a handler and deploy it with `gnomon up`, or say by {own} which process it runs. Known ones: {known}.",
        )


def process_named(spec: FunctionSpec) -> str:
    """The process that a function names for an image which runs one.

    Raises:
        GnomonError: 400 `process_missing`.

    """
    process = spec.env_process or spec.environment.get("fprocess", "")
    if not process.strip():
        raise bad_request(
            "process_missing",
            f"Image {spec.image!r} runs a process, but the function names none.",
            "Set fprocess in stack.yml.",
        )
    return process


def model_named(spec: FunctionSpec, repository: ModelRepository) -> str:
    """The model that a function names for an image which serves one.

    Raises:
        GnomonError: 400 `model_missing`.

    """
    if spec.settings.model is None:
        names = ", ".join(sorted({entry.name for entry in repository.list()})) or "none yet"
        raise bad_request(
            "model_missing",
            f"Image {spec.image!r} serves a model, but the function names none.",
            f"Set the annotation gnomon/model. In the repository: {names}.",
        )
    return spec.settings.model


def no_model_named(spec: FunctionSpec) -> None:
    """Refuse a model name on an image that serves no model, where the setting would have no effect.

    Raises:
        GnomonError: 400 `model_unused`.

    """
    if spec.settings.model is not None:
        raise bad_request(
            "model_unused",
            f"annotation gnomon/model is {spec.settings.model[:100]!r}, but image {spec.image[:200]!r} serves no model.",
            "Name an image that serves one, such as gnomon/body, or leave the annotation out.",
        )


def bare_name(image: str) -> str:
    """An image's name without Docker Hub's prefix, tag and digest: `docker.io/a/b:1` → `a/b`."""
    name = image.partition("@")[0]
    for prefix in ("docker.io/", "index.docker.io/", "registry-1.docker.io/"):
        name = name.removeprefix(prefix)
    folder, slash, last = name.rpartition("/")
    return (folder + slash + last.partition(":")[0]).removeprefix("library/")


def _read(file: Path) -> list[ImageEntry]:
    try:
        document: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
        return [_entry(row) for row in _rows(document)]
    except (OSError, yaml.YAMLError, TypeError, ValueError) as error:
        raise bad_request(
            "invalid_images", f"The image table {file} cannot be read: {error}.", f"{BUILT_IN} shows its form."
        ) from None


def _rows(document: Any) -> list[Any]:
    rows = document.get("images") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise TypeError("it has no list `images`")
    return rows


def _entry(row: Any) -> ImageEntry:
    if not isinstance(row, dict) or not isinstance(row.get("match"), str):
        raise TypeError("every entry needs a match")
    if row.get("kind") not in KINDS:
        raise ValueError(f"the kind of {row['match']!r} must be one of {', '.join(KINDS)}")
    if left := row.keys() - {"match", "kind", "environment"}:
        raise ValueError(f"{row['match']!r} has unknown keys {', '.join(sorted(left))}")
    environment = row.get("environment") or {}
    if not isinstance(environment, dict):
        raise TypeError(f"the environment of {row['match']!r} is not written as NAME: VALUE")
    return ImageEntry(row["match"], row["kind"], {str(name): str(value) for name, value in environment.items()})
