"""Who pays for what: each call for itself, where instances are unlimited, or the instances that are held, busy or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from gnomon_planner.buffer import Buffer
from gnomon_planner.costs import HeldPrice, LambdaPrice
from gnomon_planner.counting import Array
from gnomon_planner.instances import fleet_for
from gnomon_planner.maps import Map
from gnomon_planner.plans import Plan, Size
from gnomon_planner.sweep import WaitsOfBatch

DEVIATIONS = 3.09  # of a normal distribution at 99.9 %
WINDOWS = 24


class Billing(Protocol):
    """A way to pay."""

    def costs(self, process: Map, sizes: Sequence[Size], service_s: Array, waits: WaitsOfBatch) -> tuple[Array, Array]:
        """Dollars per request, and how many instances that takes, 0 where they are unlimited; both (sizes, timeouts).

        `service_s` (sizes, B) are the medians. Either is exact, or an estimate to search by.
        """
        ...

    def settled(self, process: Map, plan: Plan) -> Plan:
        """The plan with its cost and its instances, exactly."""
        ...

    @property
    def candidates(self) -> int:
        """How many of the best plans by `costs` are to be settled to find the best."""
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
        found: Array = per_call @ waits.sizes.T / waits.mean_sizes
        return found, np.zeros(found.shape)

    def settled(self, process: Map, plan: Plan) -> Plan:  # noqa: ARG002 - Billing's
        return plan


@dataclass(frozen=True, slots=True)
class Held:
    """Instances that are held all the time: n·c/λ dollars per request, n the 99.9 % quantile of concurrent batches."""

    price: HeldPrice
    candidates: int = 24

    def costs(self, process: Map, sizes: Sequence[Size], service_s: Array, waits: WaitsOfBatch) -> tuple[Array, Array]:
        """By an estimated number of instances, three quarters to one and a half times the exact one.

        In a window as long as a service there are, with 99.9 %, at most A = λS + 3.09·√(I(S)·λS) arrivals; at such a rate batches
        hold min(B, 1 + T·A/S) of them, or the mean if that is more.
        """
        means_s = service_s * np.array([[size.mean_ratio] for size in sizes])
        busy_s = np.maximum(means_s @ waits.sizes.T, 1e-9)
        windows_s = np.geomspace(busy_s.min(), busy_s.max() * 1.001, WINDOWS)
        dispersions = np.interp(busy_s, windows_s, [max(process.dispersion(window_s), 0.0) for window_s in windows_s])
        mean = process.rate_rps * busy_s
        arrivals = mean + DEVIATIONS * np.sqrt(dispersions * mean)
        members = np.maximum(waits.mean_sizes, np.minimum(waits.batch, 1.0 + waits.timeouts_s * arrivals / busy_s))
        instances = np.maximum(1.0, np.ceil(arrivals / members))
        per_second = np.array([[self.price.per_second(size.cores, size.memory_mb)] for size in sizes])
        return instances * per_second / process.rate_rps, instances

    def settled(self, process: Map, plan: Plan) -> Plan:
        buffer = Buffer(process, plan.buffer)
        fleet = fleet_for(buffer, float(buffer.sizes @ plan.size.service(plan.buffer.batch).means))
        per_second = fleet.instances * self.price.per_second(plan.size.cores, plan.size.memory_mb)
        return replace(plan, usd_per_request=per_second / process.rate_rps, instances=fleet.instances, instance_waits=fleet.waits)
