"""Model repositories: entries, manifests, a repository in a directory, and opening one by its address (`open_repository`).

    objects/ab/abcdef…                    a file by its SHA-256, read-only, never changed
    models/NAME/VERSION/manifest.json     signature and the SHA-256 of each file
    incoming/                             files that are being written

A version appears when its manifest is renamed into place, after its files, their names and their directories are on disk; so a
reader sees the whole version or nothing, whenever the writer is killed. Truncating or writing a file in place would kill every
process that maps it, so files are only replaced by renaming. Before an entry is served each file's hash is compared with the
manifest; a file that has been verified is not read again while its inode, size and times stay the same.

A file that is not needed to run a model, such as its layer blocks, may be missing: entries of older versions have none.

This module imports no torch: the gateway reads models' signatures through it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from gnomon_core.atomic_files import make_folder, move_file, replacing
from gnomon_core.engines import REPORT, EngineReport
from gnomon_core.errors import GnomonError, bad_request, conflict, not_found
from gnomon_core.interfaces import ModelEntry, ModelRepository
from gnomon_core.model_files import FILE, NAME, SHA256, VERSION, check_name
from gnomon_core.nearest_names import did_you_mean
from gnomon_core.program import ALLOWED_OPERATORS, MAX_PROGRAM_BYTES, invalid_program, parse_program
from gnomon_core.signature import ModelSignature
from gnomon_profiler.layers_file import LAYERS, check_layers
from gnomon_profiler.sample_sets import SAMPLES, VALIDATION, read_samples
from gnomon_profiler.tensor_index import check_weights

PROGRAM = "program.json"
WEIGHTS = "weights.safetensors"
_MANIFEST_FORMAT = "gnomon-model/1"
_MAX_DOCUMENT_BYTES = MAX_PROGRAM_BYTES + 1
"""The most bytes that are read of a file to parse: enough to see that it is too long."""
Content: TypeAlias = bytes | Path
"""A file's bytes, or where it is."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version of a model. `sha256` is by file; `extra` is what one kind of repository keeps for itself."""

    name: str
    version: str
    signature: ModelSignature
    sha256: Mapping[str, str]
    extra: Mapping[str, str]

    def to_bytes(self) -> bytes:
        """The document. The same version gives the same bytes."""
        document = {"format": _MANIFEST_FORMAT, "signature": self.signature.to_json(), "sha256": dict(self.sha256)}
        return json.dumps(
            document | ({"extra": dict(self.extra)} if self.extra else {}), ensure_ascii=False, sort_keys=True
        ).encode()

    def completes(self, other: Manifest) -> bool:
        """True if this manifest has all files of the other one and more."""
        ours, theirs = ({file: sha for file, sha in manifest.sha256.items() if file != REPORT} for manifest in (self, other))
        return self.signature == other.signature and theirs.items() <= ours.items() and not other.reports - self.reports

    @property
    def reports(self) -> set[str]:
        """The report on engines, if there is one: a measurement, which a newer one may replace."""
        return self.sha256.keys() & {REPORT}


def new_manifest(name: str, version: str, files: Mapping[str, Content], extra: Mapping[str, str] | None = None) -> Manifest:
    """The manifest of files that may be stored.

    Raises:
        GnomonError: 400 for a name or a file that cannot be; 422 for a program that may not run, for another one's blocks, or for
            a report on engines that cannot be read.

    """
    check_name(name, version)
    signature = replace(check_files(files), model=name, version=version)
    digests = {file: _digest(content) for file, content in sorted(files.items())}
    return Manifest(name, version, signature, digests, extra or {})


