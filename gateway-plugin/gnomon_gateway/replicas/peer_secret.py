"""The peer secret: one secret for all gateway replicas, read from a file and sent in a header of its own.

A client's `Authorization` belongs to the function and passes through. Replicas therefore use another header, which is removed
before a request is forwarded and is never believed on the listener for clients.

This module needs the standard library only: what reads the secret must not need the gateway's HTTP libraries.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from gnomon_core.errors import GnomonError

HEADER = b"x-gnomon-peer"
"""Every header that replicas send each other begins with this name."""
SHORTEST = 16


class PeerSecret:
    """The secret. No field of this object that a traceback or a dump shows is named after it."""

    def __init__(self, text: str) -> None:
        if len(text) < SHORTEST or not text.isascii() or not text.isprintable():
            raise GnomonError(
                500,
                "peer_secret_unfit",
                f"The secret of the gateway's replicas is not at least {SHORTEST} printable ASCII characters.",
                "Write another, as by: head -c 24 /dev/urandom | base64",
            )
        self.line = HEADER + b": " + text.encode() + b"\r\n"
        self._digest = hashlib.sha256(text.encode()).digest()

    def allows(self, shown: bytes | None) -> bool:
        """Whether `shown` is the secret, compared in constant time."""
        return hmac.compare_digest(hashlib.sha256(shown or b"").digest(), self._digest)


def read_peer_secret(path: Path) -> PeerSecret:
    """Read the secret from a file, without the white space around it.

    Raises:
        GnomonError: 500 `peer_secret_missing` or `peer_secret_unfit`.

    """
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise GnomonError(
            500,
            "peer_secret_missing",
            f"Gateway replicas share the secret in {path}, which cannot be read: {error}.",
            "Write it.",
        ) from None
    return PeerSecret(text)
