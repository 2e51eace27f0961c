"""Reports on papers: steps, claims, pages and figures."""

import csv
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.batch_baselines import MINUTES, RATIOS, Minute, to_csv
from benchmarks.reports.asyfunc_hours import BELOW, METRICS, by_serial, rows, tables
from benchmarks.reports.asyfunc_hours import table as hours_table
from benchmarks.reports.batch import arrivals
from benchmarks.reports.batch.__main__ import published_claims, published_facts
from benchmarks.reports.batch.comparisons import COLOURS, COMPARISONS, PARTS, Comparison, claims
from benchmarks.reports.batch.hosted import ArrivalWindow
from benchmarks.reports.report import (
    INK,
    SERIES,
    Claim,
    Measured,
    Report,
    Section,
    Step,
    Store,
    counted,
    judged,
    listed,
    picture,
    read,
    renewed,
    table,
    unmeasured,
)


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


def test_missing_measurement_names_the_command() -> None:
    claim = unmeasured("Figure 3", "It is slow.", "python -m benchmarks baselines")
    assert claim.verdict == "not measured"
    assert claim.why == "run: python -m benchmarks baselines"
    assert counted([claim, claim]) == "2 not measured"


def test_tables_keep_every_digit_in_files_and_show_four() -> None:
    rendered = table("rates", "Rates", ("hour", "1/s", "note"), [(1, 52.123456789, None), (2, 0.1, "a, b")])
    rows = list(csv.reader(io.StringIO(rendered.to_csv())))
    assert rows == [["hour", "1/s", "note"], ["1", "52.123456789", ""], ["2", "0.1", "a, b"]]
    assert rendered.to_json()["rows"][0] == {"hour": 1, "1/s": 52.123456789, "note": None}
    assert "<td class='number'>52.12</td>" in rendered.to_html()
    with pytest.raises(ValueError, match="does not fit"):
        table("rates", "Rates", ("hour",), [(1, 2)])


def test_a_picture_alone_has_colours_and_in_a_page_the_pages() -> None:
    rendered = picture("fig1", "A line.", drawn)
    assert SERIES[0] in rendered.svg
    assert SERIES[0] not in rendered.inlined()
    assert "var(--series-1)" in rendered.inlined()
    assert INK not in rendered.inlined()
    identifiers = re.findall(r' id="([^"]*)"', rendered.inlined())
    assert identifiers
    assert all(name.startswith("fig1-") for name in identifiers)
    assert set(re.findall(r'(?:url\(|href=")#([^")]*)', rendered.inlined())) <= set(identifiers)


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
    links = {name for name in re.findall(r"href=['\"]([^#'\"][^'\"]*)", text) if "w3.org" not in name}
    assert links
    assert all((tmp_path / name).is_file() for name in links)
    document = json.loads((tmp_path / "report.json").read_bytes())
    assert document["claims"][0]["verdict"] == "reproduced"
    assert json.loads((tmp_path / "rates.json").read_bytes())["rows"] == [{"hour": 1, "1/s": 52.0}]


def test_results_of_other_benchmarks_are_read_in_place(tmp_path: Path) -> None:
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


ran: list[str] = []


def doubled(parameters: Mapping[str, Any], _: Mapping[str, Any]) -> dict[str, Any]:
    ran.append("doubled")
    return {"found": 2 * parameters["number"], "pair": (1, 2)}


def added(parameters: Mapping[str, Any], results: Mapping[str, Any]) -> int:
    ran.append("added")
    if parameters.get("fails"):
        raise OSError("the machine went away")
    return int(results["double"]["found"]) + 1


@pytest.fixture
def store(tmp_path: Path) -> Store:
    ran.clear()
    return Store(tmp_path / "steps", lambda _: None)


def steps(number: int = 3, *, fails: bool = False, sources: tuple[Path, ...] = ()) -> list[Step]:
    after = {"fails": True} if fails else {}
    return [Step("double", doubled, {"number": number}, sources=sources), Step("add", added, after, ("double",))]


