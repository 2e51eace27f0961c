"""What gateway replicas show each other: one secret for all of them, from a file, in a header of its own.

The client's `Authorization` belongs to the function and passes through; so this is another header, which is taken off before a
request goes on and is never believed on the listener for clients.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from gnomon_core.errors import GnomonError

HEADER = b"x-gnomon-peer"
"""Also the beginning of every header that replicas send each other."""
SHORTEST = 16


class PeerSecret:
    """The secret. It does not show in a traceback or a dump of this object's fields by name."""

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
        """Whether this is the secret. How long it takes says nothing of how near it was."""
        return hmac.compare_digest(hashlib.sha256(shown or b"").digest(), self._digest)


def read_peer_secret(path: Path) -> PeerSecret:
    """The secret in this file, without white space around it.

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
