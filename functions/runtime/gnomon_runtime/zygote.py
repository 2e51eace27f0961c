"""The zygote: a process that has imported everything and forks instances on request.

It has one thread, because a library that has started threads does not survive a fork. One child, the spare, is always forked
ahead and waits for its order, so that a start does not pay for the fork; the order itself takes well under a millisecond. Without
a spare, a child is forked with its order already in its socket.

If a preloaded Gnomon module has a `rehearsal`, the zygote runs it once, so that libraries are initialised for all forks. Each
spare runs it again while it waits: this copies the pages that it will write to. The zygote's memory is then moved to huge pages
(`linux.gather_huge_pages`), because a fork copies the page tables.

A child is forked twice: the intermediate process ends at once, so that the supervisor (a subreaper) becomes the child's parent.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gnomon_core import packets
from gnomon_runtime import child_init, linux
from gnomon_runtime.child_init import Steps

REFILL_AFTER_S = 0.15
"""Seconds without an order after which the next child is forked: the instance that just began needs the cores first, and a Shadow
has loaded by then."""
PID_BYTES = 4
Rehearsal = Callable[[], Steps]


@dataclass(slots=True)
class Spare:
    """A child that waits for its order."""

    pid: int
    socket: socket.socket


class Zygote:
    """Takes orders from the supervisor and hands each to a child."""

    def __init__(self, control: socket.socket, supervisor: int, rehearsal: Rehearsal) -> None:
        self._control = control
        self._supervisor = supervisor
        self._rehearsal = rehearsal
        self._spare: Spare | None = None

    def serve(self) -> None:
        """Fork instances on request until the supervisor closes the socket."""
        while True:
            timeout_s = REFILL_AFTER_S if self._spare is None else None
            if not select.select([self._control], [], [], timeout_s)[0]:
                self._spare = self._fork()
                continue
            try:
                message, descriptors = packets.receive(self._control)
            except packets.PeerGoneError:
                return
            self._spawn(str(message["id"]), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)

    def _spawn(self, instance_id: str, descriptors: Sequence[int]) -> None:
        child, self._spare = self._spare, None
        if child is None or not _send_order(child, descriptors):
            child = self._fork(descriptors)
        child.socket.close()
        packets.send(self._control, {"event": "forked", "id": instance_id, "pid": child.pid})

    def _fork(self, descriptors: Sequence[int] = ()) -> Spare:
        """Fork a child that waits for its order. With descriptors its order is there at once: no rehearsal."""
        mine, theirs = packets.socket_pair()
        if descriptors:
            packets.send(mine, {}, descriptors)
        pid_read, pid_write = os.pipe()
        gate_read, gate_write = os.pipe()
        between = os.fork()
        if between == 0:
            # Each process keeps its own ends only: if the zygote is killed, both must see the end of file and exit.
            for descriptor in (pid_read, gate_write, self._control.fileno(), mine.fileno()):
                os.close(descriptor)
            child = os.fork()
            if child == 0:
                os.close(pid_write)
                os.close(gate_read)
                child_init.await_order(theirs, self._supervisor, self._rehearsal())
            try:
                os.write(pid_write, child.to_bytes(PID_BYTES, "little"))
                os.read(gate_read, 1)
            finally:
                os._exit(0)
        os.close(pid_write)
        os.close(gate_read)
        said = os.read(pid_read, PID_BYTES)
        if not said:
            raise ChildProcessError("the intermediate process of a fork was killed before it reported its child")
        pid = int.from_bytes(said, "little")
        # Announce the child before it is reparented to the supervisor, which would otherwise take it for an orphan.
        packets.send(self._control, {"event": "spare", "pid": pid})
        os.write(gate_write, b"x")
        os.waitpid(between, 0)
        os.close(pid_read)
        os.close(gate_write)
        theirs.close()
        return Spare(pid, mine)


def _send_order(child: Spare, descriptors: Sequence[int]) -> bool:
    """Send a spare its order; False if the spare has ended."""
    try:
        packets.send(child.socket, {}, descriptors)
    except packets.PeerGoneError:
        child.socket.close()
        return False
    return True


def preload(names: Sequence[str]) -> list[str]:
    """Import the modules that every instance needs. Returns a message for each import that failed."""
    problems: list[str] = []
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - an import may raise anything, and an instance can still say so better
            problems.append(f"{name}: {type(error).__name__}: {error}")
    return problems


def rehearsal_of(names: Sequence[str]) -> Rehearsal:
    """The rehearsals of all preloaded Gnomon modules, joined into one."""
    ours = [sys.modules[name] for name in names if name.startswith("gnomon_runtime.") and name in sys.modules]
    rehearsals: list[Rehearsal] = [module.rehearsal for module in ours if hasattr(module, "rehearsal")]

    def all_of_them() -> Steps:
        for rehearsal in rehearsals:
            yield from rehearsal()

    return all_of_them


def rehearse(rehearsal: Rehearsal) -> list[str]:
    """Rehearse once for all forks. Returns the reason if that fails, which does no harm."""
    try:
        for _ in rehearsal():
            pass
    except Exception as error:  # noqa: BLE001 - kernels may raise anything, and an instance can still say so better
        return [f"rehearsal: {type(error).__name__}: {error}"]
    return []


def main(connection: int, supervisor: int, names: Sequence[str]) -> None:
    """Import, rehearse, report "warm", then serve fork requests."""
    linux.die_with_parent(signal.SIGKILL)
    linux.forbid_inspection()
    linux.set_process_name("gnomon zygote")
    if os.getppid() != supervisor:
        return
    control = socket.socket(fileno=connection)
    control.set_inheritable(False)
    started_s = time.monotonic()
    problems = preload(["gnomon_runtime.application", *names])
    rehearsal = rehearsal_of(names)
    problems += rehearse(rehearsal)
    gc.collect()
    gc.freeze()
    linux.gather_huge_pages()
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        sys.stderr.write(f"The zygote has {threads} threads after importing {', '.join(names)}; forks of it may hang.\n")
    packets.send(control, {"event": "warm", "seconds": time.monotonic() - started_s, "threads": threads, "problems": problems})
    Zygote(control, supervisor, rehearsal).serve()
