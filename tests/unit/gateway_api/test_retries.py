"""When an asynchronous call is tried again."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.errors import GnomonError
from gnomon_gateway.asynchronous.calls import FunctionAnswer, answer_of
from gnomon_gateway.asynchronous.queue import DEFAULT_RULE, RetryRule, read_retry_rule


def ours(status: int, retry_after_s: float | None = None) -> FunctionAnswer:
    return answer_of(GnomonError(status, "code", "message", retry_after_s=retry_after_s))


def theirs(status: int, *headers: tuple[str, str]) -> FunctionAnswer:
    return FunctionAnswer(status, headers, b"")


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_our_own_not_now_is_retried_and_the_functions_is_final(status: int) -> None:
    assert DEFAULT_RULE.wait_s(ours(status), 1, Random(1)) is not None
    assert DEFAULT_RULE.wait_s(theirs(status), 1, Random(1)) is None


@pytest.mark.parametrize("status", [200, 202, 400, 404, 413, 500])
def test_nothing_else_is_retried_by_default(status: int) -> None:
    assert DEFAULT_RULE.wait_s(ours(status), 1, Random(1)) is None


def test_listed_statuses_are_retried_whoever_answered_and_others_not() -> None:
    rule = read_retry_rule({"com.openfaas.retry.codes": "408, 500"})
    assert rule.wait_s(theirs(500), 1, Random(1)) is not None
    assert rule.wait_s(ours(500), 1, Random(1)) is not None
    assert rule.wait_s(ours(503), 1, Random(1)) is None


def test_attempts_are_tries_after_the_first() -> None:
    rule = RetryRule(attempts=2)
    waits = [rule.wait_s(ours(503), tried, Random(1)) for tried in (1, 2, 3)]
    assert [wait is not None for wait in waits] == [True, True, False]
    assert RetryRule(attempts=0).wait_s(ours(503), 1, Random(1)) is None


@given(tried=st.integers(1, 10**6), seed=st.integers())
def test_the_wait_doubles_within_its_bounds(tried: int, seed: int) -> None:
    rule = RetryRule(attempts=10**7, min_wait_s=0.5, max_wait_s=8.0)
    wait_s = rule.wait_s(ours(503), tried, Random(seed))
    whole_s = min(8.0, 0.5 * 2 ** min(tried - 1, 64))
    assert wait_s is not None
    assert whole_s / 2 <= wait_s <= whole_s


def test_retry_after_is_a_lower_bound_up_to_the_longest_wait() -> None:
    rule = RetryRule(min_wait_s=0.1, max_wait_s=20.0)
    assert rule.wait_s(ours(429, 7.0), 1, Random(1)) == 7.0
    assert rule.wait_s(ours(429, 600.0), 1, Random(1)) == 20.0


def test_annotations_are_read() -> None:
    assert read_retry_rule({}) == DEFAULT_RULE
    assert read_retry_rule(
        {
            "com.openfaas.retry.attempts": "3",
            "com.openfaas.retry.codes": "429,503",
            "com.openfaas.retry.min_wait": "500ms",
            "com.openfaas.retry.max_wait": "1m",
        }
    ) == RetryRule(3, frozenset({429, 503}), 0.5, 60.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attempts", "-1"),
        ("attempts", "many"),
        ("attempts", "9999"),
        ("attempts", ""),
        ("codes", "5xx"),
        ("codes", ""),
        ("codes", "429,"),
        ("codes", "100"),
        ("min_wait", "soon"),
        ("max_wait", "-1s"),
        ("max_wait", "10000h"),
        ("max_wait", "1ms"),
    ],
)
def test_a_bad_annotation_says_what_is_allowed(name: str, value: str) -> None:
    with pytest.raises(GnomonError) as refused:
        read_retry_rule({f"com.openfaas.retry.{name}": value})
    assert refused.value.status == 400
    assert f"com.openfaas.retry.{name}" in refused.value.message
    assert refused.value.hint.startswith("It must be ")
