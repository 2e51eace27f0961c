"""gunicorn's settings in an image: one process holds the model; its threads wait for the executor behind them.

`GNOMON_PORT` (8080), `GNOMON_THREADS` (requests and probes at the same time: 64, or 32 more than `GNOMON_CONCURRENCY`), and
OpenFaaS's `write_timeout` (30s: how long what is in flight may take when the container is told to end).
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from gnomon_core.units import parse_duration_s

_variables = dict(os.environ)

bind = f"0.0.0.0:{_variables.get('GNOMON_PORT') or 8080}"
workers = 1
worker_class = "gnomon_runtime.http_worker.DrainingWorker"
threads = int(_variables.get("GNOMON_THREADS") or max(64, int(_variables.get("GNOMON_CONCURRENCY") or 1) + 32))
keepalive = 75
graceful_timeout = int(parse_duration_s(_variables.get("write_timeout") or "30s"))
timeout = 60
worker_tmp_dir = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a heartbeat on disk could stop with the disk
control_socket_disable = True
"""gunicorn's control socket would need a writable file system, and nothing here uses it."""


def post_fork(_master: object, _worker: object) -> None:
    """Let a worker end by a SIGTERM that comes before it has handlers of its own; the master's would only note it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
