"""Content-addressed store of builds: a handler folder under the SHA-256 of its files.

    contents/<content id>/function/        handler.py and what belongs to it
    contents/<content id>/content.json     which template it came with, and which environment it runs in

An archive is unpacked in a temporary folder, and its content is moved into place by one rename: a visible folder is complete.

The date of `content.json` says when a content was last used, and outlives a restart.

An archive comes from any client that knows the payload secret, and is not trusted. The members are read by a loop of our own: 512
bytes of header, then the content. Only regular files and directories exist for it; a link, a device, a sparse file or any other
kind ends the build. A name is relative, has no `..`, and is bounded in length and depth; a file appears once. Members, bytes of a
file, bytes in all and, where the archive is gzipped, the ratio between packed and unpacked are bounded too, and checked while
reading, not believed from a header.

Of a member's mode only "executable" is kept. Because nothing but fresh files and directories is ever made below a fresh
directory, no name can lead outside of it.
"""

from __future__ import annotations

import ast
import contextlib
import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import yaml

from gnomon_core.clock import utc_now_s
from gnomon_core.errors import GnomonError
from gnomon_platforms.local.builder.requirements import Requirements, read_requirements

CONFIG = "com.openfaas.docker.config"
HANDLER_FOLDER = "function"
MAX_DOCUMENT_BYTES = 1 << 20
TEMPLATES = ("gnomon-body", "python3-http", "python3-http-debian", "python3-flask", "python3-flask-debian")
TEMPORARY = ".incoming-"


@dataclass(frozen=True, slots=True)
class Content:
    """A handler folder in the store."""

    content_id: str
    template: str
    environment_id: str


@dataclass(frozen=True, slots=True)
class Received:
    """The contents of an archive: an image name, the build arguments, the content and its requirements."""

    image: str
    build_args: dict[str, str]
    content: Content
    requirements: Requirements


class Contents:
    """The store of handler folders."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder = folder
        self._limits = limits
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        for left in folder.glob(f"{TEMPORARY}*"):
            shutil.rmtree(left, ignore_errors=True)

    def receive(self, archive: Path) -> Received:
        """Unpack an archive and keep what it holds. Blocks.

        Raises:
            GnomonError: 422, saying what is wrong with it; nothing of it is kept.

        """
        incoming = self._folder / f"{TEMPORARY}{uuid.uuid4().hex}"
        try:
            unpack(archive, incoming, self._limits)
            config = _read_config(incoming / CONFIG)
            context = incoming / "context"
            template = recognise(context)
            _check_handler(context / HANDLER_FOLDER / "handler.py")
            requirements = read_requirements(_read(context / HANDLER_FOLDER / "requirements.txt") or b"")
            content = Content(content_id(context / HANDLER_FOLDER, template), template, requirements.environment_id)
            self._keep(context, incoming / "kept", content)
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
        return Received(config["image"], config["buildArgs"], content, requirements)

    def _keep(self, context: Path, staged: Path, content: Content) -> None:
        final = self._folder / content.content_id
        if final.is_dir():
            self.use(content.content_id)
            return
        staged.mkdir()
        staged.chmod(0o755)
        (context / HANDLER_FOLDER).rename(staged / HANDLER_FOLDER)
        (staged / "content.json").write_text(json.dumps(asdict(content)))
        try:
            staged.rename(final)
        except OSError:
            if not final.is_dir():  # the same content, kept by another build meanwhile, is as good
                raise

    def find(self, content_id: str) -> Content | None:
        """The content under an id; None if there is none."""
        try:
            return Content(**json.loads(self._description(content_id).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def use(self, content_id: str) -> None:
        """Mark the content as used now."""
        touch(self._description(content_id))

    def idle_s(self, content_id: str) -> float:
        """Seconds since the content was used."""
        return idle_s(self._description(content_id))

    def _description(self, content_id: str) -> Path:
        return self._folder / content_id / "content.json"

    def handler_folder(self, content_id: str) -> Path:
        return self._folder / content_id / HANDLER_FOLDER

    def ids(self) -> set[str]:
        """The ids of all stored contents."""
        return {entry.name for entry in self._folder.iterdir() if not entry.name.startswith(".")}

    def remove(self, content_id: str) -> None:
        """Delete a content folder; it is renamed first, so that no reader finds half of it."""
        doomed = self._folder / f"{TEMPORARY}{uuid.uuid4().hex}"
        (self._folder / content_id).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def content_id(folder: Path, template: str) -> str:
    """SHA-256 over the template's name and every file's path, executable bit, length and bytes, sorted by path."""
    digest = hashlib.sha256(f"{template}\n".encode())
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        status = path.stat()
        digest.update(f"{path.relative_to(folder)}\0{status.st_mode & 0o111:o}\0{status.st_size}\0".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def recognise(context: Path) -> str:
    """The template that a build context was made from.

    Raises:
        GnomonError: 422 `unsupported_template`, naming those that this platform builds.

    """
    language = _language(context / "template.yml")
    if language in TEMPLATES and (context / HANDLER_FOLDER / "handler.py").is_file():
        return language
    if language in TEMPLATES:
        raise GnomonError(422, "no_handler", "The archive has no context/function/handler.py.", "Is `handler:` the right folder?")
    what = f"of the template {language!r}" if language else "made from a Dockerfile of its own"
    raise GnomonError(
        422,
        "unsupported_template",
        f"This platform has no containers and cannot build a function {what}.",
        "Serve its folder: gnomon serve --application FOLDER/application.yml --models FOLDER/models"
        if language == "gnomon-application"
        else f"It builds handlers of: {', '.join(TEMPLATES)}.",
    )


def _read(path: Path) -> bytes | None:
    """A file's first bytes, one more than any document here may have; None where there is no such file."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return file.read(MAX_DOCUMENT_BYTES + 1)


