"""A replica that becomes the leader begins to decide, whatever prevents it at first."""

import asyncio

import pytest

from gnomon_core.clock import VirtualClock
from gnomon_core.errors import GnomonError
from gnomon_server.replicas import begin_to_lead


@pytest.mark.parametrize(
    "broken",
    [GnomonError(503, "kubernetes_busy", "It is busy."), OSError(116, "Stale file handle"), KeyError("metadata")],
)
async def test_a_new_leader_retries_until_it_can_decide(broken: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """It renews the Lease all the while: nobody else would decide."""
    clock, leading, attempts = VirtualClock(), asyncio.Event(), list[float]()

    async def lead() -> None:
        attempts.append(clock.now_s())
        if len(attempts) < 3:
            raise broken

    task = asyncio.create_task(begin_to_lead(leading, lead, clock))
    await clock.advance(10.0)
    assert attempts == [], "another process leads"
    leading.set()
    await clock.advance(10.0)
    await task
    assert attempts == [10.0, 11.0, 12.0]
    warnings = [record.getMessage() for record in caplog.records]
    assert [one.startswith("this gateway leads and cannot start to decide yet") for one in warnings] == [True] * 2
