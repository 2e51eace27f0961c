"""A zygote that is killed in the middle of a fork leaves nothing behind: neither the process between nor the child."""

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

from gnomon_core import packets
from gnomon_platforms.local.supervision import packages

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
