"""The report on BATCH, made in small: every claim has a verdict, every table its files, and it goes on where it was."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks.reports.batch import services
from benchmarks.reports.batch.__main__ import STEPS, main
from benchmarks.reports.batch.demand import served
from benchmarks.reports.batch.services import Service
from benchmarks.reports.batch.setting import QUICK, THOROUGH
from benchmarks.reports.report import VERDICTS
from gnomon_planner.billing import LAMBDA, PerCall
from gnomon_planner.maps import Map
from gnomon_planner.optimizer import Landscape
from gnomon_planner.plans import Space

pytestmark = pytest.mark.timeout(300)  # seven seconds of work, on a machine that may have much else to do
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


def test_the_page_has_every_figure(folder: Path) -> None:
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert all(f"<section id='{name}'>" in page for name in FIGURES)
    for text in page.split("<section id='")[1:]:
        name, _, section = text.partition("'>")
        # Some are drawn from what another benchmark has kept of each minute: they say so where it has not.
        assert "<svg" in section or "has not been measured yet: python -m benchmarks" in section, name


def test_every_claim_has_a_verdict_and_a_reason_where_it_is_not_reproduced(folder: Path) -> None:
    claims = json.loads((folder / "report.json").read_bytes())["claims"]
    assert len(claims) >= 20
    for claim in claims:
        assert claim["verdict"] in VERDICTS
        assert claim["says"]
        assert claim["found"]
        assert claim["why"] or claim["verdict"] == "reproduced"


def test_every_table_is_there_as_csv_and_as_json_with_the_same_rows(folder: Path) -> None:
    names = ["claims", *json.loads((folder / "report.json").read_bytes())["tables"]]
    assert len(names) > len(FIGURES)
    for name in names:
        with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        document = json.loads((folder / f"{name}.json").read_bytes())
        assert [list(row) for row in rows] == [document["columns"]] * len(document["rows"])
        assert rows


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


def test_a_plan_counts_with_times_that_vary_as_the_measured_ones_do() -> None:
    """One run in six takes half as long again: P95 of one request is that, not the median."""
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


def test_all_that_is_chosen_from_was_measured() -> None:
    for setting in (QUICK, THOROUGH):
        assert max(setting.plan_batches) <= max(setting.batches)


@pytest.mark.slow
@pytest.mark.torch
def test_a_model_is_measured_on_one_core_and_on_two() -> None:
    step = next(iter(services.steps(THOROUGH)))
    result = step.work({"model": "torchvision:squeezenet1_1", "batches": [1, 2], "repeats": 3}, {})
    assert [(cell["cores"], cell["batch"]) for cell in result["cells"]] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert all(len(cell["seconds"]) == 3 and min(cell["seconds"]) > 0.0 and cell["peak_mb"] > 50.0 for cell in result["cells"])
    assert Service(result).row(1769, 2)[1] > 0.0
