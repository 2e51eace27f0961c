"""What serves which kind of function: something that takes the launch and returns the application.

Its module is imported when the first instance of its kind starts, so that a handler's own environment needs neither torch nor
what another kind uses. Nobody hands a launch to an image: its variables say what it serves.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from gnomon_core.launch import Launch
from gnomon_runtime.application import Application

KINDS = {
    "model": "gnomon_runtime.body:ModelApplication",
    "handler": "gnomon_runtime.handler:load_application",
    "process": "gnomon_runtime.process:ProcessApplication",
    "redirect": "gnomon_runtime.process:RedirectApplication",
}


def load(launch: Launch) -> Application:
    """The application of a launch, ready to answer.

    Raises:
        ValueError: the kind is unknown.
        Exception: whatever the function's own code raises while it is loaded.

    """
    if launch.kind not in KINDS:
        raise ValueError(f"{launch.kind!r} is no kind of function; known: {', '.join(KINDS)}")
    module, _, name = KINDS[launch.kind].partition(":")
    return cast("Application", getattr(importlib.import_module(module), name)(launch))


def launch_from(environment: Mapping[str, str]) -> Launch:
    """What an image serves: the handler in ./function, as its variables describe it."""
    cores = int(environment.get("GNOMON_CORES") or len(os.sched_getaffinity(0)))
    name = environment.get("GNOMON_FUNCTION") or "function"
    folder = environment.get("GNOMON_HANDLER_FOLDER") or "function"
    return Launch(
        "handler",
        name,
        environment.get("HOSTNAME") or name,
        cores,
        int(environment.get("GNOMON_MAX_BATCH") or 64),
        dict(environment),
        {"folder": str(Path(folder).resolve())},
        int(environment.get("GNOMON_CONCURRENCY") or 0) or None,
    )
