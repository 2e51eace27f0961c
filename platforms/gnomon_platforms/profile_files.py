"""Profiles and layer blocks of the models that functions serve, read from files and kept while these stay the same.

FOLDER/NAME@VERSION/MACHINE.json     a gnomon_core.profiles.ModelProfile; MACHINE is the Profiler's name for a machine, with
                                     the engine's behind a "+" where that is not the layer program
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnomon_core.blocks import Layers
from gnomon_core.engines import PROGRAM
from gnomon_core.profiles import ModelProfile, profile_name
from gnomon_core.signature import ModelSignature

_LOG = logging.getLogger(__name__)
_Stamp = tuple[int, int, int]


class ProfileFiles:
    """The profiles below a folder, one for each engine that was measured.

    `machine_id` is the name of this machine; without one the newest profile is taken.
    """

    def __init__(self, folder: Path | None, machine_id: str = "") -> None:
        self._folder = folder
        self._machine_id = machine_id
        self._read: dict[Path, tuple[_Stamp, ModelProfile | None]] = {}
        self._layers = LayerFiles()

    def of(self, signature: ModelSignature, options: Mapping[str, Any]) -> ModelProfile | None:
        """The profile of the model that these options of a launch name."""
        model = f"{signature.model}@{signature.version}"
        digest, engine = options["sha256"].get("program.json", ""), options.get("engine", PROGRAM)
        return self.find(model, digest, self._layers.of(options), engine)

    def find(self, model: str, program_sha256: str, layers: Layers | None = None, engine: str = PROGRAM) -> ModelProfile | None:
        """The profile of NAME@VERSION on this machine, else its newest on any; None without one of this program and engine.

        Where `layers` are the model's blocks, the profile's must be the same: its block numbers would name other operations.
        """
        if self._folder is None:
            return None
        found: list[tuple[bool, int, ModelProfile]] = []
        for path in sorted((self._folder / model).glob("*.json")):
            profile, stamp = self._profile(path)
            if profile is None or profile.engine != engine or profile.layers.program_sha256 != program_sha256:
                continue
            if _same_blocks(profile.layers, layers):
                found.append((path.stem == profile_name(self._machine_id, engine), stamp[0], profile))
        return max(found, key=lambda candidate: candidate[:2])[2] if found else None

    def _profile(self, path: Path) -> tuple[ModelProfile | None, _Stamp]:
        try:
            status = path.stat()
        except OSError:
            return None, (0, 0, 0)
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        cached = self._read.get(path)
        if cached is None or cached[0] != stamp:
            # While the file is being overwritten, the last complete content stays valid.
            profile = _read_profile(path) or (None if cached is None else cached[1])
            cached = self._read[path] = stamp, profile
        return cached[1], stamp


def _same_blocks(measured: Layers, stored: Layers | None) -> bool:
    return stored is None or [block.end for block in measured.blocks] == [block.end for block in stored.blocks]


def _read_profile(path: Path) -> ModelProfile | None:
    try:
        return ModelProfile.from_json(json.loads(path.read_bytes()))
    except (OSError, ValueError, AttributeError) as error:
        _LOG.warning("the profile %s cannot be read: %s", path, error)
        return None


class LayerFiles:
    """The layer blocks in files of a model repository, which never change."""

    def __init__(self) -> None:
        self._read: dict[str, Layers] = {}

    def read(self, path: str) -> Layers:
        """The blocks in this file.

        Raises:
            OSError: it cannot be read.
            ValueError: it holds none.

        """
        if path not in self._read:
            self._read[path] = Layers.from_json(json.loads(Path(path).read_bytes()))
        return self._read[path]

    def of(self, options: Mapping[str, Any]) -> Layers | None:
        """The blocks of the model that these options of a launch name; None where it has none, or they cannot be read."""
        path = options.get("layers")
        try:
            return None if path is None else self.read(str(path))
        except (OSError, ValueError) as error:
            _LOG.warning("the layer blocks %s cannot be read: %s", path, error)
            return None
