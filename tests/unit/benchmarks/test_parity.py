"""Parity decides as it says: decisions second by second, figures of a side, verdicts, and arrivals that repeat."""

import math
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.parity import live
from benchmarks.parity.__main__ import main
from benchmarks.parity.comparison import Decided, Side, byte_s, decided_by_second, equal_share, side, verdicts
from benchmarks.parity.page import Cell, Compared, figures, page
from gnomon_core.clock import rfc3339
from gnomon_core.errors import GnomonError

CREATE = {"action": "CreateBody", "cores": 2}
SHADOW = {"action": "CreateShadow", "body": "a"}
NO_SHADOW = {"action": "DestroyShadow", "id": "s"}


def decision(at: float | str, desired: int | None, *actions: dict[str, Any]) -> dict[str, Any]:
    return {"at": at, "desired": desired, "actions": list(actions)}


DOCUMENTS = [decision(10.0, 1, CREATE), decision(12.4, 2, CREATE), decision(13.2, None, SHADOW), decision(14.9, 1, NO_SHADOW)]
EXPECTED = [Decided(1, 2, 0), Decided(1, 2, 0), Decided(2, 2, 0), Decided(2, 2, 1), Decided(1, 2, 0)]


def test_decisions_are_read_second_by_second_from_the_first_that_acted() -> None:
    idle = decision(3.0, 0)
    assert decided_by_second([idle, *DOCUMENTS], 0.0, 5.0) == EXPECTED
    assert decided_by_second(DOCUMENTS, 2.0, 3.0) == EXPECTED[2:]


def test_live_and_simulated_documents_are_read_alike() -> None:
    live_documents = [document | {"at": rfc3339(1_795_305_600.0 + document["at"])} for document in reversed(DOCUMENTS)]
    assert decided_by_second(live_documents, 0.0, 5.0) == EXPECTED


def test_a_decision_a_second_late_counts_as_one_second() -> None:
    late = [DOCUMENTS[0], decision(13.4, 2, CREATE)]
    on_time = [DOCUMENTS[0], decision(12.4, 2, CREATE)]
    share = equal_share(decided_by_second(on_time, 0.0, 20.0), decided_by_second(late, 0.0, 20.0))
    assert share == pytest.approx(19 / 20)


def test_other_cores_and_other_lengths_are_not_equal() -> None:
    assert equal_share([Decided(1, 1, 0)], [Decided(1, 2, 0)]) == 0.0
    assert equal_share([Decided(1, 1, 0)] * 4, [Decided(1, 1, 0)] * 3) == 0.75
    assert equal_share([], []) == 1.0


def test_requests_without_an_answer_are_late() -> None:
    found = side([0.1, 0.2, 0.5], 5, 0.4, 3.0, ())
    assert found.late == pytest.approx(0.6)
    assert found.mean_s == pytest.approx(0.8 / 3)
    assert found.p95_s == 0.5


LIVE = Side(1000, 0.05, 0.2, 0.4, 10.0, (Decided(1, 1, 0),) * 100)


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({}, ""),
        ({"late": 0.069}, ""),
        ({"late": 0.071}, "late"),
        ({"mean_s": 0.221}, "mean"),
        ({"p95_s": 0.35}, "p95"),
        ({"p95_s": math.nan}, "p95"),
        ({"memory_gb_s": 10.4}, ""),
        ({"memory_gb_s": 10.6}, "memory × time"),
        ({"decided": (Decided(1, 1, 0),) * 95 + (Decided(2, 1, 0),) * 5}, ""),
        ({"decided": (Decided(1, 1, 0),) * 94 + (Decided(1, 1, 1),) * 6}, "decisions"),
    ],
)
def test_each_criterion_is_judged_by_its_own_limit(change: dict[str, Any], missed: str) -> None:
    found = verdicts(LIVE, replace(LIVE, **change))
    assert [verdict.name for verdict in found if not verdict.within] == ([missed] if missed else [])


def test_memory_times_time_holds_each_sample_until_the_next() -> None:
    assert byte_s([(0.0, 10), (2.0, 30), (3.0, 10)], 5.0) == 2 * 10 + 30 + 2 * 10
    assert byte_s([(0.0, 10), (2.0, 30), (9.0, 10)], 5.0) == 2 * 10 + 3 * 30
    assert byte_s([], 5.0) == 0.0


@pytest.mark.parametrize("stretch", live.STRETCHES)
def test_arrivals_repeat_and_stay_below_the_peak(stretch: str) -> None:
    times_s = live.arrivals(stretch, 50.0, 120.0, 1)
    assert times_s == live.arrivals(stretch, 50.0, 120.0, 1) != live.arrivals(stretch, 50.0, 120.0, 2)
    assert times_s == sorted(times_s)
    assert times_s[0] >= 0.0
    assert times_s[-1] < 120.0
    assert 0.25 < len(times_s) / (50.0 * 120.0) < 0.85


def test_the_page_and_the_figures_name_what_is_not_within() -> None:
    cell = Cell("calm", "od", 60.0)
    other = replace(LIVE, p95_s=0.5)
    rows = [Compared(cell, LIVE, other, verdicts(LIVE, other), 0.001)]
    text = page(rows, [], {"latency_s": {"1": {"1": 0.1}}, "load_s": 0.2}, 60.0, 180.0)
    assert "| calm | od | 1000 | 5.00 / 5.00 | 200 / 200 | 400 / 500 | 10.00 / 10.00 | 100.0 | p95 | 1.0 |" in text
    assert "4 of 5 within" in text
    assert "short run" in text
    assert [figure.key for figure in figures(rows) if figure.met == "missed"] == ["calm, od: p95"]


def test_an_unknown_policy_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(GnomonError, match="openfaas is not known") as refused:
        main(["--policies", "openfaas"])
    assert refused.value.code == "unknown_policies"


def test_equal_decisions_that_follow_each_other_are_one_row() -> None:
    one, two = Decided(1, 1, 0), Decided(2, 1, 0)
    assert side([0.1], 1, 1.0, 0.0, [one, one, two, one]).to_json()["decided"] == [
        {"seconds": 2, "bodies": 1, "cores": 1, "shadows": 0},
        {"seconds": 1, "bodies": 2, "cores": 1, "shadows": 0},
        {"seconds": 1, "bodies": 1, "cores": 1, "shadows": 0},
    ]
