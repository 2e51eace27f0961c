"""The table of a profiling run, its estimate, and that planning and accounting count alike."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from gnomon_core.errors import GnomonError
from gnomon_planner.plans import LAMBDA
from gnomon_platforms.aws_lambda.invocation import Report
from gnomon_platforms.aws_lambda.profiling import Measured, Table, Wishes, check_budget, estimate, measured
from gnomon_platforms.aws_lambda.resources import invoke_usd


def report(ms: float, *, init_ms: float = 0.0) -> Report:
    return Report(ms, -(-ms // 1), 1769, 100, init_ms)


def test_the_planner_s_price_is_the_platform_s() -> None:
    planned = LAMBDA["x86"].per_call(1769, np.array([0.106]))[0]
    assert invoke_usd(0.106, 1769) == pytest.approx(planned)


def test_the_example_of_the_docstring_costs_about_seventeen_cents() -> None:
    wishes = Wishes(tuple(product(range(1024, 10_240, 342), range(1, 21))), 10)
    assert 0.1 < estimate(wishes, wishes.cells) < 0.4


def test_nothing_left_to_measure_costs_nothing() -> None:
    assert estimate(Wishes(((1769, 1),), 10), []) == 0.0


def test_cold_starts_are_kept_apart() -> None:
    cell = measured(1769, 4, [report(900, init_ms=700), report(100), report(110), report(120)])
    assert (cell.seconds, cell.cold_s) == (0.11, (0.7,))
    assert cell.runs_s == (0.1, 0.11, 0.12)
    with pytest.raises(GnomonError, match="no Invoke found a warm sandbox"):
        measured(1769, 4, [report(900, init_ms=700)])


def test_a_table_is_gone_on_with_only_where_it_is_of_the_same(tmp_path: Path) -> None:
    path, identity = tmp_path / "times.json", {"model": "net@1", "region": "us-east-1"}
    table = Table.open(path, identity)
    table.cost = 0.5
    table.add(Measured(1769, 1, 0.1, 0.02, 0.1, 90, (0.1, 0.1), ()))
    again = Table.open(path, identity)
    assert (again.cells, again.cost) == (table.cells, 0.5)
    assert Table.open(path, {**identity, "model": "net@2"}).cells == {}
    path.write_text("{")
    assert Table.open(path, identity).cells == {}


def test_a_run_that_costs_twice_what_was_expected_stops() -> None:
    said: list[str] = []
    check_budget(0.009, 0.001, said.append)
    check_budget(0.19, 0.1, said.append)
    with pytest.raises(GnomonError, match="twice"):
        check_budget(0.21, 0.1, said.append)
    assert len(said) == 1
