"""What the functions of a gateway live among: the one value that whoever composes the gateway makes of its parts.

What the gateway asks of the autoscaler. The two meet here, in the composition root's adapter, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gnomon_core.interfaces import FunctionStore, Platform
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import DecisionRecord
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.latency import LiveLatency
from gnomon_gateway.functions.profiles import Corrections, ProfiledLatency
from gnomon_gateway.logs import LogBook
from gnomon_gateway.replicas.state_sync import Elsewhere
from gnomon_gateway.scheduling.registry import BUILT_IN, Schedulers


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


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the functions live among.

    `latency` learns from what is served, `profiled` foretells it of models with a profile; who composes them lets the one begin
    at the other. `corrections` remember what was learned before a restart. `fetch_model` brings a model into the repository if it
    can be had; `now` gives seconds since 1970; `schedulers` are the scheduling policies that functions may name.
    `elsewhere` is what other replicas have of the functions, and whether one of them leads. `epoch` is that of our batches, while
    nobody shares the functions with us. `makes_shadows` is whether the scaling policy of a function does so where it can.
    """

    store: FunctionStore
    platform: Platform
    scaling: ScalingControl
    latency: LiveLatency
    logs: LogBook
    fetch_model: Callable[[str], Awaitable[None]]
    now: Callable[[], float]
    profiled: ProfiledLatency = field(default_factory=ProfiledLatency)
    corrections: Corrections | None = None
    schedulers: Schedulers = field(default_factory=lambda: BUILT_IN)
    elsewhere: Elsewhere = field(default_factory=Elsewhere)
    epoch: Callable[[], int] = lambda: 1
    makes_shadows: Callable[[Settings], bool] = lambda _: False

    def foretell(self, variants: Iterable[str], profile: ModelProfile | None) -> None:
        """What these variants take follows from this profile from now on, and from what was learned of it before a restart.

        What was learned without it, or against another one, is forgotten.
        """
        if profile is None:
            return
        for variant in variants:
            if self.profiled.put(variant, profile):
                self.latency.forget(variant)
            if self.corrections is not None:
                self.corrections.begin(variant, profile)
