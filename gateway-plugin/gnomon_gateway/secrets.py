"""The secrets of functions: written once, listed by name, never read back over HTTP.

A secret's value reaches the instances that are started after it was written.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from gnomon_core.errors import GnomonError, bad_request, conflict, not_found
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import FunctionStore

MAX_SECRET_BYTES = 256 * 1024
MAX_NAME_LENGTH = 253
# A DNS subdomain, as Kubernetes and faas-cli want it; it also makes a safe file name, without '/' and not beginning with '.'.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class Secrets:
    """The store's secrets, with the rules of changing them."""

    def __init__(self, store: FunctionStore) -> None:
        self._store = store
        # Looking and writing are two calls of the store: one change at a time keeps them together.
        self._changing = asyncio.Lock()

    async def names(self, namespace: str) -> Sequence[str]:
        return await asyncio.to_thread(self._store.secrets, namespace)

    async def create(self, key: FunctionKey, value: bytes) -> None:
        _check(key.name, value)
        async with self._changing:
            if await self._exists(key):
                raise conflict("secret_exists", f"The secret {key.name!r} exists in {key.namespace}.", "Change it with PUT.")
            await asyncio.to_thread(self._store.put_secret, key, value)

    async def update(self, key: FunctionKey, value: bytes) -> None:
        _check(key.name, value)
        async with self._changing:
            if not await self._exists(key):
                raise _unknown(key)
            await asyncio.to_thread(self._store.put_secret, key, value)

    async def delete(self, key: FunctionKey) -> None:
        async with self._changing:
            if not await asyncio.to_thread(self._store.delete_secret, key):
                raise _unknown(key)

    async def _exists(self, key: FunctionKey) -> bool:
        return await asyncio.to_thread(self._store.secret, key) is not None


def _check(name: str, value: bytes) -> None:
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        raise bad_request(
            "invalid_name",
            f"{name[:100]!r} is not a name for a secret.",
            "Use up to 253 lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit.",
        )
    if len(value) > MAX_SECRET_BYTES:
        raise GnomonError(
            413,
            "secret_too_large",
            f"The value has {len(value)} bytes; a secret may have {MAX_SECRET_BYTES}.",
            "Put large files into the image or the handler's folder.",
        )


def _unknown(key: FunctionKey) -> GnomonError:
    return not_found(
        "secret_not_found",
        f"There is no secret {key.name[:100]!r} in {key.namespace}.",
        "Create it with POST, or list them with GET.",
    )
