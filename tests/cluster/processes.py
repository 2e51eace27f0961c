"""The programs of a cluster: started apart from whoever starts them, written down, and ended by what was written down.

A process is known by its number and by the moment at which it began (field 22 of /proc/PID/stat). A number that the kernel has
given to somebody else since then is therefore never signalled.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.cluster.phases import Trouble

POLL_S = 0.05
LINES_SHOWN = 15
KILL_LIMIT_S = 10.0  # the kernel may have much memory to take back


@dataclass(frozen=True)
class Process:
    """A started process. `began` is in ticks since the machine did."""

    name: str
    pid: int
    began: int

    def runs(self) -> bool:
        """True if it still does, and is not just waiting to be reaped."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        return began(self.pid) == self.began

    def end(self, patience_s: float) -> None:
        """Ask it to end, and after `patience_s` do not ask. Zero is for what loses nothing by it."""
        for number, limit_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, KILL_LIMIT_S)):
            if not self.runs():
                return
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(self.pid)
                try:
                    signal.pidfd_send_signal(handle, number)
                    select.select([handle], [], [], limit_s)
                finally:
                    os.close(handle)


def began(pid: int) -> int | None:
    """Start time of a process in ticks since boot; None for no process, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


class Programs:
    """The programs of one cluster, recorded in a file of its state folder."""

    def __init__(self, state: Path, *, end_with_us: bool = False) -> None:
        self.state = state
        self.record = state / "processes.json"
        self.wrapper = ["setpriv", "--pdeathsig", "KILL"] if end_with_us else []

    def start(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> Process:
        """Start one in a session of its own; what it says goes to logs/NAME.log."""
        logs = self.state / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [*self.wrapper, *map(str, command)],
                cwd=self.state,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        # It is watched by its number from here on, and outlives us on purpose: Popen need not say so when it is collected.
        child.returncode = 0
        process = Process(name, child.pid, began(child.pid) or 0)
        self._write([*self.all(), process])
        return process

    def all(self) -> list[Process]:
        """The processes that were started, in order."""
        if not self.record.exists():
            return []
        return [Process(**entry) for entry in json.loads(self.record.read_text())]

    def _write(self, processes: list[Process]) -> None:
        partial = self.record.with_suffix(".new")
        partial.write_text(json.dumps([asdict(process) for process in processes]))
        partial.replace(self.record)

    def wait(self, process: Process, check: Callable[[], bool], limit_s: float) -> None:
        """Until `check` says yes; not longer than the process lives."""
        deadline_s = time.monotonic() + limit_s
        while not check():
            if not process.runs():
                raise Trouble(f"{process.name} ended by itself. Its last words:\n{self.last_words(process.name)}")
            if time.monotonic() > deadline_s:
                raise Trouble(f"{process.name} was not ready after {limit_s:.0f} s. It said:\n{self.last_words(process.name)}")
            time.sleep(POLL_S)

    def last_words(self, name: str) -> str:
        """The end of a program's log."""
        path = self.state / "logs" / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-LINES_SHOWN:]) if path.exists() else "nothing"
