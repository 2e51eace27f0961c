"""Mosec: a Rust server with Python workers, one process each, and dynamic batching."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.environments import HERE, python_of
from benchmarks.programs import Endpoint, free_port, running

NAME = "mosec"


@contextlib.contextmanager
def serving(workload: str, folder: Path, *, batch: int, wait_ms: int = 0, deadline_s: float = 30.0) -> Iterator[Endpoint]:
    """Serve one workload with one worker of one thread. The server gives up a request after `deadline_s`."""
    port = free_port()
    command = [str(python_of(NAME)), str(HERE / "applications" / "mosec_application.py")]
    options = ["--address", "127.0.0.1", "--port", str(port), "--timeout", f"{deadline_s * 1e3:.0f}", "--log-level", "warning"]
    environment = {
        "WORKLOAD": workload,
        "BATCH": str(batch),
        "WAIT_MS": str(wait_ms),
        "PYTHONPATH": str(HERE.parent),
        "OMP_NUM_THREADS": "1",
    }
    with running([*command, *options], folder, environment) as program:
        program.wait_ready(f"http://127.0.0.1:{port}/")
        endpoint = Endpoint.of(NAME, f"http://127.0.0.1:{port}/inference", workload)
        endpoint.wait_for_answer()
        yield endpoint
