"""A run second by second: what came, what was there to serve it, and what became of it.

      s  asked  late   p50 ms   p95 ms  batch  Bodies  Shadows  offloaded  MiB
     15     13     0       88      141    1.3       1      0+1          0  512

Instances are the most of a second, those that are ready, `+` those that start: a Body loads its model, a Shadow its blocks, and
`-` those that drain. Latencies and lateness are of the requests that were to be sent in that second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.burst.picture import Seen
from benchmarks.burst.watch import Look
from gnomon_simulator.results import percentile

HEADING = (
    f"{'s':>3} {'asked':>6} {'late':>5} {'p50 ms':>7} {'p95 ms':>7} {'batch':>6} {'Bodies':>7} {'Shadows':>8} "
    f"{'offloaded':>9} {'MiB':>6}"
)


@dataclass(frozen=True, slots=True)
class Second:
    """One second of a run; None where nothing was answered or sent. `late` counts late and refused requests."""

    at_s: int
    asked: int
    late: int
    p50_s: float | None
    p95_s: float | None
    batch: float | None
    bodies: str
    shadows: str
    offloaded: int
    memory_mib: float

    def __str__(self) -> str:
        p50_ms, p95_ms = ("-" if seconds is None else f"{1e3 * seconds:.0f}" for seconds in (self.p50_s, self.p95_s))
        batch = "-" if self.batch is None else f"{self.batch:.1f}"
        return (
            f"{self.at_s:3d} {self.asked:6d} {self.late:5d} {p50_ms:>7} {p95_ms:>7} {batch:>6} {self.bodies:>7} "
            f"{self.shadows:>8} {self.offloaded:9d} {self.memory_mib:6.0f}"
        )


def seconds(run: Seen) -> list[Second]:
    """All of the run's, also those in which nothing happened."""
    points, found, offloaded = run.points(), [], run.looks[0].offloaded if run.looks else 0
    for at_s in range(math.ceil(run.burst.duration_s)):
        looks = [look for look in run.looks if at_s <= look.at_s < at_s + 1]
        latencies = sorted(latency_s for intended_s, latency_s in points if at_s <= intended_s < at_s + 1)
        late, asked = run.violations(at_s, at_s + 1)
        before, offloaded = offloaded, looks[-1].offloaded if looks else offloaded
        found.append(
            Second(
                at_s,
                asked,
                late,
                percentile(latencies, 50),
                percentile(latencies, 95),
                _mean_batch(looks),
                _most(looks, "body"),
                _most(looks, "shadow"),
                offloaded - before,
                max((look.memory_mib for look in looks), default=0.0),
            )
        )
    return found


def by_second(run: Seen) -> str:
    """A row a second."""
    return "\n".join((HEADING, *map(str, seconds(run))))


def _mean_batch(looks: Sequence[Look]) -> float | None:
    batches = sum(look.batches for look in looks)
    return sum(look.samples for look in looks) / batches if batches else None


def _most(looks: Sequence[Look], kind: str) -> str:
    """`2+1`: two are ready at most, one more starts."""
    ready, starting, draining = (
        max((look.count(kind, state) for look in looks), default=0) for state in ("ready", "starting", "draining")
    )
    return f"{ready}{f'+{starting}' if starting else ''}{f'-{draining}' if draining else ''}"
