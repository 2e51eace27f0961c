"""Authentication of callers: OpenFaaS's basic authentication, with the same variables and files.

`basic_auth=true` turns it on; the files `basic-auth-user` and `basic-auth-password` in `secret_mount_path` hold the credentials.
Both are compared whole and in constant time, whatever the caller sent, so that no answer is quicker than another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from pathlib import Path

from gnomon_core.errors import INTERNAL_HEADER, INTERNAL_NAME, GnomonError

DEFAULT_SECRET_FOLDER = "/run/secrets/"  # noqa: S105 - a folder, as OpenFaaS names it
DENIED_BODY = b"invalid credentials"
DENIED_HEADERS: Mapping[str, str] = {
    "WWW-Authenticate": 'Basic realm="Restricted"',
    "Content-Type": "text/plain; charset=utf-8",
    INTERNAL_HEADER: INTERNAL_NAME,
}
_TRUE = ("true", "1", "yes")


class BasicAuth:
    """A user and password. Only their digests are kept, so that neither appears in a traceback or a dump of this object."""

    def __init__(self, user: str, password: str) -> None:
        self._user = _digest(user.encode())
        self._password = _digest(password.encode())

    def allows(self, authorization: str | None) -> bool:
        """Whether an `Authorization` header carries the credentials."""
        user, password = _read_header(authorization or "")
        same_user = hmac.compare_digest(_digest(user), self._user)
        same_password = hmac.compare_digest(_digest(password), self._password)
        return same_user & same_password


def read_basic_auth(environment: Mapping[str, str]) -> BasicAuth | None:
    """The credentials that the environment names; None where authentication is off.

    Raises:
        GnomonError: 500 `credentials_missing`, where it is on and a file is missing or empty.

    """
    if environment.get("basic_auth", "").strip().lower() not in _TRUE:
        return None
    folder = Path(environment.get("secret_mount_path") or DEFAULT_SECRET_FOLDER)
    return BasicAuth(_read_file(folder / "basic-auth-user"), _read_file(folder / "basic-auth-password"))


def require_safe_binding(host: str, auth: BasicAuth | None) -> None:
    """Refuse to listen where others can reach us while anyone may deploy code.

    Raises:
        GnomonError: 500 `unsafe_binding`.

    """
    if auth is None and not is_loopback(host):
        raise GnomonError(
            500,
            "unsafe_binding",
            f"Listening on {host or 'every address'} without authentication would let anyone who reaches it run code here.",
            "Set basic_auth=true and secret_mount_path (with basic-auth-user and basic-auth-password), or use 127.0.0.1.",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach this address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _read_header(authorization: str) -> tuple[bytes, bytes]:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return b"", b""
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return b"", b""
    return (user, password) if colon else (b"", b"")


def _read_file(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _missing(path, str(error)) from None
    if not text:
        raise _missing(path, "it is empty")
    return text


def _missing(path: Path, reason: str) -> GnomonError:
    return GnomonError(
        500,
        "credentials_missing",
        f"basic_auth is on and {path} cannot be used: {reason}.",
        "Write the user and the password there, or set secret_mount_path to their folder.",
    )


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
