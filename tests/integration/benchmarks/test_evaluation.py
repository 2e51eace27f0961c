"""The evaluation of the policies: a quick run, its page, going on where it was, and traces that readers bring."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.programs import ROOT
from benchmarks.reports.evaluation.__main__ import main
from benchmarks.reports.evaluation.grid import LOADS, POLICIES, Cell, Policy, grid
from benchmarks.reports.evaluation.loads import FUNCTIONS, MMPPS, arrivals
from benchmarks.reports.evaluation.runs import Row
from benchmarks.reports.evaluation.verdicts import area_between, claims, least_cost
from gnomon_core.errors import GnomonError


@pytest.fixture(autouse=True)
def kept(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for what is kept."""
    folder = tmp_path_factory.getbasetemp() / "kept"
    monkeypatch.setattr(report, "FOLDER", folder)
    return folder


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text("time_s,requests\n" + "".join(f"{second},{3 + second % 4}\n" for second in range(40)))
    return path


def quick(output: Path, *more: str) -> Path:
    return main(["--quick", "--seconds", "40", "--processes", "1", "--output", str(output), *more])


def test_quick_evaluation_of_a_readers_trace_goes_on_where_it_was(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = quick(tmp_path / "docs", "--traces", str(trace)).read_text()
    assert "Every number on this page is **simulated**" in page
    assert "mine.csv" in page
    cells = grid(40.0, [f"file:{trace}"], quick=True)
    assert f"{len(cells)} of the {len(cells)} cells" in page
    with (tmp_path / "docs" / "figures" / "evaluation" / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(cells)
    document = json.loads((tmp_path / "docs" / "figures" / "evaluation" / "rows.json").read_text())
    assert [row["policy"] for row in document["rows"]] == [row["policy"] for row in rows]
    assert {float(row["late, simulated"]) <= 1.0 for row in rows} == {True}
    capsys.readouterr()
    again = quick(tmp_path / "again", "--traces", str(trace), "--kept").read_text()
    assert f"{len(cells)} of {len(cells)} cells were simulated before" in capsys.readouterr().out
    assert again.split("## ")[1:] == page.split("## ")[1:]


@pytest.mark.parametrize("text", ["no,table\nat,all\n", "{", "t_seconds,count\n0,x\n", ""])
def test_a_trace_that_is_not_understood_is_refused_before_anything_is_simulated(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.csv").write_text(text)
    command = [sys.executable, "-m", "benchmarks.reports.evaluation", "--quick", "--traces", str(tmp_path / "odd.csv")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("evaluate: ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("load", LOADS)
def test_loads_have_the_rate_that_is_asked_for_and_repeat(load: str) -> None:
    switching = load in MMPPS
    rate_rps, duration_s = (1.0, 40_000.0) if switching else (20.0, 1200.0)
    functions = arrivals(load, rate_rps, duration_s, 1)
    assert len(functions) == (FUNCTIONS if load == "azure-8" else 1)
    requests = sum(len(times) for times in functions)
    assert requests == pytest.approx(rate_rps * duration_s, rel=0.2 if switching else 0.03)
    assert all(list(times) == sorted(times) for times in functions)
    assert [list(times) for times in functions] == [list(times) for times in arrivals(load, rate_rps, duration_s, 1)]
    assert [list(times) for times in functions] != [list(times) for times in arrivals(load, rate_rps, duration_s, 2)]


def test_an_unknown_load_is_refused() -> None:
    with pytest.raises(GnomonError, match="no arrival process"):
        arrivals("tide", 1.0, 10.0, 1)


def row(*, late: float = 0.0, memory_gb: float = 10.0, cores: float = 100.0, utility: float = 0.7) -> Row:
    return Row(late, late, memory_gb, cores, utility, 8.0, 9, 0, 100.0, 200.0, 1.0, 1000, 1.0)


def test_verdicts_follow_the_rows() -> None:
    asyfunc, batch = POLICIES[0], next(policy for policy in POLICIES if policy.name == "batch")

    def verdicts(memory_gb: float) -> dict[str, str]:
        found = [(Cell("head to head", asyfunc, seed=seed), row(memory_gb=memory_gb + seed / 100)) for seed in (1, 2)]
        found += [(Cell("head to head", batch, seed=seed), row()) for seed in (1, 2)]
        return {claim.says: claim.verdict for claim in claims(found)}

    assert verdicts(7.0)["Up to 23.4 % less memory than the state of the art."] == "reproduced"
    assert verdicts(7.0)["Up to 32.5 % less memory."] == "not reproduced"
    assert verdicts(9.0)["Up to 23.4 % less memory than the state of the art."] == "not reproduced"
    assert verdicts(9.0)["Shadows keep violations low through bursts."] == "not measured"


def test_area_between_curves_counts_where_both_have_a_point() -> None:
    ours, theirs = [(0.001, 10.0), (0.01, 8.0)], [(0.001, 12.0)]
    assert least_cost(ours, 0.0005) is None
    assert least_cost(ours, 0.005) == 10.0
    # 0.1 to 1 %: 20 % more, 20 of 41 steps; above: 50 % more, 21 of them.
    assert area_between(ours, theirs) == pytest.approx((20 * 0.2 + 21 * 0.5) / 41)
    assert area_between(ours, [(0.5, 1.0)]) is None


def test_cells_of_several_groups_are_simulated_once_and_policies_are_data() -> None:
    cells = grid(1800.0)
    assert len({cell.key for cell in cells}) < len(cells)
    assert {cell.group for cell in cells} >= {"pareto", "arrivals", "start", "ablation", "sensitivity", "clusters", "models"}
    assert Cell("a", Policy("od", "od")).key == Cell("b", Policy("od", "od")).key
    assert Cell("a", Policy("od", "od")).key != Cell("a", Policy("od", "od", alpha=0.8)).key
