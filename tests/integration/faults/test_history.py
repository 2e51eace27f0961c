"""The checker finds what it is there to find: a test that relies on it can fail."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.integration.faults.history import BrokenPromiseError, Execution, History


def run(token: str, instance: str = "i-1") -> Execution:
    return Execution(token, instance, 42, 1, 0.5)


def ok(history: History, token: str, echoed: str | None = None, instance: str = "i-1") -> None:
    history.answered(token, 200, {"x-instance": instance}, (echoed or token).encode(), 1.0)


def refused(history: History, token: str, status: int, code: str) -> None:
    body = json.dumps({"error": {"code": code}}).encode()
    history.answered(token, status, {"x-openfaas-internal": "gnomon"}, body, 1.0)


def good() -> History:
    history = History()
    for token in ("answered", "refused", "left"):
        history.sent(token, 0.0)
    history.executed(run("answered"))
    ok(history, "answered")
    refused(history, "refused", 429, "queue_full")
    history.left("left", 1.0)
    return history


def test_a_good_history_is_counted() -> None:
    assert good().check() == {"200": 1, "429 queue_full": 1, "left": 1}


def lost(history: History) -> None:
    history.sent("lost", 0.0)


def answered_twice(history: History) -> None:
    ok(history, "answered")


def answered_after_it_left(history: History) -> None:
    ok(history, "left")


def unasked(history: History) -> None:
    history.executed(run("ghost"))


def executed_twice(history: History) -> None:
    history.executed(run("answered", "i-2"))


def executed_although_refused(history: History) -> None:
    history.executed(run("refused"))


def confused(history: History) -> None:
    history.sent("mine", 0.0)
    history.executed(run("mine"))
    ok(history, "mine", "yours")


def answered_by_another(history: History) -> None:
    history.sent("mine", 0.0)
    history.executed(run("mine", "i-2"))
    ok(history, "mine")


def unexplained(history: History) -> None:
    history.sent("mine", 0.0)
    history.answered("mine", 500, {}, b"oops", 1.0)


def broken_off(history: History) -> None:
    history.sent("mine", 0.0)
    history.broke_off("mine", 1.0)


FAULTS = {
    lost: "never answered",
    answered_twice: "answered twice",
    answered_after_it_left: "answered twice",
    unasked: "never sent",
    executed_twice: "executed too often",
    executed_although_refused: "refused with queue_full, and executed",
    confused: "got the answer of 'yours'",
    answered_by_another: "has not executed it",
    unexplained: "neither function nor gateway says",
    broken_off: "broken off",
}


@pytest.mark.parametrize(("fault", "said"), FAULTS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_promise_is_found(fault: Callable[[History], None], said: str) -> None:
    history = good()
    fault(history)
    with pytest.raises(BrokenPromiseError, match=said):
        history.check()


def test_retryable_request_runs_at_most_twice() -> None:
    history = good()
    history.executed(run("answered", "i-2"))
    history.check(may_run_again=True)
    history.executed(run("answered", "i-3"))
    with pytest.raises(BrokenPromiseError, match="executed too often"):
        history.check(may_run_again=True)
