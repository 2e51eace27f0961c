"""The supervisor's zygotes: starts them, sends fork requests, reads their events, and removes them when they end.

    start ▶ warm ▶ fork requested ▶ spare: a child waits ▶ forked: the child has its order … ▶ end of its socket: removed

Nothing here blocks on a zygote, which may itself be blocked until the supervisor reads: unsent messages wait in an outbox.

A zygote of a built environment runs its author's code, with access to our socket. So its messages are accepted only about
instances that it was asked to fork, and about processes that it has forked. A zygote that sends anything else is ended.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnomon_core import packets

MOST_CHARACTERS = 1000
"""The most characters of a message about a failed import of a zygote."""


@dataclass(slots=True)
class Zygote:
    """A zygote: its socket, unsent messages, and instances whose fork was requested and is not reported yet.

    `start` is the owner's number for this start: it distinguishes zygotes that had the same id.
    """

    id: str
    start: int
    process: subprocess.Popen[bytes]
    socket: socket.socket
    outbox: deque[tuple[dict[str, Any], list[int]]] = field(default_factory=deque)
    expected: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ZygoteEvents:
    """Callbacks of a table of zygotes.

    `forked` gets an instance with its pid and control-group files, `not_forked` an instance that was never forked. `zygote_ended`
    is called when a zygote has ended: its children may be orphans now. `has_role` says whether a process already has a role.
    """

    forked: Callable[[str, int, list[str]], None]
    not_forked: Callable[[str], None]
    zygote_ended: Callable[[], None]
    has_role: Callable[[int], bool]


class ZygoteTable:
    """All zygotes and their spare children, which wait for an order. `report` sends an event to the supervisor's owner."""

    def __init__(self, selector: selectors.BaseSelector, report: Callable[..., None], events: ZygoteEvents) -> None:
        self._selector = selector
        self._report = report
        self._zygote_events = events
        self._zygotes: dict[str, Zygote] = {}
        self._spares: dict[int, str] = {}
        self._ended_spares: dict[int, tuple[int, float]] = {}

    def start(self, message: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Start a zygote as the owner specifies; a descriptor is the description of its sandbox.

        A running zygote of the same id is ended first: without an entry its socket would wake the loop and never be read.
        """
        zygote_id, start = str(message["id"]), int(message["start"])
        self.retire(zygote_id)
        mine, theirs = packets.socket_pair()
        numbers = (theirs.fileno(), os.getpid(), descriptors[0] if descriptors else -1)
        command = [*message["command"], *(str(number) for number in numbers)]
        try:
            process = subprocess.Popen(
                command,
                env=message["environment"],
                pass_fds=(theirs.fileno(), *descriptors),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            mine.close()
            self._report("zygote_gone", zygote=zygote_id, start=start, reason=str(error))
            return
        finally:
            theirs.close()
        mine.setblocking(False)  # noqa: FBT003 - the signature is socket's
        zygote = Zygote(zygote_id, start, process, mine)
        self._zygotes[zygote_id] = zygote
        self._selector.register(mine, selectors.EVENT_READ, lambda: self._attend(zygote))

    def fork(self, zygote_id: str, instance_id: str, join: Sequence[str], descriptors: Sequence[int]) -> None:
        """Request the fork of an instance. Takes ownership of the descriptors."""
        zygote = self._zygotes.get(zygote_id)
        if zygote is None:
            _close(descriptors)
            self._zygote_events.not_forked(instance_id)
            return
        zygote.expected[instance_id] = list(join)
        zygote.outbox.append(({"id": instance_id}, list(descriptors)))
        self._flush(zygote)

    def retire(self, zygote_id: str) -> None:
        """End a zygote that is not needed any more; its instances live on."""
        if zygote_id in self._zygotes:
            self._forget(self._zygotes[zygote_id])

    def ended(self, pid: int, status: int, cpu_s: float) -> None:
        """Handle the end of a child process: a spare, a zygote, or neither."""
        if pid in self._spares:
            del self._spares[pid]
            self._ended_spares[pid] = (status, cpu_s)
            return
        for zygote in list(self._zygotes.values()):
            if zygote.process.pid == pid:
                zygote.process.returncode = os.waitstatus_to_exitcode(status)
                self._drain(zygote)
                self._forget(zygote)

    def ended_before_start(self, pid: int) -> tuple[int, float] | None:
        """Wait status and CPU seconds of a child that ended before the zygote reported it. The entry is removed."""
        return self._ended_spares.pop(pid, None)

    def pids(self) -> set[int]:
        """The pids of zygotes and spares, after all pending messages have been read."""
        for zygote in list(self._zygotes.values()):
            self._drain(zygote)
        return {zygote.process.pid for zygote in self._zygotes.values()} | self._spares.keys()

    def _flush(self, zygote: Zygote) -> None:
        """Send until the socket would block. Never wait: the zygote may itself wait for us to read, which would be a deadlock."""
        while zygote.outbox:
            message, descriptors = zygote.outbox[0]
            try:
                packets.send(zygote.socket, message, descriptors)
            except BlockingIOError:
                break
            except packets.PeerGoneError:
                # The end of file on its socket will report the instances that it did not fork.
                pass
            zygote.outbox.popleft()
            _close(descriptors)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if zygote.outbox else 0)
        self._selector.modify(zygote.socket, events, lambda: self._attend(zygote))

    def _attend(self, zygote: Zygote) -> None:
        if self._is_current(zygote):
            self._flush(zygote)
            self._read(zygote)

    def _read(self, zygote: Zygote) -> None:
        try:
            message, descriptors = packets.receive(zygote.socket)
            _close(descriptors)
            self._handle(zygote, message)
        except BlockingIOError:
            return
        except (packets.PeerGoneError, packets.PacketError):
            self._forget(zygote)
        except (KeyError, TypeError, ValueError) as error:
            sys.stderr.write(f"zygote {zygote.id} is ended for an invalid message: {error}\n")
            self._forget(zygote)

    def _handle(self, zygote: Zygote, message: Mapping[str, Any]) -> None:
        """Handle a message of a zygote.

        Raises:
            KeyError, TypeError, ValueError: the message is not valid, or names an instance or process of another.

        """
        event = message["event"]
        if event == "spare":
            self._spares[self._child(zygote, message["pid"])] = zygote.id
        elif event == "forked":
            pid = self._child(zygote, message["pid"])
            join = zygote.expected.pop(message["id"])
            self._spares.pop(pid, None)
            self._zygote_events.forked(message["id"], pid, join)
        elif event == "warm":
            problems = [str(problem)[:MOST_CHARACTERS] for problem in message["problems"]]
            self._report("warm", zygote=zygote.id, start=zygote.start, problems=problems)
        else:
            raise ValueError(f"{event!r} is not an event of a zygote")

    def _child(self, zygote: Zygote, pid: object) -> int:
        """Check a reported pid: its parent is this zygote or the supervisor, or the process has ended without a trace."""
        if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 1:
            raise ValueError(f"{pid!r} is no process")
        others = {other.process.pid for other in self._zygotes.values()}
        if pid in others or self._spares.get(pid, zygote.id) != zygote.id or self._zygote_events.has_role(pid):
            raise ValueError(f"process {pid} is another's")
        if not _comes_from(pid, {zygote.process.pid, os.getpid()}):
            raise ValueError(f"process {pid} does not come from it")
        return pid

    def _forget(self, zygote: Zygote) -> None:
        if not self._is_current(zygote):
            return
        del self._zygotes[zygote.id]
        self._selector.unregister(zygote.socket)
        zygote.socket.close()
        for _, descriptors in zygote.outbox:
            _close(descriptors)
        # Killed also if it only closed its socket: a zygote that cannot be told to fork is of no use. SIGKILL ends it at once, so
        # the wait below is short.
        zygote.process.kill()
        status = zygote.process.wait()
        self._report("zygote_gone", zygote=zygote.id, start=zygote.start, reason=f"it ended with status {status}")
        for instance_id in zygote.expected:
            self._zygote_events.not_forked(instance_id)
        self._spares = {pid: owner for pid, owner in self._spares.items() if owner != zygote.id}
        self._zygote_events.zygote_ended()

    def _is_current(self, zygote: Zygote) -> bool:
        """True if this very zygote is still in the table; another one may have its id by now."""
        return self._zygotes.get(zygote.id) is zygote

    def _drain(self, zygote: Zygote) -> None:
        """Read all pending messages of a zygote, so that none of its children is mistaken for an orphan."""
        with selectors.DefaultSelector() as ready:
            # Reading from a dead zygote removes it and drains the others (`zygote_ended`): each may be removed before its turn.
            if self._is_current(zygote):
                ready.register(zygote.socket, selectors.EVENT_READ)
            while self._is_current(zygote) and ready.select(0):
                self._read(zygote)


def _comes_from(pid: int, parents: set[int]) -> bool:
    """True if its parent, or during a double fork its grandparent, is one of these. True for a process that has ended."""
    parent = _parent(pid)
    if parent is None or parent in parents or _parent(parent) in parents:
        return True
    # The process between them may have ended meanwhile, which made the supervisor the parent.
    parent = _parent(pid)
    return parent is None or parent in parents


def _parent(pid: int) -> int | None:
    """The parent of a process: None if the process has ended, 0 while the kernel removes it."""
    try:
        # The process name may contain spaces and brackets: after the last bracket come the state and the parent's pid.
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
