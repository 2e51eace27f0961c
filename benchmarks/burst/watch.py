"""What a function has, looked at ten times a second while the load runs.

Bodies and Shadows, each in its state, come from `GET /gnomon/functions/{name}`, batches from the difference of two readings of
/metrics, memory is what all instances hold together.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.gnomon import Gnomon

EVERY_S = 0.1
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Look:
    """One moment.

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