def read_manifest(name: str, version: str, data: bytes) -> Manifest:
    """The manifest in a document.

    Raises:
        GnomonError: 500 `model_corrupt`.

    """
    try:
        document = json.loads(data)
        signature = ModelSignature.from_json(document["signature"])
        digests = {str(file): str(digest) for file, digest in document["sha256"].items()}
        extra = {str(key): str(value) for key, value in document.get("extra", {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise corrupt_manifest(name, version, error) from None
    readable = document.get("format") == _MANIFEST_FORMAT and {PROGRAM, WEIGHTS} <= set(digests)
    if not readable or not all(SHA256.fullmatch(digest) for digest in (*digests.values(), *extra.values())):
        raise corrupt_manifest(name, version, ValueError("not a manifest"))
    return Manifest(name, version, signature, digests, extra)


def newer(new: Manifest, old: Manifest) -> bool:
    """True if a new manifest takes an existing one's place: it has its files and more of them, or another report on engines.

    Raises:
        GnomonError: 409 `model_exists` where a file differs.

    """
    if new.completes(old):
        return new.sha256 != old.sha256
    if old.completes(new):
        return False
    another = f", such as {new.name}@{int(new.version) + 1}" if new.version.isdecimal() else ""
    raise conflict(
        "model_exists",
        f"Model {new.name}@{new.version} exists with another content.",
        f"A version never changes: choose another one{another}.",
    )


def check_files(files: Mapping[str, Content]) -> ModelSignature:
    """The signature that the program states, once the program is one that may run.

    Raises:
        GnomonError: 400 or 422 for files that are no model.

    """
    missing = {PROGRAM, WEIGHTS} - set(files)
    if missing or not all(FILE.fullmatch(file) for file in files):
        raise bad_request(
            "invalid_model", f"A model needs {PROGRAM} and {WEIGHTS}, under plain file names.", "Use gnomon's Extractor."
        )
    with opened(files[WEIGHTS]) as (weights, size_bytes):
        check_weights(weights, size_bytes)
    document = _document(files[PROGRAM])
    program = parse_program(document)
    refused = sorted(set(program.operators()) - ALLOWED_OPERATORS)
    if refused:
        raise invalid_program(f"Operators that may not run: {', '.join(refused)}.")
    if LAYERS in files:
        check_layers(_document(files[LAYERS]), document, program)
    for file in {VALIDATION, SAMPLES} & set(files):
        content = files[file]
        _ = read_samples(
            io.BytesIO(content) if isinstance(content, bytes) else content, program.signature, labelled=file == VALIDATION
        )
    if REPORT in files:
        _check_report(_document(files[REPORT]))
    return program.signature


def _check_report(data: bytes) -> None:
    try:
        _ = EngineReport.from_json(json.loads(data)).auto
    except (ValueError, AttributeError, RecursionError) as error:
        raise GnomonError(
            422, "invalid_engines", f"{REPORT} cannot be read: {error}.", "Leave it out, and convert the model again."
        ) from None


def _document(content: Content) -> bytes:
    """The bytes of a file that is parsed, which is never a large one."""
    if isinstance(content, bytes):
        return content
    with content.open("rb") as file:
        return file.read(_MAX_DOCUMENT_BYTES)


@contextmanager
def opened(content: Content) -> Iterator[tuple[BinaryIO, int]]:
    """The content as a file, and its size in bytes."""
    if isinstance(content, bytes):
        yield io.BytesIO(content), len(content)
    else:
        with content.open("rb") as file:
            yield file, os.fstat(file.fileno()).st_size


def _digest(content: Content) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sorted_versions(versions: Iterable[str]) -> list[str]:
    """The versions, oldest first. Numbers compare as numbers: 10 is newer than 9, 1.10 than 1.9."""
    return sorted(versions, key=_version_key)


def _version_key(version: str) -> list[tuple[int, int, str]]:
    parts: list[Any] = re.findall(r"\d+|[^\d]+", version)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


def missing_model(reference: str, known: Iterable[str]) -> GnomonError:
    """404, naming the models that are there."""
    names = sorted(known)
    hint = f"{did_you_mean(reference, names)} The repository has: {', '.join(names)}." if names else "The repository is empty."
    return not_found(
        "model_not_found", f"There is no model {reference[:200]!r}.", f"{hint.strip()} Add one with `gnomon models add`."
    )


def corrupt_file(name: str, version: str, file: str) -> GnomonError:
    """500: a file is not what its manifest states."""
    return GnomonError(
        500,
        "model_corrupt",
        f"Model {name}@{version}: {file} does not have the SHA-256 that its manifest states.",
        "Add the model again; it is not served meanwhile.",
    )


def corrupt_manifest(name: str, version: str, error: Exception) -> GnomonError:
    """500: the manifest itself cannot be read."""
    return GnomonError(
        500, "model_corrupt", f"Model {name}@{version} has no readable manifest ({type(error).__name__}).", "Add the model again."
    )


Writer: TypeAlias = Callable[[bytes], int]
_CHUNK_BYTES = 1 << 20
OBJECT_MODE = 0o444


class ObjectFolder:
    """Content-addressed files below a folder, which several processes may read and write."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._objects, self._incoming = root / "objects", root / "incoming"
        self._verified: dict[str, tuple[int, ...]] = {}
        for directory in (self._objects, self._incoming):
            make_if_allowed(directory)

    def path(self, digest: str) -> Path:
        return self._objects / digest[:2] / digest

    def is_whole(self, digest: str, *, afresh: bool = False) -> bool:
        """True if the file is there with this SHA-256; `afresh` reads it again even if it has been verified."""
        try:
            with self.path(digest).open("rb") as file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                if not afresh and self._verified.get(digest) == identity:
                    return True
                computed = hashlib.sha256()
                while chunk := file.read(_CHUNK_BYTES):
                    computed.update(chunk)
        except OSError:
            return False
        if computed.hexdigest() != digest:
            self._verified.pop(digest, None)
            return False
        self._verified[digest] = identity
        return True

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the writers' lock, after removal of files that a killed writer left in `incoming`."""
        with (self.root / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for leftover in self._incoming.iterdir():
                leftover.unlink()
            yield

    def publish(self, content: Content, path: Path) -> None:
        """Put a file in its place, whole; one that is on this file system is moved there. While `writing`."""
        if isinstance(content, Path):
            make_folder(path.parent)
            if content.stat().st_dev == self._incoming.stat().st_dev:
                move_file(content, path, mode=OBJECT_MODE)
                return
        with self.incoming(path) as write:
            if isinstance(content, bytes):
                write(content)
                return
            with content.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    write(chunk)

    @contextmanager
    def incoming(self, path: Path) -> Iterator[Writer]:
        """A file that grows and is put in its place at the end, or not at all. While `writing`."""
        make_folder(path.parent)
        with replacing(path, durable=True, mode=OBJECT_MODE, aside=self._incoming) as file:
            yield file.write


def make_if_allowed(directory: Path) -> None:
    """Make a folder if permitted: a read-only volume is not written to, and readers find nothing in it."""
    try:
        make_folder(directory)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise


class BaseRepository(ABC):
    """The part of a `ModelRepository` that is the same in a directory and in S3.

    NAME or NAME@VERSION ─▶ its versions ─▶ the newest, or the named one ─▶ its manifest
    """

    def put(self, name: str, version: str, files: Mapping[str, bytes]) -> ModelEntry:
        return self._put(name, version, files)

    def put_files(self, name: str, version: str, files: Mapping[str, Path]) -> ModelEntry:
        return self._put(name, version, files)

    def verify(self, reference: str) -> bool:
        """True if every file of the entry has its SHA-256; each is read again."""
        try:
            manifest = self._open(reference)
        except GnomonError as error:
            if error.code == "model_corrupt":
                return False
            raise
        return self._is_stored(manifest)

    def _open(self, reference: str) -> Manifest:
        """The manifest of NAME, of its newest version, or of NAME@VERSION.

        Raises:
            GnomonError: 404 `model_not_found`, naming what is there; 500 `model_corrupt`.

        """
        name, at, version = reference.partition("@")
        versions = self._versions(name) if NAME.fullmatch(name) else []
        if at and version in versions:
            return self._read(name, version)
        if not at and versions:
            return self._read(name, versions[-1])
        raise missing_model(reference, (f"{model}@{stored_version}" for model, stored_version in self._keys()))

    def _read(self, name: str, version: str) -> Manifest:
        try:
            data = self._manifest(name, version)
        except OSError as error:
            raise corrupt_manifest(name, version, error) from None
        return read_manifest(name, version, data)

    @abstractmethod
    def _put(self, name: str, version: str, files: Mapping[str, Content]) -> ModelEntry:
        """Add a version of these files, atomically."""

    @abstractmethod
    def _versions(self, name: str) -> list[str]:
        """The versions of a model, oldest first."""

    @abstractmethod
    def _keys(self) -> Iterable[tuple[str, str]]:
        """The name and version of every entry."""

    @abstractmethod
    def _manifest(self, name: str, version: str) -> bytes:
        """The document of a version; OSError where there is none."""

    @abstractmethod
    def _is_stored(self, manifest: Manifest) -> bool:
        """True if all files of a manifest are stored and intact."""


def replaces(manifest: Manifest, existing: bytes) -> bool:
    """True if a manifest replaces this document; it does where the document is not valid.

    Raises:
        GnomonError: 409 `model_exists` for another content.

    """
    try:
        stored = read_manifest(manifest.name, manifest.version, existing)
    except GnomonError:
        return True
    return newer(manifest, stored)


_Names: TypeAlias = list[str]  # inside the class, `list` is its method


class DirectoryRepository(BaseRepository):
    """A `ModelRepository` in a directory, which several processes may read and write."""

    def __init__(self, root: Path) -> None:
        self._models = root / "models"
        make_if_allowed(self._models)
        self._folder = ObjectFolder(root)

    def get(self, reference: str) -> ModelEntry:
        manifest = self._open(reference)
        for file, digest in manifest.sha256.items():
            if not self._folder.is_whole(digest):
                raise corrupt_file(manifest.name, manifest.version, file)
        return entry_of(manifest, self._folder)

    def get_blocks(self, reference: str, blocks: Iterable[int]) -> ModelEntry:  # noqa: ARG002 - a promise of all repositories
        """The whole entry: its weights are mapped, and only what is touched of them becomes resident."""
        return self.get(reference)

    def _put(self, name: str, version: str, files: Mapping[str, Content]) -> ModelEntry:
        manifest = new_manifest(name, version, files)
        with self._folder.writing():
            replaced = replaces(manifest, self._existing(manifest))
            for file, digest in manifest.sha256.items():
                if not self._folder.is_whole(digest, afresh=True):
                    self._folder.publish(files[file], self._folder.path(digest))
            if replaced:
                self._folder.publish(manifest.to_bytes(), self._path(name, version))
        return entry_of(self._read(name, version), self._folder)

    def list(self) -> Iterator[ModelEntry]:
        for name, version in self._keys():
            try:
                yield self.get(f"{name}@{version}")
            except GnomonError:
                continue

    def _keys(self) -> Iterator[tuple[str, str]]:
        return ((name, version) for name in _names(self._models) for version in self._versions(name))

    def _is_stored(self, manifest: Manifest) -> bool:
        return not [digest for digest in manifest.sha256.values() if not self._folder.is_whole(digest, afresh=True)]

    def _versions(self, name: str) -> _Names:
        """The versions, oldest first. A directory without a manifest is a version whose writer was killed."""
        return sorted_versions(version for version in _names(self._models / name) if self._path(name, version).exists())

    def _path(self, name: str, version: str) -> Path:
        return self._models / name / version / "manifest.json"

    def _manifest(self, name: str, version: str) -> bytes:
        return self._path(name, version).read_bytes()

    def _existing(self, manifest: Manifest) -> bytes:
        """The document of this version; empty where there is none."""
        try:
            return self._manifest(manifest.name, manifest.version)
        except OSError:
            return b""


def entry_of(manifest: Manifest, folder: ObjectFolder) -> ModelEntry:
    """The entry whose files are in a folder."""
    digests = manifest.sha256
    return ModelEntry(
        manifest.name,
        manifest.version,
        manifest.signature,
        folder.path(digests[PROGRAM]),
        folder.path(digests[WEIGHTS]),
        digests,
        folder.path(digests[LAYERS]) if LAYERS in digests else None,
        {file: folder.path(digest) for file, digest in digests.items()},
    )


def _names(directory: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in directory.iterdir() if VERSION.fullmatch(entry.name) or NAME.fullmatch(entry.name))
    except (FileNotFoundError, NotADirectoryError):
        return []


S3_SCHEME = "s3://"
IN_IMAGES = "/models"
CACHE = "gnomon-models"


def open_repository(address: str, cache: Path | None = None) -> ModelRepository:
    """The repository at an address. `cache` is the folder for files that are fetched from S3.

    Raises:
        GnomonError: 400 `invalid_repository`; 422 where a package that it needs is not installed.

    """
    if "://" not in address:
        return DirectoryRepository(Path(address).expanduser())
    bucket, _, prefix = address.removeprefix(S3_SCHEME).partition("/")
    if not address.startswith(S3_SCHEME) or not bucket:
        raise bad_request(
            "invalid_repository", f"{address[:200]!r} is not a model repository.", "Name a folder, or s3://BUCKET/PREFIX."
        )
    from gnomon_profiler.s3 import S3Repository  # noqa: PLC0415 - boto3 takes a while, and few have it

    return S3Repository(bucket, prefix.strip("/"), cache or Path.home() / ".cache" / "gnomon" / "models")


def share_profile(repository: ModelRepository, model: str, path: Path) -> None:
    """Upload the profile of NAME@VERSION to a repository in S3; in a folder it lies beside the models already.

    Raises:
        GnomonError: 503 `repository_unreachable`; it stays where it was written.

    """
    from gnomon_profiler.s3 import S3Repository  # noqa: PLC0415 - as above

    if isinstance(repository, S3Repository):
        repository.put_profile(model, path)


def repository_of_instance(environment: Mapping[str, str]) -> ModelRepository:
    """The repository that an instance in an image serves from: `GNOMON_MODELS`, a volume at /models unless said otherwise.

    What is fetched from elsewhere is kept in a folder among temporary files, the only place where an image's user may write;
    weights are mapped from the files there.

    Raises:
        GnomonError: 422 where a package that it needs is not installed.

    """
    return open_repository(environment.get("GNOMON_MODELS") or IN_IMAGES, Path(tempfile.gettempdir()) / CACHE)
