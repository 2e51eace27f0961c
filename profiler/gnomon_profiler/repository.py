"""Models in a directory: content-addressed files, and one manifest for each version.

    objects/ab/abcdef…                    a file by its SHA-256, read-only, never changed
    models/NAME/VERSION/manifest.json     signature and the SHA-256 of each file
    incoming/                             what is being written

A version appears when its manifest is renamed into place, after its files, their names and their directories are on disk; so a
reader sees all of it or nothing, whenever the writer is killed. Before an entry is served each file's hash is compared with the
manifest; a file that has been verified is not read again while its inode, size and times stay the same.

This module needs no torch: the gateway reads models' signatures through it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from gnomon_core.errors import GnomonError, bad_request, conflict, not_found
from gnomon_core.operators import ALLOWED_OPERATORS
from gnomon_core.program import invalid_program
from gnomon_core.program_reader import parse_program
from gnomon_core.seam_values import ModelEntry
from gnomon_core.signature import ModelSignature

PROGRAM = "program.json"
WEIGHTS = "weights.safetensors"
NAME = re.compile(r"[a-z0-9][a-z0-9._:-]{0,126}")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_FILE = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MANIFEST_FORMAT = "gnomon-model/1"
_CHUNK_BYTES = 1 << 20
_Names: TypeAlias = list[str]  # inside the class, `list` is its method


class DirectoryRepository:
    """A `ModelRepository` in a directory, which several processes may read and write."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._objects, self._models, self._incoming = root / "objects", root / "models", root / "incoming"
        self._verified: dict[str, tuple[int, ...]] = {}
        for directory in (self._objects, self._models, self._incoming):
            directory.mkdir(parents=True, exist_ok=True)

    def get(self, reference: str) -> ModelEntry:
        entry = self._read(*self._find(reference))
        for name, digest in entry.sha256.items():
            if not self._is_whole(digest):
                raise _corrupt(entry, f"{name} does not have the SHA-256 that its manifest states")
        return entry

    def put(self, name: str, version: str, files: Mapping[str, bytes]) -> ModelEntry:
        if not NAME.fullmatch(name) or not VERSION.fullmatch(version):
            raise bad_request(
                "invalid_model_name",
                f"{name[:150]!r} version {version[:100]!r} cannot name a model.",
                "Use lower-case letters, digits, '.', '_', ':' and '-', beginning with a letter or digit.",
            )
        signature = replace(_check_files(files), model=name, version=version)
        digests = {file: hashlib.sha256(data).hexdigest() for file, data in sorted(files.items())}
        document = {"format": _MANIFEST_FORMAT, "signature": signature.to_json(), "sha256": digests}
        manifest = json.dumps(document, ensure_ascii=False, sort_keys=True).encode()
        with self._writing():
            for file, digest in digests.items():
                if not self._is_whole(digest, afresh=True):
                    self._publish(files[file], self._object(digest))
            self._publish_manifest(name, version, manifest)
        return self._read(name, version)

    def list(self) -> Iterator[ModelEntry]:
        for name in _names(self._models):
            for version in self._versions(name):
                try:
                    yield self.get(f"{name}@{version}")
                except GnomonError:
                    continue

    def verify(self, reference: str) -> bool:
        try:
            entry = self._read(*self._find(reference))
        except GnomonError as error:
            if error.code == "model_corrupt":
                return False
            raise
        return not [digest for digest in entry.sha256.values() if not self._is_whole(digest, afresh=True)]

    # Reading

    def _find(self, reference: str) -> tuple[str, str]:
        name, at, version = reference.partition("@")
        versions = self._versions(name) if NAME.fullmatch(name) else []
        if at and version in versions:
            return name, version
        if not at and versions:
            return name, versions[-1]
        known = [f"{model}@{there}" for model in _names(self._models) for there in self._versions(model)]
        raise not_found(
            "model_not_found",
            f"There is no model {reference[:200]!r}.",
            f"There are: {', '.join(sorted(known))}."
            if known
            else "The model repository is empty: add one with `gnomon models add`.",
        )

    def _versions(self, name: str) -> _Names:
        """Oldest first. A directory without a manifest is a version whose writer was killed."""
        versions = [version for version in _names(self._models / name) if self._manifest(name, version).exists()]
        return sorted(versions, key=_version_key)

    def _manifest(self, name: str, version: str) -> Path:
        return self._models / name / version / "manifest.json"

    def _read(self, name: str, version: str) -> ModelEntry:
        try:
            document = json.loads(self._manifest(name, version).read_bytes())
            signature = ModelSignature.from_json(document["signature"])
            digests = {str(file): str(digest) for file, digest in document["sha256"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _corrupt_manifest(name, version, error) from None
        readable = document.get("format") == _MANIFEST_FORMAT and {PROGRAM, WEIGHTS} <= set(digests)
        if not readable or not all(_SHA256.fullmatch(digest) for digest in digests.values()):
            raise _corrupt_manifest(name, version, ValueError("not a manifest"))
        return ModelEntry(name, version, signature, self._object(digests[PROGRAM]), self._object(digests[WEIGHTS]), digests)

    def _object(self, digest: str) -> Path:
        return self._objects / digest[:2] / digest

    def _is_whole(self, digest: str, *, afresh: bool = False) -> bool:
        try:
            with self._object(digest).open("rb") as file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                if not afresh and self._verified.get(digest) == identity:
                    return True
                found = hashlib.sha256()
                while chunk := file.read(_CHUNK_BYTES):
                    found.update(chunk)
        except OSError:
            return False
        if found.hexdigest() != digest:
            self._verified.pop(digest, None)
            return False
        self._verified[digest] = identity
        return True

    # Writing

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One writer at a time; what a killed one left behind is removed."""
        with (self._root / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for leftover in self._incoming.iterdir():
                leftover.unlink()
            yield

    def _publish_manifest(self, name: str, version: str, manifest: bytes) -> None:
        path = self._manifest(name, version)
        if not path.exists():
            self._publish(manifest, path)
        elif path.read_bytes() != manifest:
            self._refuse_or_repair(name, version, manifest)

    def _refuse_or_repair(self, name: str, version: str, manifest: bytes) -> None:
        try:
            self._read(name, version)
        except GnomonError:
            self._publish(manifest, self._manifest(name, version))
            return
        raise conflict(
            "model_exists",
            f"Model {name}@{version} exists with another content.",
            "A version never changes: choose another one.",
        )

    def _publish(self, data: bytes, path: Path) -> None:
        self._make_directory(path.parent)
        descriptor, incoming = tempfile.mkstemp(dir=self._incoming)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o444)
            os.fsync(file.fileno())
        Path(incoming).replace(path)
        _sync(path.parent)

    def _make_directory(self, directory: Path) -> None:
        if directory.is_dir():
            return
        self._make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        _sync(directory.parent)


def _check_files(files: Mapping[str, bytes]) -> ModelSignature:
    """The signature that the program states, once the program is one that may run."""
    missing = {PROGRAM, WEIGHTS} - set(files)
    if missing or not all(_FILE.fullmatch(file) for file in files):
        raise bad_request(
            "invalid_model", f"A model needs {PROGRAM} and {WEIGHTS}, under plain file names.", "Use gnomon's Extractor."
        )
    program = parse_program(files[PROGRAM])
    refused = sorted(set(program.operators()) - ALLOWED_OPERATORS)
    if refused:
        raise invalid_program(f"Operators that may not run: {', '.join(refused)}.")
    return program.signature


def _names(directory: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in directory.iterdir() if VERSION.fullmatch(entry.name) or NAME.fullmatch(entry.name))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _version_key(version: str) -> list[tuple[int, int, str]]:
    """Numbers compare as numbers: 10 is newer than 9, 1.10 than 1.9."""
    parts: list[Any] = re.findall(r"\d+|[^\d]+", version)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _corrupt(entry: ModelEntry, what: str) -> GnomonError:
    return GnomonError(
        500, "model_corrupt", f"Model {entry.name}@{entry.version}: {what}.", "Put it again; nothing is served from it."
    )


def _corrupt_manifest(name: str, version: str, error: Exception) -> GnomonError:
    return GnomonError(
        500, "model_corrupt", f"Model {name}@{version} has no readable manifest ({type(error).__name__}).", "Put it again."
    )
