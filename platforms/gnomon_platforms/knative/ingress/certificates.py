"""A Secret's certificate and key, checked: only PEM blocks that belong together reach HAProxy."""

from __future__ import annotations

import base64
import binascii
import os
import re
import ssl
from collections.abc import Iterator
from typing import Any

from gnomon_platforms.knative.ingress.model import Key

CERTIFICATE_FIELD, KEY_FIELD = "tls.crt", "tls.key"
COLUMNS = 64
_BLOCK = re.compile(r"-----BEGIN (CERTIFICATE|(?:EC |RSA )?PRIVATE KEY)-----([A-Za-z0-9+/=\s]+)-----END \1-----")


def secret_pem(document: dict[str, Any]) -> tuple[Key, str]:
    """The name of a Secret, and its certificates and key as one text; empty where they are no certificate and its key."""
    metadata, data = document["metadata"], document.get("data") or {}
    key: Key = (metadata["namespace"], metadata["name"])
    try:
        parts = [base64.b64decode(data.get(name, ""), validate=True).decode() for name in (CERTIFICATE_FIELD, KEY_FIELD)]
    except (binascii.Error, UnicodeDecodeError):
        return key, ""
    pem = "".join(_blocks("\n".join(parts)))
    return key, pem if _fits(pem) else ""


def _blocks(text: str) -> Iterator[str]:
    """Each block written anew, with nothing in between."""
    for found in _BLOCK.finditer(text):
        body = "".join(found[2].split())
        lines = [body[start : start + COLUMNS] for start in range(0, len(body), COLUMNS)]
        yield "\n".join([f"-----BEGIN {found[1]}-----", *lines, f"-----END {found[1]}-----", ""])


def _fits(pem: str) -> bool:
    """Whether the key is the certificate's. OpenSSL reads files only, so it is given one that nobody else sees."""
    descriptor = os.memfd_create("certificate")
    try:
        with open(descriptor, "w", closefd=False) as file:
            file.write(pem)
        # A key with a passphrase is refused: nobody is there to be asked for it.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
    except (ssl.SSLError, OSError, ValueError):
        return False
    finally:
        os.close(descriptor)
    return True
