"""Who else counts pods, where the API server does not say so at first."""

from __future__ import annotations

import asyncio

import pytest

from gnomon_core.functions import FunctionKey
from gnomon_platforms.kubernetes import conflicting_autoscalers as rivals
from gnomon_platforms.kubernetes.conflicting_autoscalers import Rivals
from tests.integration.kubernetes_platform.scripted import Answer, Script, listed, refusal, serving

FIGLET = FunctionKey("figlet", "fn")
THEIRS = {
    "metadata": {"name": "theirs", "namespace": "fn", "uid": "u1", "resourceVersion": "7"},
    "spec": {"scaleTargetRef": {"name": "figlet"}},
}


@pytest.mark.parametrize("answer", [refusal(403, "Forbidden"), refusal(404, "NotFound"), refusal(503, "ServiceUnavailable")])
async def test_a_kind_that_could_not_be_seen_is_asked_for_again(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "ASK_AGAIN_S", 0.05)
    told: asyncio.Queue[FunctionKey] = asyncio.Queue()
    # Those of the first kind are seen at once; the second is refused twice, as it was before a role was mended.
    script = Script([listed("1"), listed("1"), answer, answer, listed("7"), listed("7", THEIRS)])
    with serving(script) as api:
        watched = Rivals(api, "fn", told.put_nowait)
        await watched.start()
        assert watched.of(FIGLET) is None
        async with asyncio.timeout(30):
            assert await told.get() == FIGLET
        assert watched.hindrance(FIGLET) is not None
        await watched.stop()


async def test_of_one_that_is_still_there_it_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster keeps Events for an hour."""
    monkeypatch.setattr(rivals, "ASK_AGAIN_S", 0.05)
    monkeypatch.setattr(rivals, "REMIND_S", 0.1)
    told: asyncio.Queue[FunctionKey] = asyncio.Queue()
    with serving(Script([listed("1"), listed("1", THEIRS), refusal(404, "NotFound")])) as api:
        watched = Rivals(api, "fn", told.put_nowait)
        await watched.start()
        async with asyncio.timeout(30):
            assert [await told.get() for _ in range(3)] == [FIGLET] * 3
        await watched.stop()
