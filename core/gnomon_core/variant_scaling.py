"""Input and output of a policy that scales an application's variants and workers (INFaaS, section 4.2).

An `ApplicationObservation` is everything that a variant-scaling policy may use, frozen; a `ScalingPlan` is how many instances of
each variant it wants. A `WorkerObservation` is the same for one worker, from which the number of workers is decided. A controller
of running functions and a simulator make the same values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gnomon_core.variants import CPU, Variant, VariantState

DEMAND_WINDOW_S = 10.0
"""The seconds over which the load of a demand is measured."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Load of one kind of query, in samples per second: what each answer must satisfy, and who may answer.

    `architecture` "" lets every architecture of the application answer. With `accuracy_floor` less accurate variants may answer,
    down to the floor, where resources do not suffice for `accuracy`.
    """

    load_rps: float
    latency_s: float | None = None
    accuracy: float | None = None
    cost_per_s: float | None = None
    architecture: str = ""
    accuracy_floor: float | None = None

    @property
    def at_floor(self) -> Demand:
        """The demand with the least accuracy that its queries accept."""
        return self if self.accuracy_floor is None else replace(self, accuracy=self.accuracy_floor, accuracy_floor=None)

    def accepts(self, variant: Variant) -> bool:
        """Return whether an answer of this variant satisfies the queries."""
        return (
            (self.latency_s is None or variant.inference_s <= self.latency_s)
            and (self.accuracy is None or variant.accuracy >= self.accuracy)
            and (self.cost_per_s is None or variant.cost_per_s <= self.cost_per_s)
            and self.architecture in ("", variant.architecture)
        )

    def among(self, variants: Iterable[Variant]) -> Demand | None:
        """The demand that these variants can satisfy: at its floor if none has the wished accuracy, None if none satisfies it."""
        found = tuple(variants)
        for demand in (self, self.at_floor):
            if any(demand.accepts(variant) for variant in found):
                return demand
        return None


@dataclass(frozen=True, slots=True)
class VariantMember:
    """A variant of the application and its instances.

    `running` instances are loaded or loading, `ready` of them answer. `load_rps` is the samples per second that arrive for it,
    `last_rps` those of the last period alone, from which `state` follows, the worst state of its instances.
    """

    variant: Variant
    running: int = 0
    ready: int = 0
    load_rps: float = 0.0
    state: VariantState = VariantState.INACTIVE
    last_rps: float = 0.0


@dataclass(frozen=True, slots=True)
class ApplicationObservation:
    """The state of one application at one time.

    `members` are all variants that may run, loaded or not. `capacity` is what the application's instances may use together, by
    resource type, those that run included; a type that it does not name is not bounded.
    """

    now_s: float
    application: str
    members: tuple[VariantMember, ...]
    demands: tuple[Demand, ...]
    capacity: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """The number of instances of each variant, by the variant's id; variants without instances are left out.

    `objective` is Σ C·(δ + λ·T_load·max(δ, 0)) of the change from what runs. `shortfall_rps` is the load, headroom included, for
    which the resources do not suffice: then more workers are needed. `gap` is how far, as a share of the objective's total, the
    plan may be from the cheapest; None where the policy proves nothing.
    """

    instances: Mapping[str, int]
    cost_per_s: float
    objective: float
    reason: str
    shortfall_rps: float = 0.0
    gap: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerObservation:
    """A worker: its kind of hardware, the share of each resource type in use, and the states of the variants on it.

    `ready` is False while the worker starts; nothing is known of it then.
    """

    name: str
    hardware: str = CPU
    utilization: Mapping[str, float] = field(default_factory=dict)
    states: tuple[VariantState, ...] = ()
    ready: bool = True


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """The kinds of hardware of which to add a worker, the workers to end, and why."""

    add: tuple[str, ...]
    remove: tuple[str, ...]
    reason: str
