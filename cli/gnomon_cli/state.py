"""Where `gnomon serve` keeps what must outlive it, and where commands on the same machine find its secrets.

`--state`, else GNOMON_STATE, else `.gnomon` in the working directory: a project's functions stay with the project.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

VARIABLE = "GNOMON_STATE"
DEFAULT = ".gnomon"
FETCHED = "fetched-models"
"""Below it: what has been fetched from a model repository that is elsewhere, with its profiles."""


def state_folder(flag: str, environment: Mapping[str, str]) -> Path:
    """The state folder, which need not exist yet."""
    return Path(flag or environment.get(VARIABLE, "") or DEFAULT).expanduser().absolute()


def payload_secret_file(state: Path) -> Path:
    """The secret that signs builds. `gnomon serve` makes it, readable by its user only; `gnomon up` reads it."""
    return state / "payload-secret"
