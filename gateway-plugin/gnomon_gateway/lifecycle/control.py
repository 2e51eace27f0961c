"""What the gateway asks of the autoscaler. The two meet here, in the composition root's adapter, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gnomon_core.decisions import DecisionRecord
from gnomon_core.profiles import ModelProfile
from gnomon_core.settings import Settings


class ScalingControl(Protocol):
    """The autoscaler as the gateway sees it. Everything but the checks is cheap and called on the event loop."""

    def check(self, settings: Settings) -> str:
        """The scheduling policy that the function's scaling policy asks for.

        Raises:
            GnomonError: 400 for a policy that is not known or that this platform cannot carry out.

        """
        ...

    def check_profile(self, settings: Settings, profile: ModelProfile | None) -> None:
        """Whether the function's scaling policy has the profile that it decides by.

        Asked when a function is deployed or changed; one that is deployed is served on without.

        Raises:
            GnomonError: 400, with the command that measures one.

        """
        ...

    def poke(self, function: str) -> None:
        """Look at the function now."""
        ...

    def request(self, function: str, instances: int) -> None:
        """An operator wants so many instances."""
        ...

    def redeployed(self, function: str) -> None:
        """The function was deployed again: failed starts of the past are forgiven."""
        ...

    def served(self, function: str) -> None:
        """An instance that had answered has ended: the function does start, and failed starts of the past are forgiven."""
        ...

    def start_backoff_s(self, function: str) -> float:
        """Seconds until the function's next instance may start, after failed starts; 0 where it may now."""
        ...

    def removed(self, function: str) -> None:
        """The function is gone: forget what was learned about it."""
        ...

    def desired(self, function: str) -> int | None:
        """How many instances the last decision wants; None before there is one."""
        ...

    def decisions(self, function: str, limit: int) -> Sequence[DecisionRecord]: ...

    def policies(self) -> Mapping[str, str]:
        """The known scaling policies, each with the sentence that describes it."""
        ...
