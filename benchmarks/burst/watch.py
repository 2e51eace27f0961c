"""Sample the instances of a function ten times a second while the load runs.

Bodies and Shadows, each in its state, come from `GET /gnomon/functions/{name}`, batches from the difference of two readings of
/metrics, memory is what all instances hold together.

A run second by second: what came, what was there to serve it, and what became of it.

      s  asked  late   p50 ms   p95 ms  batch  Bodies  Shadows  offloaded  MiB
     15     13     0       88      141    1.3       1      0+1          0  512

Instances are the most of a second, those that are ready, `+` those that start: a Body loads its model, a Shadow its blocks, and
`-` those that drain. Latencies and lateness are of the requests that were to be sent in that second.

The burst: a steady rate, for some seconds several times as much, and the steady rate again.

Rates are in units of what one Body can take within the objective, R = max over b of b / t(b) with t(b) ≤ SLO (AsyFunc, Eq. 1), so
that the same shape means the same on every machine. Steady is 0.5 R; the burst is 1.3 R, more than a Body can take and less than
a pair.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.gnomon import Gnomon
from gnomon_core.profiles import ModelProfile
from gnomon_simulator.arrivals import poisson

EVERY_S = 0.1
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Look:
    """One sample.

    `instances` counts them by kind and state, ("shadow", "starting") are those that load their blocks. `batches` were sent since
    the look before, of `samples` in all.
    """

    at_s: float
    instances: Mapping[tuple[str, str], int]
    offloaded: int
    batches: int
    samples: int
    memory_mib: float

    def count(self, kind: str, state: str) -> int:
        """How many instances are of this kind, body or shadow, and in this state."""
        return self.instances.get((kind, state), 0)


def counted(detail: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """The instances of a function's document by kind and state."""
    kinds = (("body", detail["bodies"]), ("shadow", detail["shadows"]))
    return dict(Counter((kind, one["state"]) for kind, instances in kinds for one in instances))


class Watch:
    """Looks from `start` to `stop`, in a thread of its own. Times are on the machine's monotonic clock."""

    def __init__(self, ours: Gnomon, name: str) -> None:
        self._ours = ours
        self._name = name
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._sent = (0.0, 0.0)
        self.looks: list[Look] = []

    def start(self) -> None:
        self._sent = self._batches()
        self._thread.start()

    def stop(self) -> list[Look]:
        self._over.set()
        self._thread.join()
        return self.looks

    def _run(self) -> None:
        next_s = time.monotonic()
        while not self._over.is_set():
            self.looks.append(self._look())
            next_s += EVERY_S
            self._over.wait(max(0.0, next_s - time.monotonic()))

    def _look(self) -> Look:
        at_s = time.monotonic()
        detail = self._ours.call("GET", f"/gnomon/functions/{self._name}")
        usage = self._ours.call("GET", f"/system/function/{self._name}?usage=1").get("usage", {})
        before, self._sent = self._sent, self._batches()
        count, samples = self._sent[0] - before[0], self._sent[1] - before[1]
        return Look(
            at_s,
            counted(detail),
            int(detail["pairs"]["offloaded_samples"]),
            int(count),
            int(samples),
            float(usage.get("totalMemoryBytes", 0)) / MIB,
        )

    def _batches(self) -> tuple[float, float]:
        """How many batches were sent so far, and of how many samples."""
        names = ("gnomon_batch_size_count", "gnomon_batch_size_sum")
        count, samples = (self._ours.series(name, self._name) for name in names)
        return count, samples


@dataclass(frozen=True, slots=True)
class Burst:
    """Seconds before, in and after the burst, and the two rates in requests per second."""

    before_s: float = 15.0
    burst_s: float = 8.0
    after_s: float = 12.0
    steady_rps: float = 1.0
    burst_rps: float = 3.0

    @property
    def duration_s(self) -> float:
        return self.before_s + self.burst_s + self.after_s

    def arrivals(self, seed: int) -> list[float]:
        """When requests come, in seconds from the start; the same for the same seed."""
        chance = random.Random(seed)
        times: list[float] = []
        begin_s = 0.0
        for length_s, rate_rps in (
            (self.before_s, self.steady_rps),
            (self.burst_s, self.burst_rps),
            (self.after_s, self.steady_rps),
        ):
            times += [begin_s + time_s for time_s in poisson(rate_rps, length_s, chance)]
            begin_s += length_s
        return times


def able_rps(profile: ModelProfile, cores: int, slo_s: float, max_batch: int) -> float:
    """R: the most that one Body can take within the objective; 0 where no batch meets it."""
    rates = [0.0]
    for batch in range(1, max_batch + 1):
        seconds = profile.whole.at(cores, batch)
        if seconds is not None and seconds <= slo_s:
            rates.append(batch / seconds)
    return max(rates)


def burst_for(profile: ModelProfile, slo_s: float, max_batch: int, *, times: float = 1.3) -> Burst:
    """The burst for a Body of one core."""
    rate_rps = able_rps(profile, 1, slo_s, max_batch)
    return Burst(steady_rps=0.5 * rate_rps, burst_rps=times * rate_rps)
