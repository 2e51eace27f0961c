"""The command of an image: gunicorn with our settings and our application, which ends at SIGTERM at any moment.

    python -m gnomon_runtime.serve [options of gunicorn]

The kernel discards SIGTERM for a container's first process unless it has a handler. A SIGTERM during the import of gunicorn,
which takes seconds on a busy node, would be lost, and the pod would run until its grace period is over.
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
    """Exit at once: nothing has started, and an exception could be swallowed by the code that is being imported."""
    os._exit(0)


if __name__ == "__main__":
    main()
