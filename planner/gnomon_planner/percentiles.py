"""The percentile of every plan of a space, worked out only as far as somebody asks.

Each takes some ten values of F. Which of them are within an SLO takes one value each, F(SLO). Where none is, and the quickest is
asked for, it takes one value again and the percentiles of those that are quicker than what was found so far: of thousands of
plans that are mostly those of batches of one. A worked number: of 8,736 plans (13 sizes, 14 batches, 48 timeouts) with nine
ratios to their service times all percentiles took 0.6 s, and which are within an SLO 0.05 s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gnomon_planner.counting import Array
from gnomon_planner.latency import quantile
from gnomon_planner.maps import Map
from gnomon_planner.plans import Size, Space
from gnomon_planner.spread import Spread
from gnomon_planner.sweep import Indices, Waits, WaitsOfBatch


@dataclass(frozen=True, slots=True)
class Served:
    """Those sizes that can serve batches of up to B, by their numbers in the space: S_k, shape (sizes, B), and its spread."""

    rows: Indices
    service_s: Array
    spread: Spread
    waits: WaitsOfBatch

    def among(self, rows: range) -> Served:
        """Those of these numbers."""
        here = (self.rows >= rows.start) & (self.rows < rows.stop)
        return Served(self.rows[here], self.service_s[here], self.spread.among(here), self.waits)


class Percentiles:
    """Those of all combinations, in seconds, shape (sizes, batches, timeouts); infinite where a size cannot serve a batch.

    `served` is what there is to each of the batches.
    """

    def __init__(self, process: Map, space: Space, percent: float) -> None:
        quantile(percent)
        self._percent = percent
        self._shape = (len(space.sizes), len(space.batches), len(space.timeouts_s))
        waits = Waits(process, space.batches, space.timeouts_s)
        spread = Spread.of([size.ratios for size in space.sizes])
        self.served = tuple(_served(space.sizes, spread, batch, waits[batch]) for batch in space.batches)

    @cached_property
    def all_s(self) -> Array:
        """Every one."""
        found = np.full(self._shape, math.inf)
        for number, here in self._among(range(self._shape[0])):
            found[here.rows, number] = here.waits.percentiles(here.service_s, self._percent, here.spread)
        return found

    def within(self, limit_s: float, rows: range) -> npt.NDArray[np.bool_]:
        """Which of these sizes' are at most `limit_s`."""
        found = np.zeros(self._shape, dtype=bool)
        for number, here in self._among(rows):
            found[here.rows, number] = here.waits.reached(here.service_s, self._percent, here.spread, limit_s)
        return found[rows.start : rows.stop]

    def least_s(self, rows: range) -> Array:
        """Those of these sizes; where another one was found to be quicker, infinite."""
        found, least_s = np.full(self._shape, math.inf), math.inf
        for number, here in self._among(rows):
            seconds = here.waits.percentiles(here.service_s, self._percent, here.spread, least_s)
            found[here.rows, number] = seconds
            least_s = min(least_s, float(seconds.min()))
        return found[rows.start : rows.stop]

    def _among(self, rows: range) -> Iterator[tuple[int, Served]]:
        """By the number of the batch, what there is to it."""
        for number, served in enumerate(self.served):
            here = served.among(rows)
            if len(here.rows):
                yield number, here


def _served(sizes: Sequence[Size], spread: Spread, batch: int, waits: WaitsOfBatch) -> Served:
    able = np.array([row for row, size in enumerate(sizes) if len(size.service_s) >= batch], dtype=np.intp)
    service_s = np.array([sizes[row].service_s[:batch] for row in able]).reshape(len(able), batch)
    return Served(able, service_s, spread.among(able), waits)
