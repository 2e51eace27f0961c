"""The links that are listened to: which of them have something to say, and which wait to be rid of something."""

from __future__ import annotations

import selectors
from collections.abc import Callable

from gnomon_coordinator.links import Link, LinkBrokenError


class Switchboard:
    """A selector that knows what each link waits for."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._watched: dict[Link, int] = {}

    def ready(self, patience_s: float | None) -> set[Link]:
        """The links that can be heard, or take more; none where nothing has come for so long."""
        return {key.data for key, _ in self._selector.select(patience_s)}

    def watch(self, link: Link) -> None:
        """Wait for this link to be readable, and writable while something waits to be sent."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.wants_to_write else 0)
        known = self._watched.get(link)
        if known is None:
            self._selector.register(link.socket, events, link)
        elif known != events:
            self._selector.modify(link.socket, events, link)
        self._watched[link] = events

    def flush(self, link: Link, lost: Callable[[LinkBrokenError], None]) -> None:
        """Send what a link takes now of what waits; `lost` hears of it if it takes nothing any more."""
        if link.wants_to_write:
            try:
                link.flush()
            except LinkBrokenError as error:
                lost(error)
                return
            self.watch(link)

    def drop(self, link: Link) -> None:
        """Close a link and forget it."""
        if self._watched.pop(link, None) is not None:
            self._selector.unregister(link.socket)
        link.close()

    def close(self) -> None:
        for link in list(self._watched):
            self.drop(link)
        self._selector.close()
