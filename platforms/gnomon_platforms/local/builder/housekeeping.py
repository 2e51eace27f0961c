"""Built environments that nothing uses any more go: a torch among a handler's requirements is gigabytes.

What a stored function names or a running instance was made from is in use, and so is what was in use a moment ago, so that its
hour begins when its function goes. Looked at when serving begins, whenever a function changes, and from time to time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from gnomon_platforms.local.builder.builder import EnvironmentBuilder

EVERY_S = 1800.0
SETTLE_S = 1.0
"""A `gnomon remove -f stack.yml` changes many functions at once."""

_LOG = logging.getLogger(__name__)


class Housekeeping:
    """Collects for one builder.

    `images` says which images stored functions name, and may block; `contents` what instances run.
    """

    def __init__(
        self,
        builder: EnvironmentBuilder,
        images: Callable[[], Collection[str]],
        contents: Callable[[], Collection[str]],
        *,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._builder = builder
        self._images = images
        self._contents = contents
        self._settle_s = settle_s
        self._before: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Collect now and again until cancelled."""
        while True:
            self._changed.clear()
            try:
                removed = await self.collect()
            except Exception:  # noqa: BLE001 - a disk that refuses must not end what serves
                _LOG.exception("What was built and is not used any more could not be removed.")
            else:
                if removed:
                    _LOG.info("removed what was built and is not used any more: %s", ", ".join(removed))
            try:
                await asyncio.wait_for(self._changed.wait(), EVERY_S)
                await asyncio.sleep(self._settle_s)
            except TimeoutError:
                continue

    async def collect(self) -> list[str]:
        """Remove what has not been used for long enough, and say what."""
        images, contents = frozenset(await asyncio.to_thread(self._images)), frozenset(self._contents())
        images_before, contents_before = self._before
        self._before = images, contents
        return await self._builder.collect(images | images_before, contents | contents_before)

    def look_again(self) -> None:
        """Something has changed."""
        self._changed.set()
