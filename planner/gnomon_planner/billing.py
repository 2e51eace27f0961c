"""Prices, and the cost per request of a plan: per call where instances are unlimited, per second where they are provisioned.

Prices are in US dollars. Lambda bills each call:
memory × duration, rounded up to the billing step, and a fee (BATCH, Eq. 1: C = S·M·I·K1 + I·K2). Others bill for what is held,
busy or not: EC2 by the hour (C = K·H), and cores and memory by the second, as on a cluster of one's own. A worked number: a batch
of 8 in 105.2 ms at 1,769 MB costs 1,769/1,024 · 0.106 s · 1.66667e−5 + 2e−7 = $3.25e−6, or $0.41 per million requests; billed by
100 ms, as until December 2020, 0.2 s and $0.74.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from gnomon_core.errors import bad_request
from gnomon_core.lambda_pricing import LAMBDA_ARM, LAMBDA_X86, MB_PER_GB, LambdaRates
from gnomon_planner.buffer import Buffer
from gnomon_planner.instances import fleet_for
from gnomon_planner.maps import Map
from gnomon_planner.numerics import Array
from gnomon_planner.plans import Plan, Size
from gnomon_planner.sweep import WaitsOfBatch

SECONDS_PER_HOUR = 3600.0
STEP_TOLERANCE = 1e-9  # of a billing step: 0.3 s are three steps of 0.1 s in spite of floating-point rounding


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
        billed_s = np.ceil(service_s / self.billing_step_s - STEP_TOLERANCE) * self.billing_step_s
        usd: Array = memory_mb / MB_PER_GB * billed_s * self.usd_per_gb_s + self.usd_per_call
        return usd

    def mean_per_call(self, memory_mb: float, service_s: Array, ratios: Sequence[float]) -> Array:
        """Mean dollars per call that takes `service_s` times one of `ratios`, each equally likely; shape of `service_s`."""
        usd: Array = self.per_call(memory_mb, np.multiply.outer(service_s, ratios)).mean(axis=-1)
        return usd


@dataclass(frozen=True, slots=True)
class ProvisionedPrice:
    """Dollars per core and per GB of memory for each second of a provisioned instance.

    Raises:
        GnomonError: 400 `bad_price`.

    """

    since: str
    usd_per_core_s: float
    usd_per_gb_s: float
    source: str

    def __post_init__(self) -> None:
        if not (0.0 <= self.usd_per_core_s < math.inf and 0.0 <= self.usd_per_gb_s < math.inf):
            raise bad_request("bad_price", "A price of cores or memory is negative or not a number.")

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

    def provisioned(self) -> ProvisionedPrice:
        """The price per second of a core, where an instance pays for its share of the machine's cores."""
        return ProvisionedPrice(self.since, self.usd_per_hour / self.cores / SECONDS_PER_HOUR, 0.0, self.machine)


def _per_millisecond(rates: LambdaRates) -> LambdaPrice:
    return LambdaPrice(rates.since, rates.usd_per_gb_s, rates.usd_per_call, 0.001, rates.source)


LAMBDA = {
    "x86": _per_millisecond(LAMBDA_X86),
    "arm": _per_millisecond(LAMBDA_ARM),
    "paper": LambdaPrice("2019-10", 1.66667e-5, 2e-7, 0.1, "BATCH, Eq. 1, with the billing step of its day"),
}
EC2 = {
    "c5.4xlarge": HourlyPrice("2026-11", "c5.4xlarge", 0.68, 16, 32 * MB_PER_GB),
    "t2.nano": HourlyPrice("2026-11", "t2.nano", 0.0058, 1, 0.5 * MB_PER_GB),
}
# The default price of cores and memory of one's own cluster: that of a vCPU and a GB of AWS Fargate.
FARGATE = ProvisionedPrice(
    "2026-11", 0.04048 / SECONDS_PER_HOUR, 0.004445 / SECONDS_PER_HOUR, "aws.amazon.com/fargate/pricing, us-east-1, Linux/x86"
)


