"""HTTP connections to instances elsewhere, as many as there are batches under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp

CONNECT_TIMEOUT_S = 3.0
POD_KEEP_ALIVE_S = 60.0
"""How long an idle connection to a pod of ours is kept for the next batch: less than our instances keep theirs."""
FOREIGN_KEEP_ALIVE_S = 5.0
"""Shorter than any provider or proxy keeps one: what it closes under a request would be a lost one."""


def open_session(
    keep_alive_s: float = POD_KEEP_ALIVE_S, *, decompress: bool = True, connect_timeout_s: float = CONNECT_TIMEOUT_S
) -> aiohttp.ClientSession:
    """Connecting has a bound; how long an answer may take is known to whoever waits for it.

    With `decompress` False an answer's body is left as it was sent: it is passed on.
    """
    import aiohttp  # noqa: PLC0415 - only who has instances elsewhere needs it

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=keep_alive_s),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),  # the library's own total is 300 s
        auto_decompress=decompress,
        trust_env=False,
    )
