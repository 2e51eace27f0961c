"""What serves which kind of function: something that takes the launch and returns the application.

Its module is imported when the first instance of its kind starts, so that a handler's own environment needs neither torch nor
what another kind uses.
"""

from __future__ import annotations

import importlib
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
