"""The document of the simulated hours tells what was published."""

from pathlib import Path

from benchmarks.reports.asyfunc_hours import BELOW, METRICS, by_serial, rows, table, tables

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
    told = (
        "asyfunc- without layers 0.3, asyfunc- without adaptive 2.5e-3, k-lv 0.7, opt 0; 16 cores (b = 8 in 2 ms, η 20), 20 nodes"
    )
    found = rows(
        [
            figure("private", "SLO violations", 0.25, told),
            figure("shared", "SLO violations", 0.24),
            figure("private", "Bodies", 9),
        ]
    )
    others = {"asyfunc- without layers": 0.3, "asyfunc- without adaptive": 0.0025, "k-lv": 0.7, "opt": 0.0}
    assert found["SLO violations"] == {"vgg16": {"asyfunc": 0.25, **others, "asyfunc, shared": 0.24}}
    assert found["memory"] == {}


def test_what_was_not_simulated_of_a_model_is_a_dash() -> None:
    text = table(METRICS["memory"], {"b": {"asyfunc": 1.0}, "a": {"asyfunc": 2.0, "od": 1234.5}})
    assert text.splitlines()[2:] == ["| model | asyfunc | od |", "| --- | --- | --- |", "| a | 2 | 1.23e+03 |", "| b | 1 | – |"]


def test_serial_fractions_stand_side_by_side_where_more_than_the_usual_one_was_simulated() -> None:
    told = "k-lv 0.7, od 2; 16 cores (b = 8 in 2 ms, η 20), 20 nodes"
    usual, other = figure("private", "memory", 3.0, told), figure("private", "memory", 4.0, told, serial=10)
    assert by_serial([usual], "memory") == {}
    found = by_serial([usual, other], "memory")["vgg16"]
    assert (found["asyfunc, 5%"], found["asyfunc, 10%"], found["od, 10%"]) == (3.0, 4.0, 2.0)
    assert rows([usual, other])["memory"]["vgg16"]["asyfunc"] == 3.0