def _language(path: Path) -> str | None:
    try:
        document = yaml.safe_load(_read(path) or b"")
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    language = document.get("language") if isinstance(document, dict) else None
    return language if isinstance(language, str) else None


def _check_handler(path: Path) -> None:
    """Refuse a handler with a syntax error now, and not when the first instance starts."""
    source = _read(path) or b""
    if len(source) > MAX_DOCUMENT_BYTES:
        raise GnomonError(422, "bad_handler", "function/handler.py has more than 1 MiB.", "Move data into files beside it.")
    try:
        ast.parse(source, "function/handler.py")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        what = f"function/handler.py is not Python: {where}."
        raise GnomonError(422, "bad_handler", what, "Correct it and build again.") from error


def _read_config(path: Path) -> dict[str, Any]:
    """The image name and the build arguments."""
    try:
        config = json.loads(_read(path) or b"null")
    except (ValueError, RecursionError):
        config = None
    image = config.get("image") if isinstance(config, dict) else None
    if not isinstance(config, dict) or not isinstance(image, str) or not image:
        raise GnomonError(422, "bad_archive", f"The archive has no {CONFIG} that names an image.", "Send what faas-cli sends.")
    arguments = config.get("buildArgs")
    named = arguments.items() if isinstance(arguments, dict) else ()
    return {"image": image, "buildArgs": {str(name): str(value) for name, value in named}}


def touch(path: Path) -> None:
    """Mark the path as used now. A missing path is ignored."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(path)


def idle_s(path: Path) -> float:
    """Seconds since the path was used; infinite for a missing path."""
    try:
        return utc_now_s() - path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


BLOCK_BYTES = 512
COPY_BYTES = 1 << 20
GZIP_MAGIC = b"\x1f\x8b"
GZIP_FLOOR_BYTES = 1 << 20
"""Unpacked size up to which an archive may exceed the compression ratio, as a small one of repetitive text does."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of an archive. A model of 2 GiB beside a handler fits; weights belong into the model repository."""

    members: int = 20_000
    file_bytes: int = 2 << 30
    total_bytes: int = 4 << 30
    ratio: int = 100
    path_bytes: int = 1024
    name_bytes: int = 255
    depth: int = 32
    header_bytes: int = 64 << 10


DEFAULT_LIMITS = Limits()


def refuse(what: str) -> GnomonError:
    """The error for an archive that is not unpacked."""
    return GnomonError(
        422, "bad_archive", f"The archive {what}.", "Send a tar of regular files and directories, as faas-cli makes it."
    )


def unpack(archive: Path, target: Path, limits: Limits = DEFAULT_LIMITS) -> None:
    """Unpack `archive` into the new directory `target`.

    Raises:
        GnomonError: 422 `bad_archive`; nothing is left of `target`.

    """
    _make_directory(target)
    try:
        with archive.open("rb") as file:
            _unpack(_Reader(file, archive.stat().st_size, limits), target, limits)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


class _Reader:
    """The archive's bytes, decompressed where needed, exactly as many as asked for and never more than the bounds allow."""

    def __init__(self, file: BinaryIO, archive_bytes: int, limits: Limits) -> None:
        compressed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        file.seek(0)
        self._stream = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if compressed else file
        # Headers and padding of empty members come on top of the content.
        max_bytes = limits.total_bytes + 4 * BLOCK_BYTES * limits.members
        self._left = min(max_bytes, max(GZIP_FLOOR_BYTES, limits.ratio * archive_bytes)) if compressed else max_bytes

    def read(self, count: int) -> bytes:
        """The next `count` bytes.

        Raises:
            GnomonError: the archive ends before, or exceeds its total bound.

        """
        data = self._read(count)
        if len(data) != count:
            raise refuse("ends too early")
        return data

    def finish(self) -> None:
        """Read on to the end, where gzip's checksum is. What follows the end of a tar is padding."""
        while self._read(BLOCK_BYTES):
            pass

    def _read(self, count: int) -> bytes:
        self._left -= count
        if self._left < 0:
            raise refuse("is too large when unpacked")
        try:
            return self._stream.read(count)
        except (OSError, EOFError, zlib.error) as error:
            raise refuse("is a damaged gzip file") from error


@dataclass(slots=True)
class _Member:
    path: tuple[str, ...]
    directory: bool
    executable: bool
    size: int


