"""Cell after cell until all are measured, and the noisy ones again.

Each cell is in the journal before the next one begins. Cells of one number of cores are one order, so that the model is loaded
once for them. When everything has been measured once, cells whose spread is above `NOISY` are tried again; the quickest try
counts, and its spread is part of the profile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from gnomon_core.errors import GnomonError
from gnomon_profiler.measuring.cells import NOISY, Cell, Plan, Subject, order_for
from gnomon_profiler.measuring.journal import Journal, Result, spread_of


class Measures(Protocol):
    """Carries out orders: `process.MeasuringProcess`."""

    def measure(self, order: Mapping[str, Any]) -> Iterator[dict[str, Any]]: ...


@dataclass(slots=True)
class Remaining:
    """How long the rest will take, from how long the cells so far have taken."""

    total_cost: float
    began_s: float
    done_cost: float = 0.0

    def after(self, cell: Cell, now_s: float) -> float:
        """Seconds left once this cell is finished."""
        self.done_cost += cell.cost
        return (now_s - self.began_s) * max(self.total_cost - self.done_cost, 0.0) / self.done_cost


class Session:
    """One profiling run. `known` cells of an earlier one are not measured; `progress` gets a line for each that is.

    `now_s` is a monotonic clock.
    """

    def __init__(
        self,
        subject: Subject,
        plan: Plan,
        journal: Journal,
        process: Measures,
        known: Mapping[Cell, Result] | None = None,
        *,
        progress: Callable[[str], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subject = subject
        self._plan = plan
        self._journal = journal
        self._process = process
        self._known = known or {}
        self._progress = progress
        self._now_s = now_s

    def run(self) -> dict[Cell, Result]:
        """Every cell's best measurement, and what was known before of others.

        Raises:
            GnomonError: 500 `measuring_failed`; what was measured before is in the journal.

        """
        cells = list(self._plan.cells())
        missing = [cell for cell in cells if self._found(cell) is None]
        if len(missing) < len(cells):
            self._progress(f"{self._subject.name}: {len(cells) - len(missing)} of {len(cells)} cells are measured already")
        self._measure(missing)
        while noisy := self._noisy(cells):
            self._progress(f"{self._subject.name}: {len(noisy)} noisy cells are measured again")
            self._measure(noisy)
        return {**self._known, **{cell: self._result(cell) for cell in cells}}

    def _found(self, cell: Cell) -> Result | None:
        return self._journal.get(cell) or self._known.get(cell)

    def _result(self, cell: Cell) -> Result:
        result = self._found(cell)
        if result is None:
            raise GnomonError(500, "measuring_failed", f"Nothing was said of {cell}.", "Try again.")
        return result

    def _noisy(self, cells: Iterable[Cell]) -> list[Cell]:
        found = [(cell, self._journal.get(cell)) for cell in cells]
        return [
            cell
            for cell, result in found
            if result is not None and spread_of(result) > NOISY and self._journal.tries(cell) < self._plan.tries
        ]

    def _measure(self, cells: Sequence[Cell]) -> None:
        remaining = Remaining(sum(cell.cost for cell in cells), self._now_s())
        finished = 0
        for _, group in groupby(cells, key=_order_key):
            together = list(group)
            measured = self._process.measure(order_for(together, self._subject, self._plan))
            for cell, result in zip(together, measured, strict=True):
                self._journal.add(cell, result)
                finished += 1
                left_s = remaining.after(cell, self._now_s())
                self._progress(f"{self._subject.name}: {_said(cell, result)}  ({finished} of {len(cells)}, {_left(left_s)})")


def _order_key(cell: Cell) -> str:
    return f"latency {cell.cores}" if cell.what == "latency" else cell.key


def _said(cell: Cell, result: Result) -> str:
    if cell.what != "latency":
        return str(cell)
    spread = spread_of(result)
    return f"{cell}: {1000 * result['whole_s']:.1f} ms ± {100 * spread:.1f} % in {result['repeats']} runs"


def _left(seconds: float) -> str:
    """Example: "about 2 min left"."""
    if seconds >= 90:  # noqa: PLR2004 - from here on minutes say enough
        return f"about {seconds / 60:.0f} min left"
    return f"about {seconds:.0f} s left"