def test_a_result_is_kept_as_json_and_not_measured_again(store: Store) -> None:
    first = store.results(steps())
    assert first == {"double": {"found": 6, "pair": [1, 2]}, "add": 7}
    assert store.results(steps()) == first
    assert ran == ["doubled", "added"]


def test_step_with_changed_inputs_is_measured_again(store: Store) -> None:
    store.results(steps(3))
    assert store.results(steps(4))["add"] == 9
    assert ran == ["doubled", "added"] * 2


def test_a_step_that_failed_is_the_first_to_run_next_time(store: Store) -> None:
    with pytest.raises(OSError, match="went away"):
        store.results(steps(fails=True))
    assert store.results(steps())["add"] == 7
    assert ran == ["doubled", "added", "added"]


def test_a_changed_source_is_a_changed_step(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "trace.csv"
    source.write_text("1\n")
    store.results(steps(sources=(source,)))
    source.write_text("2\n")
    store.results(steps(sources=(source,)))
    # Its result is the same, so that what comes after it is kept.
    assert ran == ["doubled", "added", "doubled"]


@pytest.mark.parametrize("content", ["", '{"key": "', "[]", "null"])
def test_a_file_that_is_no_result_is_measured_again(store: Store, content: str) -> None:
    store.results(steps())
    (store.folder / "double.json").write_text(content)
    assert store.results(steps())["add"] == 7
    assert ran == ["doubled", "added", "doubled"]


def test_progress_says_what_is_kept_and_what_is_measured(tmp_path: Path) -> None:
    said: list[str] = []
    store = Store(tmp_path, said.append)
    store.results(steps())
    store.results(steps())
    assert said[0] == "[1/2] double …"
    assert said[-2:] == ["[1/2] double: kept", "[2/2] add: kept"]


def test_steps_come_after_what_they_need_and_have_names_of_their_own(store: Store) -> None:
    with pytest.raises(ValueError, match="add"):
        store.results(steps()[::-1])
    with pytest.raises(ValueError, match="double"):
        store.results([steps()[0], steps()[0]])


COMMITTED = Path(__file__).parents[3] / "docs" / "figures" / "batch" / "claims.md"
FACTS = {"Machine": "2 cores, 24 GiB", "Made": "2026-11-21 22:45 UTC"}
CLAIMS = [
    judged("Figure 1", "It rises.", "It falls by 3 %.", holds=False, why="Prices: they are others."),
    unmeasured("Figure 2", "It is slow.", "python -m benchmarks slow"),
]


def test_a_list_is_read_as_it_was_written() -> None:
    text = listed("A paper", FACTS, CLAIMS)
    assert read(text) == ("A paper", FACTS, CLAIMS)
    assert "A paper: 2 claims, 1 not reproduced, 1 not measured. Machine:" in text
    with pytest.raises(ValueError, match="four cells"):
        read(text + "| Figure 3 | It is odd. |\n")


def test_renewed_claims_are_counted_again() -> None:
    measured = Claim("Figure 2", "It is slow.", "It takes 3 s.", "reproduced")
    text = renewed(listed("A paper", FACTS, CLAIMS), [measured], {"Benchmarks": "slow 2026-11-22"})
    assert read(text) == ("A paper", {**FACTS, "Benchmarks": "slow 2026-11-22"}, [CLAIMS[0], measured])
    assert "1 reproduced, 1 not reproduced. Machine:" in text
    with pytest.raises(ValueError, match="Figure 9"):
        renewed(text, [unmeasured("Figure 9", "It is new.", "a command")], {})


def test_the_committed_claims_say_what_the_committed_results_say() -> None:
    text = COMMITTED.read_text(encoding="utf-8")
    assert text == renewed(text, published_claims(), published_facts()), "python -m benchmarks.reports.batch --renew does it"


def test_every_benchmark_that_is_read_has_been_run() -> None:
    assert not [claim.where for claim in published_claims() if claim.verdict == "not measured"]


DOCUMENT = Path(__file__).parents[3] / "docs" / "figures" / "asyfunc" / "hours.md"


def figure(mode: str, metric: str, value: float, detail: str = "", serial: int = 5) -> dict[str, object]:
    return {
        "key": f"torchvision:vgg16@1: {mode}, {serial}% serial, 1.5 × SLO, κ by profile, 60 min: {metric}",
        "value": value,
        "detail": detail,
    }


def test_the_documents_tables_are_those_of_the_published_results() -> None:
    assert DOCUMENT.read_text().partition(BELOW)[2] == tables()


def test_a_row_has_every_policy_that_was_simulated_beside_asyfunc() -> None:
    expected = (
        "asyfunc- without layers 0.3, asyfunc- without adaptive 2.5e-3, k-lv 0.7, opt 0; 16 cores (b = 8 in 2 ms, η 20), 20 nodes"
    )
    found = rows(
        [
            figure("private", "SLO violations", 0.25, expected),
            figure("shared", "SLO violations", 0.24),
            figure("private", "Bodies", 9),
        ]
    )
    others = {"asyfunc- without layers": 0.3, "asyfunc- without adaptive": 0.0025, "k-lv": 0.7, "opt": 0.0}
    assert found["SLO violations"] == {"vgg16": {"asyfunc": 0.25, **others, "asyfunc, shared": 0.24}}
    assert found["memory"] == {}


def test_unsimulated_cell_is_a_dash() -> None:
    text = hours_table(METRICS["memory"], {"b": {"asyfunc": 1.0}, "a": {"asyfunc": 2.0, "od": 1234.5}})
    assert text.splitlines()[2:] == ["| model | asyfunc | od |", "| --- | --- | --- |", "| a | 2 | 1.23e+03 |", "| b | 1 | – |"]


def test_tables_compare_serial_fractions_if_several_were_simulated() -> None:
    title = "k-lv 0.7, od 2; 16 cores (b = 8 in 2 ms, η 20), 20 nodes"
    usual, other = figure("private", "memory", 3.0, title), figure("private", "memory", 4.0, title, serial=10)
    assert by_serial([usual], "memory") == {}
    found = by_serial([usual, other], "memory")["vgg16"]
    assert (found["asyfunc, 5%"], found["asyfunc, 10%"], found["od, 10%"]) == (3.0, 4.0, 2.0)
    assert rows([usual, other])["memory"]["vgg16"]["asyfunc"] == 3.0


CASES = {"Twitter": "Twitter, 1 h, P95 ≤ 800 ms", "Azure": "Azure, 1 h, P95 ≤ 150 ms", "W14": "W14, 1 h, P99 ≤ 800 ms"}


def row(late: float, percentile_s: float | None, usd_per_million: float) -> dict[str, Any]:
    return {"late": late, "percentile_s": percentile_s, "usd_per_million": usd_per_million}


ROWS = {
    "batch": row(0.01, 0.7, 2.0),
    "vanilla, largest": row(0.0, 0.06, 4.0),
    "vanilla, cherry-picked": row(0.0, 0.1, 3.0),
    "target-tracking": row(0.02, None, 2.5),
    "target-tracking, tuned": row(0.0, 0.14, 1.0),
    "mark": row(0.03, 0.9, 1.5),
}


def comparison(where: str) -> Comparison:
    return next(comparison for comparison in COMPARISONS if comparison.where == where)


def test_mark_is_told_beside_what_lambda_costs() -> None:
    holds, seen = comparison("Figure 3, Section II-C").holds(CASES["W14"], ROWS)
    assert holds
    assert seen == "MArk 3.00% late, P99 900 ms, Lambda 0.00% late at 2.00 times its cost"


def test_tuned_machines_are_told_with_what_they_cost() -> None:
    holds, seen = comparison("Figure 14, column 3").holds(CASES["Twitter"], ROWS)
    assert holds
    assert seen == "P95 140 ms beside BATCH's P95 700 ms, at 0.25 of the cost of vanilla Lambda, largest"


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda comparison: comparison.where)
def test_finding_is_a_sentence_with_numbers(comparison: Comparison) -> None:
    for demand in comparison.demands:
        _, seen = comparison.holds(CASES[demand], ROWS)
        assert re.search(r"\d", seen)
        assert not re.search(r"(\s|,|\bat|\bits|\bof)$", seen), seen
        assert ";" not in seen, "it parts the cases"


