"""What a Revision lives among: what informers hold, who decides, and who writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gnomon_core.clock import Clock
from gnomon_core.decisions import DecisionRecord
from gnomon_core.functions import FunctionKey
from gnomon_core.profiles import ModelProfile
from gnomon_core.settings import Settings
from gnomon_platforms.knative.scaling.configuration import ClusterSettings
from gnomon_platforms.knative.scaling.objects import LiveRevision, PaFacts, RevisionPod, ScaleTarget, SksFacts
from gnomon_platforms.knative.scaling.shadows import RevisionShadows
from gnomon_platforms.knative.scaling.signals.gateways import Gateways
from gnomon_platforms.knative.scaling.steps import Steps
from gnomon_platforms.kubernetes.rivals import Rival


class Brain(Protocol):
    """Who decides how many instances a Revision has: the autoscaler's loop with its policies."""

    def check(self, settings: Settings) -> object:
        """Raise a GnomonError for settings by which nothing can be scaled here."""
        ...

    def check_profile(self, settings: Settings, profile: ModelProfile | None) -> None:
        """Raise a GnomonError where they need another profile of the Revision's model than this."""
        ...

    def makes_shadows(self, settings: Settings) -> bool:
        """Whether the policy that they name does so where it can."""
        ...

    def poke(self, function: str) -> None:
        """A request waits and nothing lives."""
        ...

    def removed(self, function: str) -> None: ...

    def decisions(self, function: str, limit: int) -> Sequence[DecisionRecord]:
        """The last decisions, the newest first."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a Revision lives among. The callables answer from what informers hold.

    `resizes` is whether the cluster gives pods other cores while they run. `shadows` is None where no models were told of.
    """

    pa: Callable[[FunctionKey], PaFacts | None]
    sks: Callable[[FunctionKey], SksFacts | None]
    target: Callable[[PaFacts], ScaleTarget | None]
    pods: Callable[[FunctionKey], Iterable[RevisionPod]]
    live: Callable[[FunctionKey], LiveRevision | None]
    cluster: Callable[[], ClusterSettings]
    rival: Callable[[PaFacts], Rival | None]
    wakeable: Callable[[], bool]
    resizes: bool
    shadows: RevisionShadows | None
    gateways: Gateways
    brain: Brain
    steps: Steps
    clock: Clock
    wall_s: Callable[[], float]
