"""Reports made in small: every claim has a verdict, every table its files, and a report goes on where it was."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import report as report_format
from benchmarks.programs import ROOT
from benchmarks.reports.batch import services
from benchmarks.reports.batch.__main__ import STEPS, main
from benchmarks.reports.batch.demand import served
from benchmarks.reports.batch.services import Service
from benchmarks.reports.batch.setting import QUICK, THOROUGH
from benchmarks.reports.evaluation.__main__ import main as evaluate
from benchmarks.reports.evaluation.grid import LOADS, POLICIES, Cell, Policy, grid
from benchmarks.reports.evaluation.loads import FUNCTIONS, MMPPS, arrivals
from benchmarks.reports.evaluation.runs import Row
from benchmarks.reports.evaluation.verdicts import area_between, claims, least_cost
from benchmarks.reports.infaas import __main__ as report
from benchmarks.reports.report import VERDICTS
from gnomon_core.errors import GnomonError
from gnomon_planner.billing import LAMBDA, PerCall
from gnomon_planner.maps import Map
from gnomon_planner.optimizer import Landscape
from gnomon_planner.plans import Space

FIGURES = (
    "fig2",
    "fig4",
    "fig9",
    "fig10",
    "fig11",
    "fig12",
    "fig13",
    "fig14",
    "fig15",
    "fig17",
    "fig2-machines",
    "fig3",
    "fig16",
    "others",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("batch")
    assert main(["--quick", "--output", str(made)]) == made / "index.html"
    return made


@pytest.mark.timeout(300)
def test_the_page_has_every_figure(folder: Path) -> None:
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert all(f"<section id='{name}'>" in page for name in FIGURES)
    for text in page.split("<section id='")[1:]:
        name, _, section = text.partition("'>")
        # Some are drawn from what another benchmark has kept of each minute: they say so where it has not.
        assert "<svg" in section or "has not been measured yet: python -m benchmarks" in section, name


@pytest.mark.timeout(300)
def test_every_claim_has_a_verdict_and_a_reason_where_it_is_not_reproduced(folder: Path) -> None:
    claims = json.loads((folder / "report.json").read_bytes())["claims"]
    assert len(claims) >= 20
    for claim in claims:
        assert claim["verdict"] in VERDICTS
        assert claim["says"]
        assert claim["found"]
        assert claim["why"] or claim["verdict"] == "reproduced"


@pytest.mark.timeout(300)
def test_every_table_is_there_as_csv_and_as_json_with_the_same_rows(folder: Path) -> None:
    names = ["claims", *json.loads((folder / "report.json").read_bytes())["tables"]]
    assert len(names) > len(FIGURES)
    for name in names:
        with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        document = json.loads((folder / f"{name}.json").read_bytes())
        assert [list(row) for row in rows] == [document["columns"]] * len(document["rows"])
        assert rows


@pytest.mark.timeout(300)
def test_report_resumes_where_it_stopped(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    (again / "index.html").unlink()
    (again / "steps" / "fig4.json").unlink()
    main(["--quick", "--output", str(again)])
    said = capsys.readouterr().out
    steps = [step.name for each in STEPS for step in each(QUICK)]
    assert said.count(": kept") == len(steps) - 1
    assert "fig4 …" in said
    assert (again / "index.html").is_file()


@pytest.mark.timeout(300)
def test_memory_between_one_and_two_cores_lies_between_their_times() -> None:
    cells = [
        {"cores": cores, "batch": batch, "seconds": [seconds]}
        for cores, batch, seconds in ((1, 1, 0.1), (1, 4, 0.4), (2, 1, 0.06), (2, 4, 0.2))
    ]
    service = Service({"source": "by hand", "cells": cells})
    assert service.row(1769, 4) == pytest.approx((0.1, 0.2, 0.3, 0.4))
    assert service.row(1769 / 2, 1) == pytest.approx((0.2,))
    assert service.row(2 * 1769, 4) == pytest.approx((0.06, 0.32 / 3, 0.46 / 3, 0.2))
    assert service.row(1.5 * 1769, 1) == pytest.approx((0.02 + 0.08 / 1.5,))
    with pytest.raises(ValueError, match="up to 4"):
        service.row(1769, 5)


@pytest.mark.timeout(300)
def test_a_plan_counts_with_times_that_vary_as_the_measured_ones_do() -> None:
    """A run in six takes half as long again: P95 of one request is that, not the median."""
    cells = [
        {"cores": cores, "batch": batch, "seconds": [seconds * ratio for ratio in (1.0, 1.0, 1.0, 1.0, 1.0, 1.5)]}
        for cores, batch, seconds in ((1, 1, 0.1), (1, 4, 0.4), (2, 1, 0.06), (2, 4, 0.2))
    ]
    size = Service({"source": "by hand", "cells": cells}).size(1769, 4)
    assert size.service_s == pytest.approx((0.1, 0.2, 0.3, 0.4))
    assert size.ratios == pytest.approx((1.0, 1.0, 1.0, 1.0, 1.0, 1.5) * 4)
    assert size.mean_ratio == pytest.approx(6.5 / 6.0)
    alone = Landscape(Map.poisson(1.0), Space((size,), (1,), (0.0,)), PerCall(LAMBDA["x86"]), 95.0)
    assert alone.cheapest(0.12).plan.latency_s == pytest.approx(0.15)
    seconds, taken_s = served(np.arange(6000.0), 1, 0.0, size.service_s, Service({"source": "", "cells": cells}).ratios)
    assert np.quantile(seconds, 0.95) == pytest.approx(0.15)
    assert taken_s == pytest.approx(seconds)


@pytest.mark.timeout(300)
def test_all_that_is_chosen_from_was_measured() -> None:
    for setting in (QUICK, THOROUGH):
        assert max(setting.plan_batches) <= max(setting.batches)


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.torch
def test_a_model_is_measured_on_one_core_and_on_two() -> None:
    step = next(iter(services.steps(THOROUGH)))
    result = step.work({"model": "torchvision:squeezenet1_1", "batches": [1, 2], "repeats": 3}, {})
    assert [(cell["cores"], cell["batch"]) for cell in result["cells"]] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert all(len(cell["seconds"]) == 3 and min(cell["seconds"]) > 0.0 and cell["peak_mb"] > 50.0 for cell in result["cells"])
    assert Service(result).row(1769, 2)[1] > 0.0


@pytest.mark.timeout(300)
def test_report_has_its_pictures_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "CACHE", tmp_path / "infaas")
    document = report.main(["--quick", "--output", str(tmp_path / "docs")])
    text = document.read_text(encoding="utf-8")
    for name in ("fig5", "fig6"):
        assert f"(figures/infaas/{name}.svg)" in text
        assert "simulated" in (document.parent / "figures" / "infaas" / f"{name}.svg").read_text(encoding="utf-8")
    page = tmp_path / "infaas-quick" / "index.html"
    assert all(f"<section id='{name}'>" in page.read_text(encoding="utf-8") for name in ("table3", "table6", "fig7", "table7"))
    claims = json.loads((page.parent / "report.json").read_bytes())["claims"]
    assert len(claims) == len(report.published_claims())
    assert {claim["verdict"] for claim in claims} <= set(VERDICTS)
    assert all(claim["why"] or claim["verdict"] == "reproduced" for claim in claims)
    steps = sorted((page.parent / "steps").glob("series-*.json"))
    of_seconds = json.loads(steps[0].read_bytes())["result"]["infaas"]
    assert 0 < sum(of_seconds["in_time"]) <= sum(of_seconds["asked"])
    capsys.readouterr()
    assert report.main(["--quick", "--output", str(tmp_path / "docs")]).read_text(encoding="utf-8") == text
    assert capsys.readouterr().out.count(": kept") == len(steps)


@pytest.fixture
def kept(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for what is kept."""
    folder = tmp_path_factory.getbasetemp() / "kept"
    monkeypatch.setattr(report_format, "FOLDER", folder)
    return folder


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text("time_s,requests\n" + "".join(f"{second},{3 + second % 4}\n" for second in range(40)))
    return path


def quick(output: Path, *more: str) -> Path:
    return evaluate(["--quick", "--seconds", "40", "--processes", "1", "--output", str(output), *more])


@pytest.mark.usefixtures("kept")
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