def test_every_published_case_belongs_to_a_compared_demand() -> None:
    published = [case["case"] for case in Measured("batch_baselines").document["cases"]]
    assert {name.partition(",")[0] for name in published} == set(CASES)


def test_every_claim_is_in_one_section() -> None:
    measured = Measured("batch_baselines")
    parts = [[claim.where for claim in claims(measured, part)] for part in (*PARTS, "others")]
    assert all(parts)
    assert sorted(where for part in parts for where in part) == sorted(claim.where for claim in claims(measured))


def test_a_long_day_is_shown_around_its_surge() -> None:
    flat = [50.0] * 100
    assert arrivals.around_surge(flat[:40]) == range(40)
    risen = [*flat, *[150.0] * 100]
    shown = arrivals.around_surge(risen)
    assert len(shown) == arrivals.SHOWN
    assert shown.index(100) == arrivals.SHOWN // 3
    late = [*flat, *[150.0] * 8]
    assert arrivals.around_surge(late)[-1] == len(late) - 1


def test_surge_is_drawn_minute_by_minute() -> None:
    before, during = Minute(10.0, 0.1, 0.2, 1.0), Minute(90.0, 5.0, None, 3.0)
    runs = {"mark": [before] * 5 + [during] * 5, "batch": [before] * 10}
    drawn = arrivals.over_time("fig3", "MArk beside BATCH.", runs, 0.8, COLOURS)
    assert all(text in drawn.svg for text in ("Arrivals", "P99 of each minute", "Machines held, or calls under way", "mark"))
    curves = {"W14": {who: [0.5] * len(RATIOS) for who in runs}}
    assert "latency ÷ SLO" in arrivals.exceeding("ccdf", "How late.", curves, COLOURS).svg


