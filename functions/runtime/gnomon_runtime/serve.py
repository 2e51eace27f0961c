"""The command of an image: serves what lies in its folder `function`, and ends at SIGTERM at any moment.

    function/handler.py         gunicorn with our settings and our application; options are gunicorn's
    function/application.yml    `gnomon serve` for one application (INFaaS); options are its own

    python -m gnomon_runtime.serve [options]

The kernel discards SIGTERM for a container's first process unless it has a handler. A SIGTERM during the import of a server,
which takes seconds on a busy node, would be lost, and the pod would run until its grace period is over.

In an application's container the gateway, its queues and the instances of all variants are processes of that container: it is
INFaaS's worker. Clients reach the application's port alone. The gateway's own routes are on loopback, for `kubectl exec`.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

SETTINGS, APPLICATION = "python:gnomon_runtime.gunicorn_config", "gnomon_runtime.http_app:create_app()"
DECLARED = Path("function", "application.yml")
MODELS = Path("function", "models")
"""The model repository in an application's image."""
GATEWAY = "gnomon_cli.main"
"""The module of `gnomon`, which an instance's process never imports."""
PORT, CONTROL_PORT = "8080", "8081"


def main() -> None:
    """Serve until SIGTERM."""
    signal.signal(signal.SIGTERM, _end)
    if DECLARED.is_file():
        sys.argv[:] = ["gnomon", "serve", *application_options(os.environ), *sys.argv[1:]]
        importlib.import_module(GATEWAY).main()
        return
    from gunicorn.app.wsgiapp import run  # noqa: PLC0415 - the import takes seconds

    sys.argv[:] = ["gunicorn", "--config", SETTINGS, *sys.argv[1:], APPLICATION]
    run()


def application_options(environment: Mapping[str, str]) -> list[str]:
    """The options of `gnomon serve` in an application's container, by the variables that a Body's image knows."""
    models = environment.get("GNOMON_MODELS") or (str(MODELS) if MODELS.is_dir() else "/models")
    largest = environment.get("GNOMON_MAX_BODY_BYTES")
    return [
        *("--application", str(DECLARED)),
        *("--application-port", environment.get("GNOMON_PORT") or PORT),
        *("--port", CONTROL_PORT),
        *("--models", models),
        *("--state", environment.get("GNOMON_STATE") or str(Path(tempfile.gettempdir(), "gnomon"))),
        *(("--max-body", largest) if largest else ()),
        # The image's models are read-only, and were converted when they were added.
        "--no-convert",
    ]


def _end(_number: int, _frame: FrameType | None) -> None:
    """Exit at once: nothing has started, and an exception could be swallowed by the code that is being imported."""
    os._exit(0)


if __name__ == "__main__":
    main()
