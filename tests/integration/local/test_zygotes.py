"""Zygotes."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gnomon_core import packets
from gnomon_core.clock import WallClock
from gnomon_core.launch import Sandbox
from gnomon_platforms.local import supervision as zygotes
from gnomon_platforms.local.supervision import BARE, Environment, Supervision, SupervisionListener, packages
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


async def test_retired_zygote_is_restarted_when_needed_again(supervision: Supervision) -> None:
    await supervision.warm(BUILT)
    for _ in range(3):
        # The end of the first is told while the second is on its way, and does not mean that one.
        supervision.zygotes.retire_unused(set())
        await supervision.warm(BUILT)
    supervision.zygotes.retire_unused(set())
    await until(lambda: not below(supervision), "one is left that nobody knows of")


async def test_retiring_a_dead_zygote_does_not_fail_the_next(supervision: Supervision) -> None:
    await supervision.warm(BUILT)
    first = min(below(supervision))
    os.kill(first, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{first}").exists())
    # The platform hears of that after it has asked for the next.
    supervision.zygotes.retire_unused(set())
    await supervision.zygotes.warm(BUILT)


ORDER = json.dumps({"packages": packages(), "preload": []})
ROUNDS = 8
ENDS_S = 5.0


def kill_while_it_forks() -> int:
    """The group of a zygote that was killed while it forked the child that waits for the first order."""
    ours, theirs = packets.socket_pair()
    with ours, theirs:
        numbers = [str(number) for number in (theirs.fileno(), os.getpid(), -1)]
        script = str(Path(packages()["gnomon_runtime"], "bootstrap.py"))
        command = [sys.executable, "-I", "-u", script, ORDER, *numbers]
        with subprocess.Popen(command, pass_fds=(theirs.fileno(),), start_new_session=True) as zygote:
            message, _ = packets.receive(ours)
            assert message["event"] == "warm"
            # The child's number comes last: on a busy machine this process may look too late to see the one between.
            while not (children(zygote.pid) or select.select([ours], [], [], 0)[0]):
                pass
            zygote.kill()
    return zygote.pid


def children(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


def group(number: int) -> list[int]:
    """The living processes of this process group: forks stay in their zygote's until their order comes."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, of = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(of) == number and state != "Z":
                found.append(int(entry.name))
    return found


def test_a_zygote_that_is_killed_while_it_forks_leaves_no_process() -> None:
    for _ in range(ROUNDS):
        zygote = kill_while_it_forks()
        end_s = time.monotonic() + ENDS_S
        while (left := group(zygote)) and time.monotonic() < end_s:
            time.sleep(0.01)
        for pid in left:
            os.kill(pid, 9)
        assert left == []
