"""The logins of gateways in `~/.openfaas/config.yml`, faas-cli's file: a login by one program serves the other.

    auths:
    - gateway: http://127.0.0.1:8080
      auth: basic
      token: base64(user:password)

OPENFAAS_CONFIG names another folder; in CI (CI=true or 1) it is `.openfaas` in the working directory.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gnomon_cli.output import CommandFailed
from gnomon_core.atomic_files import make_folder, replace_file

BASIC = "basic"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The Authorization header's value, or nothing."""

    authorization: str = ""


def config_file(environment: Mapping[str, str]) -> Path:
    """The path of the file that stores logins."""
    folder = environment.get("OPENFAAS_CONFIG", "")
    if not folder:
        folder = ".openfaas" if environment.get("CI") in {"true", "1"} else "~/.openfaas"
    return Path(folder).expanduser() / "config.yml"


def basic(user: str, password: str) -> Credentials:
    """Credentials of a user and password."""
    return Credentials(f"Basic {_encode(user, password)}")


def find(gateway: str, token: str, environment: Mapping[str, str]) -> Credentials:
    """The credentials for a gateway: a basic login that was kept, else the given token, else a token that was kept."""
    for entry in _entries(config_file(environment)):
        if entry.get("gateway") == gateway:
            kept = str(entry.get("token", ""))
            if entry.get("auth") == BASIC:
                _check(kept, config_file(environment))
                return Credentials(f"Basic {kept}")
            token = token or kept
    return Credentials(f"Bearer {token}" if token else "")


def remember(gateway: str, user: str, password: str, environment: Mapping[str, str]) -> Path:
    """Keep a login, replacing the gateway's earlier one. The file can be read by its owner only."""
    entry = {"gateway": gateway, "auth": BASIC, "token": _encode(user, password)}
    return _change(gateway, entry, environment)


def forget(gateway: str, environment: Mapping[str, str]) -> bool:
    """Remove a gateway's login. Returns whether there was one."""
    known = any(entry.get("gateway") == gateway for entry in _entries(config_file(environment)))
    if known:
        _change(gateway, None, environment)
    return known


def _change(gateway: str, entry: dict[str, Any] | None, environment: Mapping[str, str]) -> Path:
    path = config_file(environment)
    entries = _entries(path)
    index = next((place for place, known in enumerate(entries) if known.get("gateway") == gateway), len(entries))
    entries[index : index + 1] = [entry] if entry else []
    make_folder(path.parent, 0o700)
    replace_file(path, yaml.safe_dump({"auths": entries}, sort_keys=False), durable=True, mode=0o600)
    return path


def _entries(path: Path) -> list[dict[str, Any]]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise CommandFailed(
            f"{path} cannot be read: {str(error).splitlines()[0]}.", "Repair or remove it, then log in again."
        ) from None
    auths = document.get("auths") if isinstance(document, dict) else None
    return [entry for entry in auths or [] if isinstance(entry, dict)]


def _encode(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def _check(token: str, path: Path) -> None:
    try:
        decoded = base64.b64decode(token, validate=True)
    except binascii.Error:
        decoded = b""
    if b":" not in decoded:
        raise CommandFailed(f"{path} holds a login that cannot be read.", "Log in again with `gnomon login`.")
