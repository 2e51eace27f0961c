"""What the day is asked for: two ways to pay with service times for each, and three objectives; and its arrivals.

**Arrivals.** The trace has counts of 100 ms; requests are uniform within their bin, from a seed. The policy counts per second, so
that it sees nothing of how they were drawn.

**Lambda.** Each call pays for its milliseconds of 1,769 MB and a fee (`gnomon_planner.costs`), instances are unlimited. A batch
of k takes 28 + 12k ms, decision 20's example.

**Held.** Instances of one core are paid for as long as they are held, and a batch of k takes 150 + 50k ms, decision 22's. Their
number is the 99.9 % quantile of concurrent batches, a whole one: where there are six, one more is 17 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnomon_core.settings import ScaleSettings, Settings
from gnomon_planner.costs import HELD, LAMBDA
from gnomon_planner.replay import Vector
from gnomon_simulator.arrivals import from_trace
from gnomon_simulator.events import stream
from gnomon_simulator.traces import Trace, read_trace

TRACE = Path(__file__).parent.parent / "traces" / "twitter_may25_100ms.csv.gz"
HOUR_S = 3600.0
HOURS = range(1, 23)
"""The full hours that have one before them."""
SEED = 1
LOOK_S = 1.0
MEMORY_MB = 1769
INSTANCE_MB = 512
PERCENT = 95.0
ROUNDING = 1e-9
"""Seconds: a request that is in time but for the last digit of a sum is in time."""


@dataclass(frozen=True, slots=True)
class Case:
    """A batch of k takes `fixed_ms` + k·`each_ms`; P95 is to be within `slo_ms`."""

    paid: str
    fixed_ms: float
    each_ms: float
    slo_ms: float
    max_batch: int

    @property
    def key(self) -> str:
        """What it goes by."""
        return f"{self.paid}, {self.fixed_ms:g} + {self.each_ms:g}·k ms, {self.slo_ms:g} ms"

    @property
    def service_s(self) -> Vector:
        """S_k."""
        return (self.fixed_ms + self.each_ms * np.arange(1.0, self.max_batch + 1.0)) / 1e3

    @property
    def slo_s(self) -> float:
        """The objective."""
        return self.slo_ms / 1e3

    @property
    def held(self) -> bool:
        """Whether instances are paid for, and not calls."""
        return self.paid == "held"

    @property
    def settings(self) -> Settings:
        """As a user would deploy it."""
        return Settings(
            autoscaler="batch", slo_s=self.slo_s, slo_percentile=PERCENT, max_batch=self.max_batch,
            memory_mb=None if self.held else MEMORY_MB, scale=ScaleSettings(min=1, max=200),
        )  # fmt: skip

    def within(self, latency_s: Vector) -> float:
        """The share of these requests that are in time."""
        return float((latency_s <= self.slo_s + ROUNDING).mean())

    def usd_of_calls(self, sizes: npt.NDArray[np.intp]) -> Vector:
        """What batches of these sizes cost, each."""
        return LAMBDA["x86"].per_call(MEMORY_MB, self.service_s)[sizes - 1]

    @property
    def usd_per_instance_s(self) -> float:
        """What holding an instance for a second costs."""
        return HELD.per_second(1.0, INSTANCE_MB)


CASES = (
    *(Case("Lambda", 28.0, 12.0, slo_ms, 32) for slo_ms in (200.0, 300.0, 500.0)),
    *(Case("held", 150.0, 50.0, slo_ms, 16) for slo_ms in (500.0, 700.0, 1000.0)),
)


def is_met(within: float) -> bool:
    """Whether the percentile is within the SLO where this share of the requests is."""
    return within >= PERCENT / 100.0


@cache
def _trace() -> Trace:
    return read_trace(TRACE)


@cache
def arrivals() -> Vector:
    """When each request of the day came, in seconds."""
    return np.array(from_trace(_trace(), stream(SEED, "arrivals")))


@cache
def counted() -> tuple[float, ...]:
    """How many came, in bins as long as a look."""
    trace = _trace()
    each = round(LOOK_S / trace.bin_s)
    whole = len(trace.counts) // each * each
    return tuple(np.array(trace.counts[:whole]).reshape(-1, each).sum(axis=1).tolist())


def of_hour(hour: int) -> Vector:
    """The arrivals of one hour."""
    times = arrivals()
    first, last = np.searchsorted(times, [hour * HOUR_S, (hour + 1) * HOUR_S])
    return times[first:last]
