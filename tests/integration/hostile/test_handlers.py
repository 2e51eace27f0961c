"""Functions that harm themselves and try to harm others: their own requests get the right code in time, nobody else notices."""

from __future__ import annotations

import json

import pytest
import urllib3

from tests.integration.hostile.conftest import Function, check_error, read_answers
from tests.waiting import eventually

MIB = 1 << 20
LOST, FAILED, WRONG, LATE = (502, "instance_lost"), (500, "handler_failed"), (500, "wrong_answer"), (504, "deadline_exceeded")
DEEDS: list[tuple[str, object, tuple[int, str]]] = [
    ("exit", 3, LOST),
    ("exit", 0, LOST),
    ("segfault", "", LOST),
    ("abort", "", LOST),
    ("kill itself", "", LOST),
    ("close everything", "", LOST),
    ("close the channel", "", LOST),
    ("scribble", 1, LOST),
    ("scribble", 10_000, LOST),
    ("promise much", "", LOST),
    ("promise something", "", LATE),
    ("sleep", 30, LATE),
    ("freeze", "", LATE),
    ("raise", "", FAILED),
    ("raise SystemExit", "", FAILED),
    ("answer a surrogate", "", FAILED),
    ("answer an object", "", WRONG),
    ("status", 99, WRONG),
    ("status", 101, WRONG),
    ("status", 600, WRONG),
    ("stream", "raise", FAILED),
    ("stream", "exit", LOST),
    ("stream", "object", WRONG),
]


@pytest.mark.parametrize(
    ("deed", "argument", "expected"), DEEDS, ids=[f"{deed} {argument}".strip() for deed, argument, _ in DEEDS]
)
def test_a_deed_costs_its_own_request_and_nothing_else(
    request: pytest.FixtureRequest, bystander: Function, deed: str, argument: object, expected: tuple[int, str]
) -> None:
    villain: Function = request.getfixturevalue({LOST: "villain", LATE: "dawdler"}.get(expected, "survivor"))
    answer = villain.call(deed, argument)
    assert bystander.works()
    error = json.loads(answer.data)["error"]
    assert (answer.status, error["code"]) == expected
    assert "secret" not in answer.data.decode()
    if expected in (LOST, LATE):
        check_error(answer)
    if expected != LATE:
        # One that hangs is given time; the others are there again at once.
        eventually(villain.works, "it was not replaced")


GREED: list[tuple[str, object, tuple[int, ...]]] = [
    ("bomb", "", (200, 502, 504)),
    ("hoard", 400, (500, 502)),
    ("answer at length", 50, (200, 502)),
    ("answer at length", 400, (500, 502)),
    ("talk", 100, (200,)),
    ("talk in one line", 50, (200, 502)),
    ("leave later", "", (200,)),
]


@pytest.mark.parametrize(
    ("deed", "argument", "statuses"), GREED, ids=[f"{deed} {argument}".strip() for deed, argument, _ in GREED]
)
def test_greedy_handler_harms_only_itself(
    request: pytest.FixtureRequest, bystander: Function, deed: str, argument: object, statuses: tuple[int, ...]
) -> None:
    # What must be answered has a deadline that a busy machine keeps.
    villain: Function = request.getfixturevalue("patient" if statuses == (200,) else "villain")
    gateway = villain.gateway
    before_bytes = gateway.resident_bytes()
    answer = villain.call(deed, argument)
    assert answer.status in statuses, answer.data[:500]
    assert bystander.works()
    if (deed, answer.status) == ("answer at length", 200):
        assert len(answer.data) == 50 * MIB
    del answer
    assert gateway.resident_bytes() - before_bytes < 192 * MIB
    eventually(villain.works, "it was not replaced")


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Name": "a\r\nX-Smuggled: b"},
        {"X-Name\r\nX-Smuggled": "b"},
        {"X-Name": "a\nHTTP/1.1 200 OK"},
        {"": "a"},
        {"X Name": "a"},
        {"X-Name:": "a"},
        {"X-Name": "\0"},
        {"X-Name": "\u20ac"},
    ],
    ids=repr,
)
def test_a_header_that_would_be_two_is_refused(bystander: Function, headers: dict[str, str]) -> None:
    answer = bystander.call("headers", body=json.dumps(headers).encode())
    assert answer.status in (500, 502)
    assert "X-Smuggled" not in answer.headers


def test_a_function_cannot_say_what_is_ours_to_say(bystander: Function) -> None:
    forged = {
        "X-OpenFaaS-Internal": "gnomon",
        "X-Call-Id": "forged",
        "X-Start-Time": "12345",
        "X-Duration-Seconds": "54321",
        "Content-Length": "99",
        "Transfer-Encoding": "chunked",
        "Connection": "close",
        "Date": "yesterday",
    }
    answer = bystander.call("headers", body=json.dumps(forged).encode())
    assert (answer.status, answer.data) == (200, b"x")
    assert "X-OpenFaaS-Internal" not in answer.headers
    assert not set(forged.values()) & set(answer.headers.values())
    for name in ("X-Call-Id", "X-Start-Time", "X-Duration-Seconds", "Content-Length", "Date"):
        assert len(answer.headers.getlist(name)) == 1


def test_a_stream_that_breaks_off_is_not_taken_for_whole(villain: Function, bystander: Function) -> None:
    for argument in ("raise", "exit"):
        with pytest.raises(urllib3.exceptions.ProtocolError):
            villain.call("stream", argument, Accept="text/event-stream")
        assert bystander.works()
        eventually(villain.works, "it was not replaced")


def test_a_stream_that_nobody_reads_does_not_pile_up(villain: Function, bystander: Function) -> None:
    gateway = villain.gateway
    before_bytes = gateway.resident_bytes()
    with gateway.connect() as connection:
        head = (
            f"POST /function/{villain.name}/stream HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\nContent-Length: 0\r\n\r\n"
        )
        connection.sendall(head.encode())
        eventually(villain.works, "it goes on for somebody who does not listen", 10)
        assert gateway.resident_bytes() - before_bytes < 64 * MIB
        assert bystander.works()
        with pytest.raises((OSError, AssertionError, ValueError)):
            read_answers(connection)
