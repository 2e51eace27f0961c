"""Clients that trickle are let go of in time. They have been at it since the first attack, and everybody else was served."""

from __future__ import annotations

import pytest

from tests.integration.hostile.conftest import SlowClients, check_error

HEAD_S, BODY_S = 10, 30


@pytest.mark.parametrize("kind", SlowClients.PREFIXES)
def test_a_trickle_is_ended_with_a_408(slow_clients: SlowClients, kind: str) -> None:
    slow_clients.wait()
    answers, after_s = slow_clients.ended[kind]
    assert [answer.status for answer in answers] == [408]
    assert check_error(answers[0])["code"] == "request_too_slow"
    limit_s = HEAD_S if kind == "head" else BODY_S
    # The gateway looks twice a second, and is under attack; a trickle that began its time anew would never be ended.
    assert limit_s - 1 < after_s < limit_s + 10
