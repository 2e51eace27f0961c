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

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import ModelEntry
from gnomon_profiler.entries import (
    NAME,
    PROGRAM,
    VERSION,
    WEIGHTS,
    Manifest,
    corrupt_file,
    new_manifest,
    sorted_versions,
)
from gnomon_profiler.layers_file import LAYERS
from gnomon_profiler.objects import ObjectFolder, make_if_allowed
from gnomon_profiler.opening import Opening, takes_its_place

_Names: TypeAlias = list[str]  # inside the class, `list` is its method


class DirectoryRepository(Opening):
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

    def put(self, name: str, version: str, files: Mapping[str, bytes]) -> ModelEntry:
        manifest = new_manifest(name, version, files)
        with self._folder.writing():
            for file, digest in manifest.sha256.items():
                if not self._folder.is_whole(digest, afresh=True):
                    self._folder.publish(files[file], self._folder.path(digest))
            self._publish_manifest(manifest)
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
        """Oldest first. A directory without a manifest is a version whose writer was killed."""
        return sorted_versions(version for version in _names(self._models / name) if self._path(name, version).exists())

    def _path(self, name: str, version: str) -> Path:
        return self._models / name / version / "manifest.json"

    def _manifest(self, name: str, version: str) -> bytes:
        return self._path(name, version).read_bytes()

    def _publish_manifest(self, manifest: Manifest) -> None:
        path = self._path(manifest.name, manifest.version)
        try:
            existing = path.read_bytes()
        except OSError:
            existing = b""
        if takes_its_place(manifest, existing):
            self._folder.publish(manifest.to_bytes(), path)


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
    )


def _names(directory: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in directory.iterdir() if VERSION.fullmatch(entry.name) or NAME.fullmatch(entry.name))
    except (FileNotFoundError, NotADirectoryError):
        return []