CONCURRENCY_DEVIATIONS = 3.09  # of a normal distribution at 99.9 %
WINDOW_GRID = 24


class Billing(Protocol):
    """A way to pay for instances: per call, or per second of provisioned instances."""

    def costs(self, process: Map, sizes: Sequence[Size], service_s: Array, waits: WaitsOfBatch) -> tuple[Array, Array]:
        """Dollars per request and number of instances (0 where unlimited), both of shape (sizes, timeouts).

        `service_s` (sizes, B) are the medians. Either is exact, or an estimate to search by.
        """
        ...

    def settled(self, process: Map, plan: Plan) -> Plan:
        """The plan with its exact cost and number of instances."""
        ...

    @property
    def candidates(self) -> int:
        """The number of best plans by `costs` among which `settled` finds the best."""
        ...


@dataclass(frozen=True, slots=True)
class PerCall:
    """AWS Lambda: Σ_k p_k·C(S_k) / N dollars per request, C's mean where S_k varies."""

    price: LambdaPrice
    candidates: int = 1

    def costs(
        self,
        process: Map,  # noqa: ARG002 - Billing's
        sizes: Sequence[Size],
        service_s: Array,
        waits: WaitsOfBatch,
    ) -> tuple[Array, Array]:
        per_call = np.stack(
            [self.price.mean_per_call(size.memory_mb, row, size.ratios) for size, row in zip(sizes, service_s, strict=True)]
        )
        usd_per_request: Array = per_call @ waits.sizes.T / waits.mean_sizes
        return usd_per_request, np.zeros(usd_per_request.shape)

    def settled(self, process: Map, plan: Plan) -> Plan:  # noqa: ARG002 - Billing's
        return plan


@dataclass(frozen=True, slots=True)
class Provisioned:
    """Provisioned instances: n·c/λ dollars per request, n the 99.9 % quantile of concurrent batches, c $/s of one."""

    price: ProvisionedPrice
    candidates: int = 24

    def costs(self, process: Map, sizes: Sequence[Size], service_s: Array, waits: WaitsOfBatch) -> tuple[Array, Array]:
        """The costs by an estimated number of instances, 0.75 to 1.5 times the exact one.

        Within one service time S there are at most A = λS + 3.09·√(I(S)·λS) arrivals with a probability of 99.9 %. At that rate a
        batch has min(B, 1 + T·A/S) requests, or the mean batch size if that is more. n is A divided by the batch size.
        """
        means_s = service_s * np.array([[size.mean_ratio] for size in sizes])
        busy_s = np.maximum(means_s @ waits.sizes.T, 1e-9)
        windows_s = np.geomspace(busy_s.min(), busy_s.max() * 1.001, WINDOW_GRID)
        dispersions = np.interp(busy_s, windows_s, [max(process.dispersion(window_s), 0.0) for window_s in windows_s])
        mean = process.rate_rps * busy_s
        arrivals = mean + CONCURRENCY_DEVIATIONS * np.sqrt(dispersions * mean)
        members = np.maximum(waits.mean_sizes, np.minimum(waits.batch, 1.0 + waits.timeouts_s * arrivals / busy_s))
        instances = np.maximum(1.0, np.ceil(arrivals / members))
        per_second = np.array([[self.price.per_second(size.cores, size.memory_mb)] for size in sizes])
        return instances * per_second / process.rate_rps, instances

    def settled(self, process: Map, plan: Plan) -> Plan:
        buffer = Buffer(process, plan.buffer)
        fleet = fleet_for(buffer, float(buffer.sizes @ plan.size.service(plan.buffer.batch).means))
        per_second = fleet.instances * self.price.per_second(plan.size.cores, plan.size.memory_mb)
        return replace(plan, usd_per_request=per_second / process.rate_rps, instances=fleet.instances, instance_waits=fleet.waits)
