"""What the optimizer chooses from, and what it answers: sizes of instances, their buffer, and what is predicted of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gnomon_core.errors import bad_request
from gnomon_planner.buffer import BufferPlan
from gnomon_planner.latency import ExactLatency, ServiceTimes
from gnomon_planner.maps import Map
from gnomon_planner.spread import ALWAYS, few

AT_ONCE = ((0.0, 1.0),)


@dataclass(frozen=True, slots=True)
class Size:
    """A size of instance: its name, memory and cores, and S_k in seconds for the batches that it can serve, from 1 on.

    S_k is the median; a batch takes one of `ratios` times that, each as likely (`spread`). What a call costs is a mean over all
    of them, its latency a mixture of a few that stand for them.
    """

    name: str
    memory_mb: float
    cores: float
    service_s: tuple[float, ...]
    ratios: tuple[float, ...] = ALWAYS

    def service(self, batch: int) -> ServiceTimes:
        """What batches of up to `batch` take, with the few of the ratios.

        Raises:
            GnomonError: 400 `bad_service_times`.

        """
        ratios, shares = few(self.ratios)
        return ServiceTimes(tuple(tuple(one * ratio for ratio in ratios) for one in self.service_s[:batch]), shares)

    @property
    def mean_ratio(self) -> float:
        """How much longer than the median a batch takes in the mean."""
        return sum(self.ratios) / len(self.ratios)


@dataclass(frozen=True, slots=True)
class Space:
    """What may be chosen: sizes, largest batches, timeouts in seconds.

    Raises:
        GnomonError: 400 `bad_space`, `bad_service_times`.

    """

    sizes: tuple[Size, ...]
    batches: tuple[int, ...]
    timeouts_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if not (self.sizes and self.batches and self.timeouts_s):
            raise bad_request("bad_space", "Nothing to choose from.", "Give at least one size, one batch and one timeout.")
        if min(self.batches) < 1 or not all(timeout_s >= 0.0 for timeout_s in self.timeouts_s):
            raise bad_request("bad_space", "A batch below 1, or a timeout below 0.", "Both start there.")
        for size in self.sizes:
            if not (math.isfinite(size.memory_mb + size.cores) and size.memory_mb >= 0.0 and size.cores >= 0.0):
                raise bad_request("bad_space", f"{size.name} has no such memory or cores.", "Both are numbers from 0.")
            size.service(len(size.service_s))


@dataclass(frozen=True, slots=True)
class Plan:
    """One combination and what is predicted of it: a percentile in seconds, dollars per request.

    `instances` is None where they are unlimited; `instance_waits` is how long a batch waits for one, with probabilities.
    """

    size: Size
    buffer: BufferPlan
    latency_s: float
    usd_per_request: float
    instances: int | None = None
    instance_waits: tuple[tuple[float, float], ...] = AT_ONCE

    def latency(self, process: Map) -> ExactLatency:
        """The distribution of the latency."""
        return ExactLatency(process, self.buffer, self.size.service(self.buffer.batch), self.instance_waits)

    def __str__(self) -> str:
        held = "" if self.instances is None else f"{self.instances} × "
        return f"{held}{self.size.name}, B = {self.buffer.batch}, T = {self.buffer.timeout_s * 1e3:g} ms"


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen; where nothing meets the constraint, `failed` says so and `plan` is the nearest that can be had."""

    plan: Plan
    failed: str = ""
