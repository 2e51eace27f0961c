"""A gunicorn worker that loses nothing when it is told to end.

SIGTERM → not ready → go on accepting until the callers have noticed → finish what is in flight → exit 0. gunicorn's own worker
stops accepting at once: connections that wait in the kernel's queue, with their requests sent, would be reset. This one goes on
until no new connection has come for `GNOMON_QUIET_S`, at most for half of the time that it has to end. Connections on which
nothing was ever sent, as callers open them to have one, are closed two seconds later.

One that is still loading the function ends at once. It has accepted nothing; and an exception from within a signal's handler is
lost in the `hasattr` of whatever is being imported, after which gunicorn would wait for as long as a request may take.
"""

from __future__ import annotations

import os
import time
from types import FrameType
from typing import Any

from gunicorn.workers.gthread import ThreadWorker

from gnomon_runtime.http_app import EXTENSION

QUIET_S = 0.5
LINGER_S = 2.0


class DrainingWorker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's `gthread` with a readiness that ends before it does."""

    _quiet_s: float
    _stop_s: float | None = None
    _latest_s: float = 0.0
    alive: bool

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM: the first time begins to drain, the second stops accepting."""
        if not hasattr(self, "wsgi"):
            os._exit(0)
        if self._stop_s is not None:
            super().handle_exit(sig, frame)
            return
        self.wsgi.extensions[EXTENSION].draining = True
        self._quiet_s = float(os.environ.get("GNOMON_QUIET_S") or QUIET_S)
        now_s = time.monotonic()
        self._latest_s = now_s + self.cfg.graceful_timeout / 2
        self._stop_s = min(now_s + self._quiet_s, self._latest_s)
        self.method_queue.defer(lambda: None)  # wakes the loop

    def accept(self, listener: Any) -> None:
        """A caller that has not noticed yet."""
        super().accept(listener)
        if self._stop_s is not None:
            self._stop_s = min(time.monotonic() + self._quiet_s, self._latest_s)

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        """One round of the worker's loop."""
        if self._stop_s is not None and self.alive:
            timeout = min(timeout, max(0.0, self._stop_s - time.monotonic()))
        super().wait_for_and_dispatch_events(timeout)
        if self._stop_s is not None and time.monotonic() >= self._stop_s:
            self.alive = False
            for silent in self.pending_conns:
                silent.timeout = min(silent.timeout, self._stop_s + LINGER_S)
