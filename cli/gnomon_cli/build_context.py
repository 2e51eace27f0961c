"""What is sent to be built: a function's template with its handler in it, as OpenFaaS's remote builder takes it.

A tar of `context/…` (the template's files, the handler's files over its handler folder, and what `configuration.copy` names)
and, last, `com.openfaas.docker.config` with the image's name and the build arguments. Names are sorted and times, owners and
modes are the same for everyone, so that the same files give the same archive and the builder can tell that nothing changed.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from gnomon_cli.deployment import read_template
from gnomon_cli.errors import CommandFailed
from gnomon_cli.go_json import go_json, sorted_map
from gnomon_cli.stack import Stack, StackFunction
from gnomon_cli.yaml_text import Value

CONFIG = "com.openfaas.docker.config"
PACKAGES = "ADDITIONAL_PACKAGE"
HANDLER_FOLDER = "function"
NOT_HANDLER = frozenset({"build", "template"})
"""Folders beside a handler that faas-cli makes itself."""
LEFT_OUT = frozenset({"__pycache__", ".git"})
"""Folders that say nothing about the function and change from machine to machine."""


@dataclass(frozen=True, slots=True)
class BuildFlags:
    """What the command line adds to every build."""

    arguments: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    copy: tuple[str, ...] = ()


def build_archive(stack: Stack, function: StackFunction, flags: BuildFlags) -> bytes:
    """The archive that builds a function.

    Raises:
        CommandFailed: Its handler, its template, a build option or something to copy is not there.

    """
    _check(stack, function)
    files: dict[str, Path] = {}
    folder = PurePosixPath("context")
    packages: tuple[str, ...] = ()
    if function.has_template:
        source, template = read_template(stack, function)
        files |= _files(source, folder)
        folder /= template.get("handler_folder").text() or HANDLER_FOLDER
        packages = _packages(stack, function, template, flags)
    files |= _files(stack.resolve(function.handler), folder, but=NOT_HANDLER)
    for name in dict.fromkeys((*stack.copy, *flags.copy)):
        files |= _copied(stack, name, folder)
    arguments = {**function.build_args, **flags.arguments}
    named = arguments.get(PACKAGES, "").split()
    arguments[PACKAGES] = " ".join(sorted({*packages, *named}))
    config = go_json({"image": function.image, "buildArgs": sorted_map(arguments)})
    return _tar(files, config)


def _check(stack: Stack, function: StackFunction) -> None:
    where = f"{stack.file}:{function.line}: functions.{function.name}"
    for what, value in (("image", function.image), ("lang", function.lang), ("handler", function.handler)):
        if not value:
            raise CommandFailed(
                f"{where} has no {what}.", "Building needs `lang`, `handler` and `image`; `skip_build: true` leaves it out."
            )
    if not stack.resolve(function.handler).is_dir():
        raise CommandFailed(f"{where}.handler: {function.handler} is not a folder.")


def _packages(stack: Stack, function: StackFunction, template: Value, flags: BuildFlags) -> tuple[str, ...]:
    """The system packages of the build options that are asked for."""
    known = {item.get("name").text(): item.get("packages").list() for item in template.get("build_options").items()}
    packages: list[str] = []
    for option in dict.fromkeys((*flags.options, *function.build_options)):
        if option not in known:
            where = f"{stack.file}:{function.line}: functions.{function.name}.build_options"
            raise CommandFailed(
                f"{where}: the template {function.lang!r} has no option {option!r}.", f"It has: {', '.join(known) or 'none'}."
            )
        packages += known[option]
    return tuple(packages)


def _copied(stack: Stack, name: str, folder: PurePosixPath) -> dict[str, Path]:
    """A file or folder of the project, under its own name beside the handler."""
    root = Path.cwd().resolve()
    path = stack.resolve(name).resolve()
    inside = path.is_relative_to(root) or path.is_relative_to(stack.folder.resolve())
    if path in {root, stack.folder.resolve()} or not inside:
        raise CommandFailed(f"{stack.file}: configuration.copy: {name} is not inside the project.")
    if not path.exists():
        raise CommandFailed(f"{stack.file}: configuration.copy: {name} is not there.")
    target = folder / PurePosixPath(name)
    return _files(path, target) if path.is_dir() else {str(target): path}


def _files(source: Path, target: PurePosixPath, *, but: frozenset[str] = frozenset()) -> dict[str, Path]:
    """Every file under a folder with its name in the archive. Links are followed; one that leads in a circle is an error."""
    try:
        return dict(_walk(source, target, but | LEFT_OUT, ()))
    except OSError as error:
        raise CommandFailed(f"{error.filename or source}: {error.strerror or error}.") from None


def _walk(source: Path, target: PurePosixPath, but: Iterable[str], seen: tuple[Path, ...]) -> Iterator[tuple[str, Path]]:
    real = source.resolve()
    if real in seen:
        raise CommandFailed(f"{source} is a link to a folder that it is in.")
    for entry in sorted(source.iterdir()):
        if entry.name in but:
            continue
        if entry.is_dir():
            yield from _walk(entry, target / entry.name, LEFT_OUT, (*seen, real))
        elif entry.is_file():
            yield str(target / entry.name), entry


def _tar(files: Mapping[str, Path], config: bytes) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(files):
            executable = files[name].stat().st_mode & 0o100
            _add(tar, name, files[name].read_bytes(), 0o755 if executable else 0o644)
        _add(tar, CONFIG, config, 0o644)
    return archive.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    header: Any = tarfile.TarInfo(name)
    header.size, header.mode = len(data), mode
    tar.addfile(header, io.BytesIO(data))
