"""What a policy that plans from the arrivals remembers of them: counts per second of the last hour, in its own memory.

`gnomon/plan-window` names another time than an hour. The history that every policy sees reaches back 300 s; these counts go on
from where the last decision left them. While nobody asked, as during a restart, nothing is counted: what came before is followed
by what came after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from gnomon_autoscaler.counting import Memory, moment
from gnomon_core.scaling import Observation

BIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Counts:
    """Arrivals per second up to `until_s`; the last `new` of them were not there at the decision before."""

    bins: tuple[float, ...]
    until_s: float
    new: int

    @property
    def seconds(self) -> float:
        """How long they cover."""
        return len(self.bins) * BIN_S

    @property
    def arrivals(self) -> float:
        """How many there were."""
        return sum(self.bins)

    @property
    def latest(self) -> tuple[float, ...]:
        """The new ones."""
        return self.bins[len(self.bins) - self.new :]

    def since(self, since_s: float) -> Counts:
        """Without what came before."""
        kept = max(0, min(len(self.bins), round((self.until_s - since_s) / BIN_S)))
        return Counts(self.bins[len(self.bins) - kept :], self.until_s, 0)


def counted(memory: Memory, seen: Observation, *, away: bool) -> Counts:
    """The counts that are remembered and those of the history that have come since, in whole seconds."""
    history, before = seen.history, memory.get("counts")
    each = max(1, round(BIN_S / history.bin_s))
    until_s = moment(memory, "counted_at_s")
    there = len(history.arrivals)
    if until_s is not None:
        there = 0 if away else max(0, min(there, round((history.end_s - until_s) / history.bin_s)))
    rest = there % each
    first, last = len(history.arrivals) - there, len(history.arrivals) - rest
    new = tuple(round(sum(history.arrivals[begin : begin + each]), 3) for begin in range(first, last, each))
    old = cast("tuple[float, ...]", before) if isinstance(before, tuple) else ()
    bins = (old + new)[-round(seen.settings.plan_window_s / BIN_S) :]
    return Counts(bins, history.end_s - rest * history.bin_s, len(new))
