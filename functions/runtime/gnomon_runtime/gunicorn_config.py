"""gunicorn's settings in an image, and its worker, which drains at SIGTERM.

One process holds the model; its threads wait for the executor behind them. `GNOMON_PORT` (8080), `GNOMON_THREADS` (requests and
probes at the same time: 64, or 32 more than `GNOMON_CONCURRENCY`), and OpenFaaS's `write_timeout` (30s: how long requests in
flight may take when the container is told to end).

SIGTERM → not ready → accept until the callers have noticed → finish the requests in flight → exit 0. gunicorn's own worker stops
accepting at once: connections that wait in the kernel's queue, with their requests sent, would be reset. This one goes on until
no new connection has come for `GNOMON_QUIET_S`, at most for half of the time that it has to end. Connections on which nothing
was ever sent, as callers open them in advance, are closed two seconds later.

A worker that is still loading the function exits at once. It has accepted nothing; and an exception raised in a signal handler is
lost in a `hasattr` of the module that is being imported, after which gunicorn would wait for as long as a request may take.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

from gunicorn.workers.gthread import ThreadWorker

from gnomon_core.units import parse_duration_s
from gnomon_runtime.http_app import EXTENSION

_variables = dict(os.environ)

bind = f"0.0.0.0:{_variables.get('GNOMON_PORT') or 8080}"
workers = 1
worker_class = "gnomon_runtime.gunicorn_config.DrainingWorker"
threads = int(_variables.get("GNOMON_THREADS") or max(64, int(_variables.get("GNOMON_CONCURRENCY") or 1) + 32))
keepalive = 75
graceful_timeout = int(parse_duration_s(_variables.get("write_timeout") or "30s"))
timeout = 60
worker_tmp_dir = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a heartbeat on disk could stop with the disk
control_socket_disable = True
"""gunicorn's control socket would need a writable file system, and nothing here uses it."""


def post_fork(_master: object, _worker: object) -> None:
    """Restore the default action: a SIGTERM before the worker has handlers must end it; the master's would only note it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


QUIET_S = 0.5
LINGER_S = 2.0


class DrainingWorker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's `gthread` worker, with a readiness that ends before the worker does."""

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
        self.method_queue.defer(lambda: None)  # wakes the event loop

    def accept(self, listener: Any) -> None:
        """Accept a new connection during the drain: its client has not noticed the drain yet, so the stop is postponed."""
        super().accept(listener)
        if self._stop_s is not None:
            self._stop_s = min(time.monotonic() + self._quiet_s, self._latest_s)

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        """An iteration of the worker's loop."""
        if self._stop_s is not None and self.alive:
            timeout = min(timeout, max(0.0, self._stop_s - time.monotonic()))
        super().wait_for_and_dispatch_events(timeout)
        if self._stop_s is not None and time.monotonic() >= self._stop_s:
            self.alive = False
            for silent in self.pending_conns:
                silent.timeout = min(silent.timeout, self._stop_s + LINGER_S)
