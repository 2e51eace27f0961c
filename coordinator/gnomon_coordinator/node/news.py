"""What the platform is told: the whole state of the node, whenever it is another than the one that it has seen.

A state and not events: whoever has missed some, or has come anew, knows as much as everybody else after one answer. `incarnation`
says whether the numbers of versions are those of the same process.
"""

from __future__ import annotations

import asyncio
import secrets


class News:
    """A version that grows, and those who wait for a later one. Lives on an event loop."""

    def __init__(self) -> None:
        self.incarnation = secrets.token_hex(8)
        self.version = 1
        self._happened = asyncio.Event()
        self._over = False

    def happened(self) -> None:
        """Something is different now."""
        self.version += 1
        self._happened.set()
        self._happened = asyncio.Event()

    async def later_than(self, incarnation: str, version: int, patience_s: float) -> None:
        """Return when this version is history, or after so long."""
        while incarnation == self.incarnation and version >= self.version and patience_s > 0 and not self._over:
            try:
                await asyncio.wait_for(self._happened.wait(), patience_s)
            except TimeoutError:
                return

    def end(self) -> None:
        """Nobody waits any more."""
        self._over = True
        self.happened()