def _unpack(reader: _Reader, target: Path, limits: Limits) -> None:
    total_bytes = 0
    files: set[tuple[str, ...]] = set()
    directories: set[tuple[str, ...]] = {()}
    for count, member in enumerate(_members(reader, limits)):
        total_bytes += member.size
        if count >= limits.members:
            raise refuse(f"has more than {limits.members} members")
        if member.size > limits.file_bytes or total_bytes > limits.total_bytes:
            raise refuse("is too large when unpacked")
        if not member.directory and (member.path in files or member.path in directories):
            raise refuse(f"holds {'/'.join(member.path)!r} twice")
        parents = [member.path[:length] for length in range(1, len(member.path) + member.directory)]
        for parent in parents:
            if parent in files:
                raise refuse(f"uses the file {'/'.join(parent)!r} as a directory")
            if parent not in directories:
                _make_directory(target.joinpath(*parent))
                directories.add(parent)
        if not member.directory:
            files.add(member.path)
            _write(reader, member, target.joinpath(*member.path))
    reader.finish()


def _make_directory(path: Path) -> None:
    path.mkdir()
    path.chmod(0o755)  # whatever the umask: the function's own user reads it


def _write(reader: _Reader, member: _Member, path: Path) -> None:
    mode = 0o755 if member.executable else 0o644
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        left = member.size
        while left:
            file.write(reader.read(min(left, COPY_BYTES)))
            left -= min(left, COPY_BYTES)
    reader.read(-member.size % BLOCK_BYTES)


def _members(reader: _Reader, limits: Limits) -> Iterator[_Member]:
    """The files and directories, each with the long name and size that records before it gave it."""
    long_path: str | None = None
    long_size: int | None = None
    headers = 0
    while True:
        block = reader.read(BLOCK_BYTES)
        if not any(block):
            return
        headers += 1
        if headers > 3 * limits.members:
            raise refuse("has too many headers")
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")  # GNU tar cuts a long name anywhere
        except (tarfile.HeaderError, ValueError) as error:
            raise refuse("has a header that is not one of a tar file") from error
        if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE):
            record = _record(reader, info.size, limits)
            if info.type == tarfile.GNUTYPE_LONGNAME:
                long_path = _text(record.rstrip(b"\0"))
            elif info.type == tarfile.XHDTYPE:
                long_path, long_size = _pax(record, long_path)
            continue
        size = info.size if long_size is None else long_size
        yield _member(info, info.name if long_path is None else long_path, size, limits)
        long_path = long_size = None


def _member(info: tarfile.TarInfo, name: str, size: int, limits: Limits) -> _Member:
    directory = info.type == tarfile.DIRTYPE or (info.type == tarfile.AREGTYPE and name.endswith("/"))
    if not directory and info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise refuse(f"holds {name[:100]!r}, which is neither a regular file nor a directory")
    if size < 0 or (directory and size):
        raise refuse(f"gives {name[:100]!r} a size it cannot have")
    return _Member(_path(name, directory, limits), directory, bool(info.mode & 0o100), size)


def _path(name: str, directory: bool, limits: Limits) -> tuple[str, ...]:  # noqa: FBT001 - a fact of the member
    try:
        encoded = name.encode()
    except UnicodeEncodeError as error:
        raise refuse("holds a name that is not UTF-8") from error
    if len(encoded) > limits.path_bytes:
        raise refuse("holds a path that is too long")
    if name.startswith("/") or any(ord(character) < ord(" ") or character == "\x7f" for character in name):
        raise refuse(f"holds the path {name[:100]!r}")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts or not (parts or directory):
        raise refuse(f"holds the path {name[:100]!r}")
    if len(parts) > limits.depth or any(len(part.encode()) > limits.name_bytes for part in parts):
        raise refuse("holds a path that is too long")
    return parts


def _record(reader: _Reader, size: int, limits: Limits) -> bytes:
    """The content of a header that describes the next member."""
    if not 0 <= size <= limits.header_bytes:
        raise refuse("has a header that is too large")
    record = reader.read(size)
    reader.read(-size % BLOCK_BYTES)
    return record


def _pax(record: bytes, path: str | None) -> tuple[str | None, int | None]:
    r"""The path and the size of an extended header: records of `LENGTH KEY=VALUE\n`."""
    size: int | None = None
    stream = io.BytesIO(record)
    while stream.tell() < len(record):
        start = stream.tell()
        digits = b"".join(iter(lambda: stream.read(1).strip(b" "), b""))
        length = int(digits) if digits.isdigit() and len(digits) <= len(str(len(record))) else 0
        line = stream.read(max(0, start + length - stream.tell()))
        key, equals, value = line[:-1].partition(b"=")
        if not equals or line[-1:] != b"\n" or stream.tell() != start + length:
            raise refuse("has an extended header that cannot be read")
        if key.startswith(b"GNU.sparse"):
            raise refuse("holds a sparse file")
        if key == b"path":
            path = _text(value)
        elif key == b"size":
            if not value.isdigit() or len(value) > len(str(1 << 63)):
                raise refuse("has an extended header that cannot be read")
            size = int(value)
        elif key == b"linkpath":
            raise refuse("holds a link")
    return path, size


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise refuse("holds a name that is not UTF-8") from error
