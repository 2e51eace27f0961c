"""Claims have verdicts and reasons; tables keep their digits; a page needs nothing beside it."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reports.claims import Claim, counted, judged, unmeasured
from benchmarks.reports.figures import INK, SERIES, Measured, picture, table
from benchmarks.reports.page import Section
from benchmarks.reports.report import Report


def drawn(panels: list[Any]) -> None:
    panels[0].plot([1, 2], [3, 4], color=SERIES[0], label="a < b & c")
    panels[0].legend()


def test_a_claim_that_does_not_hold_says_why() -> None:
    assert judged("Figure 1", "It rises.", "It rises.", holds=True, why="never").why == ""
    assert judged("Figure 1", "It rises.", "It falls.", holds=False, why="Another machine.").verdict == "not reproduced"
    with pytest.raises(ValueError, match="without a reason"):
        Claim("Figure 1", "It rises.", "It falls.", "not reproduced")
    with pytest.raises(ValueError, match="not known"):
        Claim("Figure 1", "It rises.", "It rises.", "fine", "because")  # type: ignore[arg-type]


def test_what_is_not_measured_says_what_to_run() -> None:
    claim = unmeasured("Figure 3", "It is slow.", "python -m benchmarks baselines")
    assert claim.verdict == "not measured"
    assert claim.why == "run: python -m benchmarks baselines"
    assert counted([claim, claim]) == "2 not measured"


def test_tables_keep_every_digit_in_files_and_show_four() -> None:
    one = table("rates", "Rates", ("hour", "1/s", "note"), [(1, 52.123456789, None), (2, 0.1, "a, b")])
    rows = list(csv.reader(io.StringIO(one.to_csv())))
    assert rows == [["hour", "1/s", "note"], ["1", "52.123456789", ""], ["2", "0.1", "a, b"]]
    assert one.to_json()["rows"][0] == {"hour": 1, "1/s": 52.123456789, "note": None}
    assert "<td class='number'>52.12</td>" in one.to_html()
    with pytest.raises(ValueError, match="does not fit"):
        table("rates", "Rates", ("hour",), [(1, 2)])


def test_a_picture_alone_has_colours_and_in_a_page_the_pages() -> None:
    one = picture("fig1", "A line.", drawn)
    assert SERIES[0] in one.svg
    assert SERIES[0] not in one.inlined()
    assert "var(--series-1)" in one.inlined()
    assert INK not in one.inlined()
    identifiers = re.findall(r' id="([^"]*)"', one.inlined())
    assert identifiers
    assert all(name.startswith("fig1-") for name in identifiers)
    assert set(re.findall(r'(?:url\(|href=")#([^")]*)', one.inlined())) <= set(identifiers)


def test_a_page_needs_nothing_beside_it_and_escapes_what_it_is_told(tmp_path: Path) -> None:
    section = Section(
        "fig1",
        "Figure 1: <b>",
        ("Text & more.",),
        (picture("fig1", "A line.", drawn),),
        (table("rates", "Rates", ("hour", "1/s"), [(1, 52.0)]),),
        (judged("Figure 1", "a < b", "b > a", holds=True, why=""),),
    )
    page = Report("A paper", ("About it.",), {"Machine": "this one"}, (section,)).write(tmp_path)
    text = page.read_text(encoding="utf-8")
    assert "Figure 1: &lt;b&gt;" in text
    assert "a &lt; b" in text
    assert not re.search(r"<(script|link|img|iframe)\b", text)
    beside = {name for name in re.findall(r"href=['\"]([^#'\"][^'\"]*)", text) if "w3.org" not in name}
    assert beside
    assert all((tmp_path / name).is_file() for name in beside)
    document = json.loads((tmp_path / "report.json").read_bytes())
    assert document["claims"][0]["verdict"] == "reproduced"
    assert json.loads((tmp_path / "rates.json").read_bytes())["rows"] == [{"hour": 1, "1/s": 52.0}]


def test_what_another_benchmark_measured_is_read_where_it_lies(tmp_path: Path) -> None:
    assert not Measured("baselines", tmp_path).there
    figure = {"key": "mark: cost", "value": 1.5, "unit": "$", "goal": None, "comparison": "", "met": "", "detail": "a day"}
    document = {"name": "baselines", "measured_at": "2026-11-21", "machine": "this one", "figures": [figure]}
    (tmp_path / "baselines.json").write_text(json.dumps(document))
    found = Measured("baselines", tmp_path)
    assert found.there
    assert found.having("mark", "cost") == [figure]
    assert found.figure("mark: cost") == figure
    assert found.figure("mark") is None
    assert found.table("baselines", "Baselines").rows == (("mark: cost", 1.5, "$", "", "a day"),)
