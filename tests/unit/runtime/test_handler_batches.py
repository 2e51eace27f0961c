"""Batches in a handler.py: in order, answered one by one, and whose failure is whose."""

from __future__ import annotations

import json

import pytest

from tests.unit.runtime.handlers import Make, answer, headers


def test_one_bad_member_never_fails_its_neighbours(make: Make) -> None:
    members = answer(make("def handle(event, context): return str(1 // int(event.body))"), b"1", b"0", b"1")
    assert [member.code for member in members] == [200, 500, 200]


def test_handle_batch_answers_many_at_once_and_in_order(make: Make) -> None:
    application = make("""
        calls = []
        def handle_batch(events, context):
            calls.append(len(events))
            size = {"X-Size": len(events)}
            return [ValueError("!") if e.body == b"!" else {"statusCode": 202, "body": e.body, "headers": size} for e in events]
        def handle(event, context): return "alone"
    """)
    members = answer(application, b"a", b"!", b"c")
    assert [(m.code, bytes(m.body)) for m in (members[0], members[2])] == [(202, b"a"), (202, b"c")]
    assert members[1].code == 500
    assert "X-Size: 3" in headers(members[0])
    assert answer(application, b"a")[0].body == b"alone"
    assert application.hello() == {"kind": "handler", "batches": True, "max_batch": 8, "concurrency": 1}


def test_a_batch_of_one_goes_to_handle_batch_where_there_is_no_handle(make: Make) -> None:
    application = make("def handle_batch(events, context): return [str(len(events))]")
    assert answer(application, b"a")[0].body == b"1"


@pytest.mark.parametrize(
    ("result", "says"),
    [("[1]", "1 results for a batch of 3"), ('"abc"', "str; handle_batch returns a list"), ("None", "NoneType")],
)
def test_a_wrong_list_of_results_answers_nobody_with_anothers(make: Make, result: str, says: str) -> None:
    members = answer(make(f"RETRY_SAFE = True\ndef handle_batch(events, context): return {result}"), b"a", b"b", b"c")
    assert {member.code for member in members} == {500}
    assert says in json.loads(bytes(members[0].body))["error"]["message"]


RAISING = """
    {declaration}
    calls = []
    def handle_batch(events, context):
        calls.append(len(events))
        if any(e.body == b"!" for e in events): raise RuntimeError("poison")
        return [e.body for e in events]
    def handle(event, context): return str(len(calls))
"""


def test_a_batch_that_raises_is_not_run_again_unless_the_handler_allows_it(make: Make) -> None:
    application = make(RAISING.format(declaration=""))
    assert [member.code for member in answer(application, b"a", b"!", b"c")] == [500, 500, 500]
    assert answer(application, b"")[0].body == b"1"


@pytest.mark.parametrize("guilty", range(8))
def test_a_retry_safe_batch_isolates_the_guilty_member(make: Make, guilty: int) -> None:
    application = make(RAISING.format(declaration="RETRY_SAFE = True"))
    bodies = [b"!" if index == guilty else b"%d" % index for index in range(8)]
    members = answer(application, *bodies)
    assert [member.code for member in members] == [500 if index == guilty else 200 for index in range(8)]
    assert [bytes(m.body) for i, m in enumerate(members) if i != guilty] == [b for b in bodies if b != b"!"]
    assert int(answer(application, b"")[0].body) <= 1 + 2 * 3, "2·log2(8) further calls"
