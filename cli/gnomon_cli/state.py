"""Where `gnomon serve` keeps what must outlive it, and where commands on the same machine find its secrets.

`--state`, else GNOMON_STATE, else `$XDG_STATE_HOME/gnomon`, else `~/.local/state/gnomon`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

VARIABLE = "GNOMON_STATE"


def state_folder(flag: str, environment: Mapping[str, str]) -> Path:
    """The state folder, which need not exist yet."""
    named = flag or environment.get(VARIABLE, "")
    if named:
        return Path(named).expanduser().absolute()
    home = environment.get("XDG_STATE_HOME", "") or "~/.local/state"
    return Path(home).expanduser() / "gnomon"


def payload_secret_file(state: Path) -> Path:
    """The secret that signs builds. `gnomon serve` makes it, readable by its user only; `gnomon up` reads it."""
    return state / "payload-secret"
