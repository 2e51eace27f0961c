"""A report that was interrupted goes on where it was, and measures again only what may have changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reports.report import Step, Store

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


def test_what_depends_on_a_changed_result_is_measured_again(store: Store) -> None:
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
