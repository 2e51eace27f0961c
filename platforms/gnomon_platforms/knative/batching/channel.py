"""The batch channel to a Revision's pod, through its queue-proxy: as to a function behind a provider, but for where it ends.

    POST http://POD:8012/gnomon/batch    a batch as one, where the pod has a token for it
    … http://POD:8012/PATH               its requests one after the other, as they came, else

queue-proxy counts a batch as one request; it is what keeps a pod until its requests are answered. A pod that is no longer ready
takes nothing more: what is under way is answered first, and what was to be sent waits for another.

A Body says with each answer which Shadows its next batch will be computed with: nobody else tells the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from gnomon_core.pairs import Pair
from gnomon_core.told_pairs import shadows_of
from gnomon_core.wire import Frame
from gnomon_platforms.provider.channel import Around, Done, ProviderChannel, Stream
from gnomon_platforms.provider.exchange import Route


class PodChannel(ProviderChannel):
    """See `gnomon_core.seams.BatchChannel`. `on_shadows` gets those that its Body names, before its answer is handed on."""

    keeps_host = True
    believes_marks = False
    _retiring: str | None = None

    def __init__(
        self,
        route: Route,
        around: Around,
        token: str,
        on_lost: Callable[[str], None],
        on_shadows: Callable[[Mapping[str, Pair]], None],
    ) -> None:
        super().__init__(route, around, token, on_lost)
        self._on_shadows = on_shadows

    def retire(self, reason: str) -> None:
        """Take no further batch, and end when the one in flight has been answered."""
        self._retiring = self._retiring or reason
        if self._task is None:
            self._end(self._retiring)

    def run(self, frame: Frame, done: Done, stream: Stream | None = None) -> None:
        """Send a batch; one that comes to a channel that retires was not sent."""
        if self._retiring is not None:
            self.unread = True
            asyncio.get_running_loop().call_soon(done, None)
            return

        def carried(result: Frame | None) -> None:
            try:
                done(result)
            finally:
                if self._retiring is not None:
                    self._end(self._retiring)

        super().run(frame, carried, stream)

    def _answered(self, result: Frame) -> None:
        self._on_shadows(shadows_of(result))

    def _end(self, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self._on_lost(reason)
