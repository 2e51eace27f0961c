"""How the request path finds a function."""

from __future__ import annotations

from typing import Protocol

from gnomon_gateway.serving.function_runtime import FunctionRuntime


class FunctionDirectory(Protocol):
    """The deployed functions, by the name in a URL."""

    def lookup(self, name: str) -> FunctionRuntime | None:
        """The function called `name` or `name.namespace`; None where there is none.

        Called once per request on the event loop: a dictionary look-up, nothing that waits.
        """
        ...
