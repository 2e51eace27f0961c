"""Visits side by side: what one process cannot go on with is not waited for until the others have made them all."""

import math
import time
from pathlib import Path
from typing import cast

import pytest

from benchmarks.regression.cells import Cell, Kept, Times, Visit
from benchmarks.regression.measuring import Worker, measure

VISITS = [Visit(number, 0, (128.0, 1)) for number in range(200)]


class Timed:
    """A worker that takes 10 ms a visit; or is interrupted in its first."""

    def __init__(self, *, interrupted: bool = False) -> None:
        self._interrupted = interrupted

    def times(self, cell: Cell, runs: int) -> Times:
        del cell
        if self._interrupted:
            raise KeyboardInterrupt
        time.sleep(0.01)
        return Times((0.1,) * runs, (0.1,) * runs)


def measured(kept: Kept, *workers: Timed) -> int:
    """How many visits were made."""
    measure(cast("list[Worker]", list(workers)), VISITS, kept, runs=1, end_s=math.inf, say=lambda _: None)
    return len(VISITS) - len(kept.missing(VISITS))


def test_all_are_made_side_by_side(tmp_path: Path) -> None:
    assert measured(Kept(tmp_path / "kept", {}), Timed(), Timed()) == len(VISITS)


def test_an_interruption_ends_all_of_them_and_keeps_what_was_measured(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept", {})
    with pytest.raises(KeyboardInterrupt):
        measured(kept, Timed(interrupted=True), Timed())
    assert len(kept.missing(VISITS)) > len(VISITS) / 2
