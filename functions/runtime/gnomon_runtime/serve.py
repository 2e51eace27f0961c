"""The command of an image: gunicorn with our settings and our application, which ends at SIGTERM at any moment.

    python -m gnomon_runtime.serve [options of gunicorn]

A container's first process gets no SIGTERM that it has no handler for: one that comes while gunicorn is being imported, on a busy
node seconds, would be lost, and the pod go on until its grace is over.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

SETTINGS, APPLICATION = "python:gnomon_runtime.gunicorn_config", "gnomon_runtime.http_app:create_app()"


def main() -> None:
    """Serve until the process is told to end."""
    signal.signal(signal.SIGTERM, _end)
    from gunicorn.app.wsgiapp import run  # noqa: PLC0415 - the import takes seconds

    sys.argv[:] = ["gunicorn", "--config", SETTINGS, *sys.argv[1:], APPLICATION]
    run()


def _end(_number: int, _frame: FrameType | None) -> None:
    """Exit at once: nothing has begun, and an exception might be caught on its way."""
    os._exit(0)


if __name__ == "__main__":
    main()