def test_minutes_are_read_where_they_were_kept(tmp_path: Path) -> None:
    assert arrivals.minutes(tmp_path) == {}
    minute = Minute(10.0, 0.1, None, 1.5)
    (tmp_path / MINUTES).write_text(to_csv([("Twitter, 1 h", "mark", [minute, minute]), ("Twitter, 1 h", "batch", [minute])]))
    assert arrivals.minutes(tmp_path) == {"Twitter, 1 h": {"mark": [minute, minute], "batch": [minute]}}


def test_a_window_counts_what_arrived_and_forgets_what_is_old() -> None:
    window = ArrivalWindow(100.0, window_s=5.0)
    window.add([100.1, 100.9, 102.5])
    assert window.counts(103.0) == (2, 0, 1)
    # Late, but still inside.
    window.add([101.5])
    assert window.counts(103.0) == (2, 1, 1)
    assert window.counts(103.0, since_s=102.0) == (1,)
    window.add([107.2])
    assert window.counts(108.0) == (0, 0, 0, 0, 1)
    # Too late: nobody asks any more.
    window.add([100.5])
    assert window.counts(108.0) == (0, 0, 0, 0, 1)


def test_an_unfinished_second_is_not_counted_yet() -> None:
    window = ArrivalWindow(0.0)
    window.add([0.1, 1.2, 1.3])
    assert window.counts(1.9) == (1,)
    assert window.counts(2.0) == (1, 2)


def test_after_a_long_silence_the_window_is_empty() -> None:
    window = ArrivalWindow(0.0, window_s=3.0)
    window.add([0.5])
    assert window.counts(1e9) == (0, 0, 0)
