"""What a function has, looked at ten times a second while the load runs.

Bodies and Shadows come from `GET /gnomon/functions/{name}`, sizes of batches from the difference of two readings of /metrics,
memory is what all instances hold together.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from benchmarks.gnomon import Gnomon

EVERY_S = 0.1
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Look:
    """One moment. `batch` is the mean size of the batches sent since the look before, None where none was."""

    at_s: float
    bodies: int
    shadows: int
    offloaded: int
    batch: float | None
    memory_mib: float


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
        ready = [body for body in detail["bodies"] if body["state"] == "ready"]
        return Look(
            at_s,
            len(ready),
            sum(body["shadow"] is not None for body in ready),
            int(detail["pairs"]["offloaded_samples"]),
            samples / count if count and samples else None,
            float(usage.get("totalMemoryBytes", 0)) / MIB,
        )

    def _batches(self) -> tuple[float, float]:
        """How many batches were sent so far, and of how many samples."""
        names = ("gnomon_batch_size_count", "gnomon_batch_size_sum")
        count, samples = (self._ours.series(name, self._name) for name in names)
        return count, samples
