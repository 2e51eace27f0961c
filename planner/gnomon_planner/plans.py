"""The search space of the optimizer (instance sizes, batch sizes, timeouts) and its result (a plan)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gnomon_core.errors import bad_request
from gnomon_planner.buffer import BufferPlan
from gnomon_planner.latency import ExactLatency, ServiceTimes
from gnomon_planner.maps import Map
from gnomon_planner.service_time import DETERMINISTIC, representative_ratios

AT_ONCE = ((0.0, 1.0),)


@dataclass(frozen=True, slots=True)
class Size:
    """A size of instance: name, memory in MB, cores, and S_k for batches of k = 1, 2, … that it can serve (`service_s`, seconds).

    S_k is the median service time. A batch takes S_k times one of `ratios`, all equally likely. The cost of a call is the mean
    over all ratios; the latency is a mixture over a few representative ones (`service_time`).
    """

    name: str
    memory_mb: float
    cores: float
    service_s: tuple[float, ...]
    ratios: tuple[float, ...] = DETERMINISTIC

    def service(self, batch: int) -> ServiceTimes:
        """Service times in seconds of batches of 1 to `batch`, with at most nine ratios and their probabilities.

        Raises:
            GnomonError: 400 `bad_service_times`.

        """
        ratios, shares = representative_ratios(self.ratios)
        return ServiceTimes(tuple(tuple(seconds * ratio for ratio in ratios) for seconds in self.service_s[:batch]), shares)

    @property
    def mean_ratio(self) -> float:
        """The mean service time divided by its median."""
        return sum(self.ratios) / len(self.ratios)


@dataclass(frozen=True, slots=True)
class Space:
    """The search space: instance sizes, batch sizes B, timeouts T in seconds.

    Raises:
        GnomonError: 400 `bad_space`, `bad_service_times`.

    """

    sizes: tuple[Size, ...]
    batches: tuple[int, ...]
    timeouts_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if not (self.sizes and self.batches and self.timeouts_s):
            raise bad_request(
                "bad_space",
                "There are no sizes, batches or timeouts to choose from.",
                "Give at least one size, one batch and one timeout.",
            )
        if min(self.batches) < 1 or not all(timeout_s >= 0.0 for timeout_s in self.timeouts_s):
            raise bad_request("bad_space", "A batch is below 1, or a timeout below 0.", "Use batches from 1 and timeouts from 0.")
        for size in self.sizes:
            if not (math.isfinite(size.memory_mb + size.cores) and size.memory_mb >= 0.0 and size.cores >= 0.0):
                raise bad_request(
                    "bad_space", f"The memory or cores of {size.name} are invalid.", "Both are finite numbers from 0."
                )
            size.service(len(size.service_s))


@dataclass(frozen=True, slots=True)
class Plan:
    """A combination of size and buffer with its prediction: a latency percentile in seconds, dollars per request.

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
    """The chosen plan. If no plan meets the constraint, `failed` says why and `plan` is the nearest that was found."""

    plan: Plan
    failed: str = ""
