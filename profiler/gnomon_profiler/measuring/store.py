"""Profiles by model and machine, in the folder of a model repository.

    profiles/NAME@VERSION/MACHINE.json           a gnomon_core.profiles.ModelProfile
    profiles/NAME@VERSION/MACHINE.journal        the cells of a run that is not finished
    profiles/NAME@VERSION/MACHINE+ENGINE.json    the same of another engine than the layer program's

A profile belongs to one program, engine and machine: a server looks for that of its function's engine and its own machine. Below,
`machine` is such a name (`gnomon_core.profiles.profile_name`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from gnomon_core.atomic_files import make_folder, replace_file
from gnomon_core.profiles import ModelProfile

FOLDER = "profiles"


class ProfileStore:
    """The profiles under a repository's folder."""

    def __init__(self, repository: Path) -> None:
        self._root = repository / FOLDER

    def path(self, model: str, machine: str) -> Path:
        """The path of the profile of NAME@VERSION on a machine. The file may not exist."""
        return self._root / model / f"{machine}.json"

    def journal(self, model: str, machine: str) -> Path:
        """The path of the journal of an unfinished run."""
        return self.path(model, machine).with_suffix(".journal")

    def get(self, model: str, machine: str) -> ModelProfile | None:
        """The profile of NAME@VERSION on a machine; None where there is none that can be read."""
        try:
            return read_profile(self.path(model, machine))
        except (OSError, ValueError):
            return None

    def list(self, model: str | None = None) -> Iterator[tuple[Path, ModelProfile]]:
        """Every readable profile, of one model or of all, in the order of their names."""
        for path in sorted(self._root.glob(f"{model or '*'}/*.json")):
            try:
                yield path, read_profile(path)
            except (OSError, ValueError):
                continue

    def put(self, model: str, machine: str, profile: ModelProfile) -> Path:
        """Write a profile, whole or not at all."""
        path = self.path(model, machine)
        write_profile(path, profile)
        return path


def read_profile(path: Path) -> ModelProfile:
    """The profile in a file.

    Raises:
        ValueError: it holds none.

    """
    return ModelProfile.from_json(json.loads(path.read_bytes()))


def write_profile(path: Path, profile: ModelProfile) -> None:
    """Write a profile by renaming a finished file into place."""
    make_folder(path.parent)
    text = json.dumps(profile.to_json(), ensure_ascii=False, separators=(",", ":"))
    replace_file(path, f"{text}\n", durable=True, mode=0o644)
