"""Certificates of Secrets: only PEM blocks that belong together reach HAProxy, and a good one stays until there is a better."""

from __future__ import annotations

import base64
import binascii
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias

from gnomon_platforms.knative.ingress.model import Key

CERTIFICATE_FIELD, KEY_FIELD = "tls.crt", "tls.key"
COLUMNS = 64
_BLOCK = re.compile(r"-----BEGIN (CERTIFICATE|(?:EC |RSA )?PRIVATE KEY)-----([A-Za-z0-9+/=\s]+)-----END \1-----")


Takes: TypeAlias = Callable[[Collection[str]], Awaitable[Collection[str]]]
"""Which of these certificates HAProxy takes."""


class Certificates:
    """The last good certificate of each Secret that is named, and what is wrong with those that have none now.

    A Secret may go bad while it is served, by a renewal that was cut short or a key of another certificate. What it had goes on
    being shown then: HAProxy takes all certificates or none, so a bad one would keep every later change of anybody's from it.
    """

    def __init__(self) -> None:
        self._good: dict[Key, str] = {}
        self._faults: dict[Key, str] = {}

    async def renew(self, found: Mapping[Key, str | None], takes: Takes) -> None:
        """Look at all Secrets that are named: `found` is what `secret_pem` makes of each, None where there is none."""
        taken = await takes({pem for pem in found.values() if pem})
        good: dict[Key, str] = {}
        faults: dict[Key, str] = {}
        for key, pem in found.items():
            if pem and pem in taken:
                good[key] = pem
                continue
            what = "there is no" if pem is None else "no certificate with its key is in the"
            faults[key] = f"{what} Secret {'/'.join(key)}"
            # Whoever deletes a Secret wants its key to be used no more.
            if pem is not None and key in self._good:
                good[key] = self._good[key]
        self._good, self._faults = good, faults

    def pem(self, key: Key) -> str | None:
        """The last good one with its key; None where there was none."""
        return self._good.get(key)

    def fault(self, key: Key) -> str:
        """What is wrong with a Secret now; empty where nothing is."""
        return self._faults.get(key, "")


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
