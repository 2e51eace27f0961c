"""Pods that are sent nothing yet, for their nodes are about to give them other cores."""

from __future__ import annotations

import asyncio

import pytest

from gnomon_platforms.knative.batching import channel as slots
from gnomon_platforms.knative.batching.channel import PodName, Waiting
from tests.unit.knative_autoscaler.played import pod

POD = pod(cores=2.0)


async def test_nothing_is_kept_of_a_pod_that_waited_and_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "WAITING_S", 0.0)
    again: list[PodName] = []
    waiting = Waiting(again.append)
    assert waiting.waits(POD)
    await asyncio.sleep(0.02)
    assert again == [("users", "a")]
    assert not waiting.waits(POD), "it has waited for long enough"
    waiting.forget(POD)
    assert waiting.waits(POD), "as one that was never seen"
