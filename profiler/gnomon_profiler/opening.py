"""Finding a model's manifest and judging its files: what repositories in a folder and in S3 do alike.

NAME or NAME@VERSION ─▶ which versions are there ─▶ the newest, or the one that is named ─▶ its manifest
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from gnomon_core.errors import GnomonError
from gnomon_profiler.entries import NAME, Manifest, corrupt_manifest, missing_model, newer, read_manifest


class Opening(ABC):
    """The half of a `ModelRepository` that does not depend on where it is."""

    def verify(self, reference: str) -> bool:
        """Whether every file of the entry has its SHA-256; each is read again."""
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
        raise missing_model(reference, (f"{model}@{there}" for model, there in self._keys()))

    def _read(self, name: str, version: str) -> Manifest:
        try:
            data = self._manifest(name, version)
        except OSError as error:
            raise corrupt_manifest(name, version, error) from None
        return read_manifest(name, version, data)

    @abstractmethod
    def _versions(self, name: str) -> list[str]:
        """Of a model, oldest first."""

    @abstractmethod
    def _keys(self) -> Iterable[tuple[str, str]]:
        """The name and version of every entry."""

    @abstractmethod
    def _manifest(self, name: str, version: str) -> bytes:
        """The document of a version; OSError where there is none."""

    @abstractmethod
    def _is_stored(self, manifest: Manifest) -> bool:
        """Whether all its files are stored and whole."""


def takes_its_place(manifest: Manifest, existing: bytes) -> bool:
    """Whether a manifest takes the place of this document; it does where that is none.

    Raises:
        GnomonError: 409 `model_exists` for another content.

    """
    try:
        stored = read_manifest(manifest.name, manifest.version, existing)
    except GnomonError:
        return True
    return newer(manifest, stored)
