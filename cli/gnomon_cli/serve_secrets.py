"""The gateway's own credentials: OpenFaaS's variables and files where they are set, files in the state folder otherwise."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from gnomon_cli.commands.serve_options import ServeOptions
from gnomon_gateway.auth import BasicAuth, read_basic_auth

USER = "admin"


def basic_auth(options: ServeOptions) -> BasicAuth | None:
    """The credentials to ask for; None where authentication is off. Missing ones are made once, in the state folder."""
    if not options.basic_auth:
        return None
    folder = options.secrets or options.state / "secrets"
    if options.secrets is None:
        _make(folder)
    return read_basic_auth({"basic_auth": "true", "secret_mount_path": str(folder)})


def _make(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, value in (("basic-auth-user", USER), ("basic-auth-password", secrets.token_urlsafe(24))):
        try:
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        with os.fdopen(descriptor, "w") as file:
            file.write(value)
