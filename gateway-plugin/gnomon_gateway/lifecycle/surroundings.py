"""What the functions of a gateway live among: the one value that whoever composes the gateway makes of its parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from gnomon_core.profiles import ModelProfile
from gnomon_core.seams import FunctionStore, Platform
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.latency import LiveLatency
from gnomon_gateway.dispatch.profiled import ProfiledLatency
from gnomon_gateway.lifecycle.control import ScalingControl
from gnomon_gateway.lifecycle.corrections import Corrections
from gnomon_gateway.lifecycle.elsewhere import Elsewhere
from gnomon_gateway.logs import LogBook
from gnomon_gateway.scheduling.registry import BUILT_IN, Schedulers


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
