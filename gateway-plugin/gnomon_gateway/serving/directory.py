"""How the request path finds a function."""

from __future__ import annotations

from typing import Protocol

from gnomon_core.errors import GnomonError, not_found
from gnomon_core.functions import DEFAULT_NAMESPACE, FunctionKey
from gnomon_gateway.serving.function_runtime import FunctionRuntime


class FunctionDirectory(Protocol):
    """The deployed functions, by the name in a URL."""

    def lookup(self, name: str) -> FunctionRuntime | None:
        """The function called `name` or `name.namespace`; None where there is none.

        Called once per request on the event loop: a dictionary look-up, nothing that waits.
        """
        ...

    def refusal(self, name: str) -> GnomonError:
        """What a call of a function is answered that `lookup` does not find: `no_such_function`, or why it is away."""
        ...


def names_of(key: FunctionKey) -> tuple[str, ...]:
    """What a function may be called by in a URL."""
    return (str(key), key.name) if key.namespace == DEFAULT_NAMESPACE else (str(key),)


def no_such_function(name: str) -> GnomonError:
    """404: there is no such function."""
    return not_found("function_not_found", f"There is no function {name[:200]!r}.", "List them with: gnomon list")
