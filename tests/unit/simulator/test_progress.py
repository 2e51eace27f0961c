"""Progress of a long run: nothing at first, then a line now and then, or a bar on a terminal."""

import io
from itertools import count

import pytest

from gnomon_simulator.arrivals import constant
from gnomon_simulator.commands import Progress, progress_text
from gnomon_simulator.opt import most_instances
from gnomon_simulator.profiles import constant as constant_profile
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, simulate
from tests.unit.simulator.test_simulation import settings


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_line_says_what_is_done_and_what_is_left() -> None:
    text = progress_text("simulate lv", "", 9 * 3600.0, 24 * 3600.0, 12.0)
    assert text == "simulate lv [#########...............]  38%   9.0 h of 24.0 h simulated   12 s, about 20 s left"
    assert "3 of 8 cells" in progress_text("evaluate", "cells", 3, 8, 60.0)


@pytest.mark.parametrize(("out", "written"), [(io.StringIO(), 5), (Terminal(), 60)])
def test_a_terminal_has_a_bar_and_a_log_a_line_every_ten_seconds(out: io.StringIO, written: int) -> None:
    clock = count()
    progress = Progress("run", out=out, clock=lambda: float(next(clock)))
    for second in range(1, 60):
        progress.at(second, 60)
    lines = out.getvalue().replace("\r", "\n").split("\n")
    assert len([line for line in lines if "run [" in line]) in (written, written - 1, written - 2)


def test_watching_a_run_changes_nothing() -> None:
    plan = FunctionPlan("f", settings(), constant_profile("v", 0.05), constant(20.0, 30.0), warm=1)
    seen: list[tuple[float, float]] = []
    watched = simulate([plan], [NodePlan("n", 8)], watch=lambda done, total: seen.append((done, total)))["f"]
    alone = simulate([plan], [NodePlan("n", 8)])["f"]
    assert list(watched.requests.finished_s) == list(alone.requests.finished_s)
    assert watched.summary() == alone.summary()
    assert seen[-1][0] == seen[-1][1] == plan.arrivals_s[-1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_opt_never_wants_more_than_its_bound() -> None:
    """Twelve at once in half an objective of 1 s, 0.1 s each alone: 24 a second, 10 an instance."""
    assert most_instances([float(second) for second in range(9)] + [9.0] * 12, (0.1, 0.15), 1.0) == 3
    assert most_instances([], (0.1,), 1.0) == 1
