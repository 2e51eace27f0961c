"""The tokens of namespaces, read from an API server that has bad days."""

from __future__ import annotations

import base64

import pytest

from gnomon_core.clock import WallClock
from gnomon_platforms.knative.batching.tokens import KEPT_S, Tokens
from tests.integration.kubernetes_platform.scripted import Answer, Script, refusal, serving

SECRET = Answer({"kind": "Secret", "data": {"gnomon-batch-token": base64.b64encode(b"please\n").decode()}})


class Clock(WallClock):
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s


@pytest.mark.parametrize(
    "trouble",
    [refusal(503, "ServiceUnavailable"), refusal(429, "TooManyRequests"), Answer(b"<html>")],
    ids=["503", "429", "proxy"],
)
async def test_a_token_that_could_not_be_read_is_asked_for_by_the_next_pod(trouble: Answer) -> None:
    with serving(Script([trouble, SECRET])) as api:
        tokens = Tokens(api, Clock())
        assert [await tokens.of("users", "gnomon-batch-token") for _ in range(2)] == ["", "please"]


@pytest.mark.parametrize(("first", "token"), [(SECRET, "please"), (refusal(404, "NotFound"), "")], ids=["there", "none"])
async def test_what_was_told_is_kept_for_half_a_minute(first: Answer, token: str) -> None:
    script, clock = Script([first, Answer({"data": {"gnomon-batch-token": base64.b64encode(b"new").decode()}})]), Clock()
    with serving(script) as api:
        tokens = Tokens(api, clock)
        assert [await tokens.of("users", "gnomon-batch-token") for _ in range(3)] == [token] * 3
        assert len(script.asked) == 1
        clock.time_s = KEPT_S
        assert await tokens.of("users", "gnomon-batch-token") == "new"


async def test_each_service_has_the_key_that_it_names(caplog: pytest.LogCaptureFixture) -> None:
    keys = {name: base64.b64encode(token).decode() for name, token in (("one", b"ones"), ("two", b"twos"))}
    script = Script([Answer({"kind": "Secret", "data": {"one": keys["one"]}}), Answer({"kind": "Secret", "data": keys})])
    with serving(script) as api:
        tokens = Tokens(api, Clock())
        assert await tokens.of("users", "one") == "ones"
        # It was added since: what is known of the other keys says nothing of this one.
        assert [await tokens.of("users", name) for name in ("two", "one", "three")] == ["twos", "ones", ""]
        assert len(script.asked) == 3
    assert "gnomon-batch-token has no key three" in caplog.text
