"""One question to somebody who is not ours: a user's pod, or whoever stands behind a Service in a user's namespace.

What comes back is not trusted to be short, plain or from there: no more is taken in than an answer may have, nothing is unpacked,
and nobody is followed to another address. A pod that answered with gigabytes, or with a megabyte that unpacks to them, would
otherwise end the autoscaler of everybody.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp

PLAIN = "identity"
_OK = 200


async def asked(
    session: aiohttp.ClientSession, url: str, *, most_bytes: int, patience_s: float, headers: Mapping[str, str] | None = None
) -> bytes | None:
    """What a page says; None where it does not say 200, says more than `most_bytes`, or is not done in `patience_s`."""
    import aiohttp  # noqa: PLC0415 - comes with the session

    with contextlib.suppress(aiohttp.ClientError, OSError, ValueError):
        async with session.get(
            url,
            headers={"Accept-Encoding": PLAIN, **(headers or {})},
            timeout=aiohttp.ClientTimeout(total=patience_s),
            allow_redirects=False,
            auto_decompress=False,
        ) as answer:
            if answer.status == _OK and answer.headers.get("Content-Encoding", PLAIN) == PLAIN:
                return await _read(answer.content, most_bytes)
    return None


async def _read(content: aiohttp.StreamReader, most_bytes: int) -> bytes | None:
    """All of it, or None as soon as there is more of it. A connection that is left in the middle is closed."""
    data = bytearray()
    async for part in content.iter_any():
        data += part
        if len(data) > most_bytes:
            return None
    return bytes(data)
