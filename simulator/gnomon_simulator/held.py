"""Instances that are held, event by event: how many batches are in service at once, and how long each waits for an instance.

With instances enough, batches sent at 0.0, 0.1 and 0.2 s that take 0.25 s each are in service three at a time from 0.2 to 0.25 s.
With two instances the third waits from 0.2 to 0.25 s for the first one's. Batches are served in the order in which they are sent.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from gnomon_simulator.buffer import Vector


def busy_quantile(sent_s: Vector, service_s: Vector, stretch_s: tuple[float, float], share: float = 0.999) -> int:
    """The least n such that for this share of the stretch at most n batches are in service, with instances enough; at least 1."""
    begin_s, end_s = stretch_s
    times = np.concatenate([sent_s, sent_s + service_s])
    steps = np.repeat([1, -1], len(sent_s))
    order = np.argsort(times, kind="stable")
    edges = np.clip(np.concatenate([[begin_s], times[order], [end_s]]), begin_s, end_s)
    busy = np.concatenate([[0], np.cumsum(steps[order])])
    lasting_s = np.bincount(busy, weights=np.diff(edges))
    return max(1, int(np.searchsorted(np.cumsum(lasting_s), share * (end_s - begin_s) * (1.0 - 1e-12))))


def instance_waits(sent_s: Vector, service_s: Vector, instances: Sequence[tuple[float, int]]) -> Vector:
    """How long each batch waits for an instance, of which there are so many since these moments (the first: before it too).

    One that is taken away while it serves ends its batch first.
    """
    moments = [*(since_s for since_s, _ in instances[1:]), math.inf]
    counts = [count for _, count in instances]
    waits = np.empty(len(sent_s))
    ends: list[float] = []
    place, now_s = 0, -math.inf
    for number, (sent, lasts_s) in enumerate(zip(sent_s.tolist(), service_s.tolist(), strict=True)):
        now_s = max(now_s, sent)
        while True:
            while moments[place] <= now_s:
                place += 1
            while ends and ends[0] <= now_s:
                heapq.heappop(ends)
            if len(ends) < counts[place]:
                break
            now_s = min(moments[place], ends[0] if ends else math.inf)
        waits[number] = now_s - sent
        heapq.heappush(ends, now_s + lasts_s)
    return waits
