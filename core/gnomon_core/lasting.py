"""Platforms whose instances outlive who asked for them, such as a cluster's.

    a gateway stops ▶ answers what it has ▶ lets its instances go, which run on
    a gateway starts ▶ `adopt` for each function ▶ they are told of as ready, like those that were just created
                                                 ▶ `shadow_found` ▶ `pair_changed`: their Shadows work on for them

Every other platform ends its instances when it stops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionKey, FunctionSpec


@runtime_checkable
class Lasting(Protocol):
    """What a `gnomon_core.seams.Platform` offers beside that, if `stop` leaves its instances running."""

    def adopt(self, spec: FunctionSpec, version: int) -> tuple[Instance, ...]:
        """Look after the instances that an earlier process has left for this function, of this version or an earlier one.

        They come back STARTING, each under the id and the version that it had; what follows is told as after `create`. Their
        Shadows are told of later (`PlatformListener.shadow_found`), as soon as their nodes have said that they are there; those
        whose Body is not adopted end.
        """
        ...

    def hindrance(self, function: str) -> GnomonError | None:
        """Why the function's instances are not ours to create, resize or destroy now; None where they are."""
        ...


@runtime_checkable
class Warns(Protocol):
    """What a platform offers beside all that whose users look at functions with tools of its own."""

    def warn(self, function: str, reason: str, text: str) -> None:
        """Say this of a function there; `reason` is one word. It is said once, however often that is asked for."""
        ...


@runtime_checkable
class Restartable(Protocol):
    """What a platform offers beside all that whose users restart functions with tools of its own."""

    def watch_restarts(self, told: Callable[[FunctionKey, int], None]) -> None:
        """Call `told` where somebody asks that all instances of this version of a function be replaced; it may be told again."""
        ...


@runtime_checkable
class Explains(Protocol):
    """What a platform offers beside all that which sees why an instance takes long to start."""

    def trouble(self, function: str) -> str:
        """Why instances that are starting do not get on, in one line; empty where nothing is known."""
        ...
