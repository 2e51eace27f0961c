"""The report on INFaaS, made in small: loads are simulated, pictures drawn, and each claim has its verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.reports.infaas import __main__ as report
from benchmarks.reports.report import VERDICTS

pytestmark = pytest.mark.timeout(300)


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
