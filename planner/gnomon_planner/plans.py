"""Sizes of instances, prices, and plans: what the optimizer chooses from, and what it answers.

**Prices** are in US dollars: AWS Lambda's, EC2's, and those of cores and memory held by the second. Lambda bills each call:
memory × duration, rounded up to the billing step, and a fee (BATCH, Eq. 1: C = S·M·I·K1 + I·K2). Others bill for what is held,
busy or not: EC2 by the hour (C = K·H), and cores and memory by the second, as on a cluster of one's own. A worked number: a batch
of 8 in 105.2 ms at 1,769 MB costs 1,769/1,024 · 0.106 s · 1.66667e−5 + 2e−7 = $3.25e−6, or $0.41 per million requests; billed by
100 ms, as until December 2020, 0.2 s and $0.74.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnomon_core.errors import bad_request
from gnomon_core.lambda_pricing import LAMBDA_ARM, LAMBDA_X86, MB_PER_GB, LambdaRates
from gnomon_planner.buffer import BufferPlan
from gnomon_planner.latency import ExactLatency, ServiceTimes
from gnomon_planner.maps import Map
from gnomon_planner.numerics import Array
from gnomon_planner.service_time import ALWAYS, few

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
        """Service times in seconds of batches of 1 to `batch`, with at most nine ratios and their probabilities.

        Raises:
            GnomonError: 400 `bad_service_times`.

        """
        ratios, shares = few(self.ratios)
        return ServiceTimes(tuple(tuple(one * ratio for ratio in ratios) for one in self.service_s[:batch]), shares)

    @property
    def mean_ratio(self) -> float:
        """Mean time of a batch divided by its median."""
        return sum(self.ratios) / len(self.ratios)


@dataclass(frozen=True, slots=True)
class Space:
    """The search space: sizes, largest batches, timeouts in seconds.

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
    """The chosen plan; if nothing meets the constraint, `failed` says so and `plan` is the nearest that was found."""

    plan: Plan
    failed: str = ""


SECONDS_PER_HOUR = 3600.0
ROUNDING = 1e-9  # of a billing step: 0.3 s are three steps of 0.1 s, whatever floats say


@dataclass(frozen=True, slots=True)
class LambdaPrice:
    """Dollars per GB-second and per call, and the step to which durations are rounded up; as published on `since`."""

    since: str
    usd_per_gb_s: float
    usd_per_call: float
    billing_step_s: float
    source: str

    def per_call(self, memory_mb: float, service_s: Array) -> Array:
        """Dollars per call for each of these durations in seconds; the result has the shape of `service_s`."""
        billed_s = np.ceil(service_s / self.billing_step_s - ROUNDING) * self.billing_step_s
        found: Array = memory_mb / MB_PER_GB * billed_s * self.usd_per_gb_s + self.usd_per_call
        return found

    def mean_per_call(self, memory_mb: float, service_s: Array, ratios: Sequence[float]) -> Array:
        """Mean dollars per call that takes `service_s` times one of `ratios`, each equally likely; shape of `service_s`."""
        found: Array = self.per_call(memory_mb, np.multiply.outer(service_s, ratios)).mean(axis=-1)
        return found


@dataclass(frozen=True, slots=True)
class HeldPrice:
    """Dollars per core and per GB of memory for each second that an instance is held.

    Raises:
        GnomonError: 400 `bad_price`.

    """

    since: str
    usd_per_core_s: float
    usd_per_gb_s: float
    source: str

    def __post_init__(self) -> None:
        if not (0.0 <= self.usd_per_core_s < math.inf and 0.0 <= self.usd_per_gb_s < math.inf):
            raise bad_request("bad_price", "A price of cores or memory is no number from 0.")

    def per_second(self, cores: float, memory_mb: float) -> float:
        """Dollars per second of one instance."""
        return cores * self.usd_per_core_s + memory_mb / MB_PER_GB * self.usd_per_gb_s


@dataclass(frozen=True, slots=True)
class HourlyPrice:
    """EC2: dollars per hour of a machine, C = K·H."""

    since: str
    machine: str
    usd_per_hour: float
    cores: int
    memory_mb: float

    def cost(self, hours: float) -> float:
        """Dollars for this many instance hours: C = K·H."""
        return self.usd_per_hour * hours

    def held(self) -> HeldPrice:
        """The price per second of cores, where an instance pays for its share of the machine."""
        return HeldPrice(self.since, self.usd_per_hour / self.cores / SECONDS_PER_HOUR, 0.0, self.machine)


def _by_the_millisecond(rates: LambdaRates) -> LambdaPrice:
    return LambdaPrice(rates.since, rates.usd_per_gb_s, rates.usd_per_call, 0.001, rates.source)


LAMBDA = {
    "x86": _by_the_millisecond(LAMBDA_X86),
    "arm": _by_the_millisecond(LAMBDA_ARM),
    "paper": LambdaPrice("2019-10", 1.66667e-5, 2e-7, 0.1, "BATCH, Eq. 1, with the billing step of its day"),
}
EC2 = {
    "c5.4xlarge": HourlyPrice("2026-11", "c5.4xlarge", 0.68, 16, 32 * MB_PER_GB),
    "t2.nano": HourlyPrice("2026-11", "t2.nano", 0.0058, 1, 0.5 * MB_PER_GB),
}
# A cluster of one's own costs what its owner says; by default what Fargate asks for a vCPU and a GB.
HELD = HeldPrice(
    "2026-11", 0.04048 / SECONDS_PER_HOUR, 0.004445 / SECONDS_PER_HOUR, "aws.amazon.com/fargate/pricing, us-east-1, Linux/x86"
)
