"""The supervisor's zygotes: started, told what to fork, heard, and forgotten when they end.

    start ▶ warm ▶ fork: told ▶ spare: a child is there ▶ born: it has its order … ▶ the end of its socket: forgotten

A zygote may be waiting until the supervisor hears it; so nothing here waits for one: what it does not take now is kept for it.

A zygote of a built environment runs its author's code, with access to our socket. So its messages count only for instances that
it was told to fork, and for processes that it has forked. A zygote that sends anything else is ended.
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
"""Of one problem with what a zygote imports."""


@dataclass(slots=True)
class Zygote:
    """A zygote, its socket, what it has not been told yet, and the instances it was told to fork and has not yet reported.

    `start` is its owner's number of it, by which that knows it from an earlier one of its id.
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

    `born` is told of an instance with its pid and control-group files, `unborn` of one that was never made, and `bereft` that a
    zygote has ended, so that children of its may be nobody's. `taken` is whether a process is known as something else already.
    """

    born: Callable[[str, int, list[str]], None]
    unborn: Callable[[str], None]
    bereft: Callable[[], None]
    taken: Callable[[int], bool]


class ZygoteTable:
    """Every zygote, and the children that wait in them for an order. `report` tells the supervisor's owner."""

    def __init__(self, selector: selectors.BaseSelector, report: Callable[..., None], events: ZygoteEvents) -> None:
        self._selector = selector
        self._report = report
        self._midwife = events
        self._zygotes: dict[str, Zygote] = {}
        self._spares: dict[int, str] = {}
        self._ended_spares: dict[int, tuple[int, float]] = {}

    def start(self, message: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Start the zygote that the owner describes; a descriptor is the description of its sandbox.

        One of its id that is there is ended first: known by no name any more, it would wake us for ever and never be heard.
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
        """Have an instance forked. The descriptors are ours to close from now on."""
        zygote = self._zygotes.get(zygote_id)
        if zygote is None:
            _close(descriptors)
            self._midwife.unborn(instance_id)
            return
        zygote.expected[instance_id] = list(join)
        zygote.outbox.append(({"id": instance_id}, list(descriptors)))
        self._flush(zygote)

    def retire(self, zygote_id: str) -> None:
        """End a zygote that is not needed any more; its instances live on."""
        if zygote_id in self._zygotes:
            self._forget(self._zygotes[zygote_id])

    def ended(self, pid: int, status: int, cpu_s: float) -> None:
        """A child of the supervisor has ended: one that waited for its order, a zygote, or neither."""
        if pid in self._spares:
            del self._spares[pid]
            self._ended_spares[pid] = (status, cpu_s)
            return
        for zygote in list(self._zygotes.values()):
            if zygote.process.pid == pid:
                zygote.process.returncode = os.waitstatus_to_exitcode(status)
                self._drain(zygote)
                self._forget(zygote)

    def ended_before_birth(self, pid: int) -> tuple[int, float] | None:
        """Wait status and CPU seconds of a child that had ended when its birth was reported. Forgotten once asked for."""
        return self._ended_spares.pop(pid, None)

    def pids(self) -> set[int]:
        """The zygotes and their waiting children, after all that they have said by now."""
        for zygote in list(self._zygotes.values()):
            self._drain(zygote)
        return {zygote.process.pid for zygote in self._zygotes.values()} | self._spares.keys()

    def _flush(self, zygote: Zygote) -> None:
        """Tell a zygote as much as it takes now. To wait for it would be to wait for ever: it may be waiting until we hear it."""
        while zygote.outbox:
            message, descriptors = zygote.outbox[0]
            try:
                packets.send(zygote.socket, message, descriptors)
            except BlockingIOError:
                break
            except packets.PeerGoneError:
                # A zygote that has just died shows by its own end of file, which reports what it was to fork.
                pass
            zygote.outbox.popleft()
            _close(descriptors)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if zygote.outbox else 0)
        self._selector.modify(zygote.socket, events, lambda: self._attend(zygote))

    def _attend(self, zygote: Zygote) -> None:
        if self._knows(zygote):
            self._flush(zygote)
            self._read(zygote)

    def _read(self, zygote: Zygote) -> None:
        try:
            message, descriptors = packets.receive(zygote.socket)
            _close(descriptors)
            self._said(zygote, message)
        except BlockingIOError:
            return
        except (packets.PeerGoneError, packets.PacketError):
            self._forget(zygote)
        except (KeyError, TypeError, ValueError) as error:
            sys.stderr.write(f"zygote {zygote.id} is ended for what it says: {error}\n")
            self._forget(zygote)

    def _said(self, zygote: Zygote, message: Mapping[str, Any]) -> None:
        """Read a message of a zygote.

        Raises:
            KeyError, TypeError, ValueError: it does not say what a zygote says, or speaks of what is not its own.

        """
        event = message["event"]
        if event == "spare":
            self._spares[self._child(zygote, message["pid"])] = zygote.id
        elif event == "born":
            pid = self._child(zygote, message["pid"])
            join = zygote.expected.pop(message["id"])
            self._spares.pop(pid, None)
            self._midwife.born(message["id"], pid, join)
        elif event == "warm":
            problems = [str(problem)[:MOST_CHARACTERS] for problem in message["problems"]]
            self._report("warm", zygote=zygote.id, start=zygote.start, problems=problems)
        else:
            raise ValueError(f"{event!r} is nothing that happens to a zygote")

    def _child(self, zygote: Zygote, pid: object) -> int:
        """A process that this zygote may speak of: it or who had it forked is the parent, or it has ended and left no trace."""
        if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 1:
            raise ValueError(f"{pid!r} is no process")
        others = {other.process.pid for other in self._zygotes.values()}
        if pid in others or self._spares.get(pid, zygote.id) != zygote.id or self._midwife.taken(pid):
            raise ValueError(f"process {pid} is another's")
        if not _comes_from(pid, {zygote.process.pid, os.getpid()}):
            raise ValueError(f"process {pid} does not come from it")
        return pid

    def _forget(self, zygote: Zygote) -> None:
        if not self._knows(zygote):
            return
        del self._zygotes[zygote.id]
        self._selector.unregister(zygote.socket)
        zygote.socket.close()
        for _, descriptors in zygote.outbox:
            _close(descriptors)
        zygote.process.kill()
        status = zygote.process.wait()
        self._report("zygote_gone", zygote=zygote.id, start=zygote.start, reason=f"it ended with status {status}")
        for instance_id in zygote.expected:
            self._midwife.unborn(instance_id)
        self._spares = {pid: owner for pid, owner in self._spares.items() if owner != zygote.id}
        self._midwife.bereft()

    def _knows(self, zygote: Zygote) -> bool:
        """Whether it has not been forgotten; another may have its id by now."""
        return self._zygotes.get(zygote.id) is zygote

    def _drain(self, zygote: Zygote) -> None:
        """Read what a zygote has already said, so that no child of its is taken for an orphan."""
        with selectors.DefaultSelector() as ready:
            # Reading one that has died forgets it, which drains the others: any of them may be gone by its turn here.
            if self._knows(zygote):
                ready.register(zygote.socket, selectors.EVENT_READ)
            while self._knows(zygote) and ready.select(0):
                self._read(zygote)


def _comes_from(pid: int, parents: set[int]) -> bool:
    """Whether one of these is its parent, or, while the process between has not ended, that one's. One that has ended may be."""
    for _ in range(2):
        try:
            # The name may hold spaces and brackets: what follows the last one is the state, then the parent.
            pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            return True
        if pid in parents:
            return True
    return False


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
