"""Variants of models, and queries that name a goal instead of a model (INFaaS, sections 3 and 4).

    application ─┬─ architecture (a registered model) ─┬─ variant: engine, precision, cores, largest batch; with its measurements
                 └─ …                                  └─ …

An application is what a client calls. A variant is one way to run one of its models; each variant that is in use is a function of
its own, a member of the application. A `Query` states what the answer must satisfy, a `Choice` which variant answers it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from gnomon_core.errors import bad_request

CPU = "cpu"
"""The hardware of a variant that needs no accelerator."""
CORES, MEMORY_BYTES = "cores", "memory_bytes"
"""The resource types that every variant needs."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a registered model, with what was measured of it.

    `accuracy` is the share of the validation set that is answered right, from 0 to 1. `latency_s` is seconds of a batch by its
    size on `cores` cores, `load_s` seconds from the decision to the first answer, `saturation_rps` the samples per second of one
    busy instance, and `cost_per_s` what one instance costs per second, in the unit of the catalog's prices. `hardware` is the
    kind of worker that can load it, and `devices` what one instance needs there besides cores and memory, by resource type: for
    example `{"gpu_memory_bytes": 2e9}`.
    """

    id: str
    architecture: str
    engine: str
    precision: str
    cores: int
    max_batch: int
    accuracy: float
    load_s: float
    latency_s: Mapping[int, float]
    memory_bytes: int
    saturation_rps: float
    cost_per_s: float
    hardware: str = CPU
    devices: Mapping[str, float] = field(default_factory=dict)

    @property
    def inference_s(self) -> float:
        """Seconds of the largest batch: the latency that a busy instance can promise."""
        return self.latency_s[self.max_batch]

    @property
    def resources(self) -> dict[str, float]:
        """The amount of each resource type that one instance needs."""
        return {CORES: float(self.cores), MEMORY_BYTES: float(self.memory_bytes), **self.devices}


class VariantState(enum.Enum):
    """The state of a variant's instance (INFaaS, Figure 4)."""

    INACTIVE = "inactive"
    """The variant is not loaded on any worker."""
    ACTIVE = "active"
    OVERLOADED = "overloaded"
    """The instance serves its saturation rate or more."""
    INTERFERED = "interfered"
    """The instance is below its saturation rate but slower than its profile: something on the worker contends with it."""


@dataclass(frozen=True, slots=True)
class Query:
    """The constraints that an answer must satisfy. None is no constraint; `architecture` or `variant` name what is to answer.

    `latency_s` bounds the time in which the variant answers, `accuracy` is the least share of right answers, `cost_per_s` the
    most that the answering variant may cost. With `accuracy_floor` the accuracy is only wished: a less accurate variant may
    answer, down to the floor, where no other one answers in time.

    Raises:
        GnomonError: 400 `invalid_query`, a constraint is negative or not a number, the latency is 0, or there is a floor without
            an accuracy or above it.

    """

    latency_s: float | None = None
    accuracy: float | None = None
    cost_per_s: float | None = None
    architecture: str | None = None
    variant: str | None = None
    accuracy_floor: float | None = None

    def __post_init__(self) -> None:
        if self.latency_s is not None and not self.latency_s > 0.0:
            raise bad_request("invalid_query", f"A latency of {self.latency_s} s cannot be met.", "Give a positive time.")
        if self.accuracy is not None and not 0.0 <= self.accuracy <= 1.0:
            raise bad_request("invalid_query", f"{self.accuracy} is not an accuracy.", "Give a share from 0 to 1.")
        if self.cost_per_s is not None and not self.cost_per_s >= 0.0:
            raise bad_request("invalid_query", f"{self.cost_per_s} is not a cost per second.", "Give a number from 0 on.")
        if self.accuracy_floor is not None and not 0.0 <= self.accuracy_floor <= (self.accuracy or 0.0):
            wished = "none is wished" if self.accuracy is None else f"{self.accuracy} is wished"
            message = f"An accuracy of {self.accuracy_floor} is the least accepted one, and {wished}."
            raise bad_request("invalid_query", message, "Give the wished accuracy, and a floor from 0 to it.")


@dataclass(frozen=True, slots=True)
class Choice:
    """The variant that answers a query, and on which worker; "" where the platform chooses.

    `satisfies` is False for the nearest variant where none meets the query: then `shortfall` says which constraint it misses.
    `degraded` is True where the variant is less accurate than wished, and not below the query's floor.
    """

    variant: Variant
    worker: str = ""
    loaded: bool = True
    satisfies: bool = True
    shortfall: str = ""
    degraded: bool = False
