"""What queue-proxy tells of the last second, at port 9090: one protobuf message `Stat` of `pkg/autoscaler/metrics/stat.proto`.

What came by an activator is in both numbers, and told once more beside them; nothing here depends on the way that requests took.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnomon_core import protobuf

PAGE = "/metrics"
MOST_BYTES = 4096
"""A pod's name has 253 bytes at most, and all else is 50."""
MOST = 1e6
"""No pod holds, or is sent in a second, more requests."""


@dataclass(frozen=True, slots=True)
class PodStat:
    """The last second of a pod, or of several: requests in them on average, and how many came."""

    concurrency: float = 0.0
    rps: float = 0.0

    def __add__(self, other: PodStat) -> PodStat:
        return PodStat(self.concurrency + other.concurrency, self.rps + other.rps)

    def __mul__(self, pods: float) -> PodStat:
        return PodStat(self.concurrency * pods, self.rps * pods)


def read_stat(data: bytes) -> PodStat:
    """The statistics in a message.

    Raises ValueError for what is none.
    """
    found = protobuf.read(data)
    return PodStat(concurrency=_requests(found, 2), rps=_requests(found, 4))


def _requests(found: protobuf.Fields, number: int) -> float:
    value = protobuf.double(found, number)
    if not 0.0 <= value <= MOST:
        msg = f"field {number} is {value}"
        raise ValueError(msg)
    return value
