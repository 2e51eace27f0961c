"""Zygotes that are started, retired and started again, below a real supervisor."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gnomon_core.clock import WallClock
from gnomon_core.launch import Sandbox
from gnomon_platforms.local import supervision as zygotes
from gnomon_platforms.local.supervision import BARE, Environment, Supervision, SupervisionListener
from tests.waiting import eventually, until

BUILT = Environment("f", BARE.python, (), Sandbox())
"""As good as one that was built for a user, as far as its zygote is concerned."""


@pytest.fixture
async def supervision(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Supervision]:
    """One that keeps no zygote which nobody uses."""
    monkeypatch.setattr(zygotes, "MAX_FOREIGN_ZYGOTES", 0)
    made = Supervision((), WallClock())
    await made.start(SupervisionListener(lambda _: None, lambda: None, lambda: None, lambda: None))
    yield made
    await made.stop()


def below(supervision: Supervision) -> list[int]:
    """The zygotes, and their children that wait for an order."""
    return [int(pid) for pid in Path(f"/proc/{supervision.pid}/task/{supervision.pid}/children").read_text().split()]


async def test_one_that_is_wanted_again_as_soon_as_it_is_retired_is_started_anew(supervision: Supervision) -> None:
    await supervision.warm(BUILT)
    for _ in range(3):
        # The end of the first is told while the second is on its way, and does not mean that one.
        supervision.zygotes.retire_unused(set())
        await supervision.warm(BUILT)
    supervision.zygotes.retire_unused(set())
    await until(lambda: not below(supervision), "one is left that nobody knows of")


async def test_one_that_had_ended_when_it_was_retired_does_not_fail_the_next(supervision: Supervision) -> None:
    await supervision.warm(BUILT)
    first = min(below(supervision))
    os.kill(first, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{first}").exists())
    # The platform hears of that after it has asked for the next.
    supervision.zygotes.retire_unused(set())
    await supervision.zygotes.warm(BUILT)
