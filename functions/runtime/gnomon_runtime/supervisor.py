"""The parent of every zygote and instance on this machine. It starts, ends and reports them, and never plans.

One thread, standard library only, so that there is little that can go wrong in it. It talks to its owner over the socket that it
inherits (`python -m gnomon_runtime.supervisor FD`), in JSON messages (gnomon_core.packets):

    in    {"do": "zygote", "id", "command", "environment"}   + a sandbox's description, where it lives in one
          {"do": "create", "id", "zygote", "join", "coordinated"}
                                                             + order, channel, log; `join` are control-group files
          {"do": "kill", "id", "signal"}   {"do": "retire", "id"}
          {"do": "coordinator", "command", "environment"}    + its end of the owner's socket
          {"do": "replace_coordinator", "epoch"}
    out   {"event": "hello", "isolation"}   {"event": "warm", "zygote", …}   {"event": "zygote_gone", "zygote", "reason"}
          {"event": "born", "id", "pid"}    {"event": "gone", "id", "status", "cpu_s", "reason"}
          {"event": "coordinator", "epoch", "pid"}           {"event": "coordinator_gone", "epoch", "status"}

A coordinated instance gets a fourth descriptor, whose other end `keeper` keeps for the node's coordinators. The coordinator may
have empty containers born, and name them: a container is nobody's, and reported to the owner once it has become a Shadow.

When the owner's end closes, for whatever reason, it ends everything and itself. It is the subreaper of all that it starts: a
process that a function leaves behind becomes its child, is recognised as nobody's, and is ended with the instance.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnomon_core import packets
from gnomon_runtime import linux, sandbox
from gnomon_runtime.keeper import Keeper


@dataclass(slots=True)
class Zygote:
    """A zygote, its socket, what it has not been told yet, and the instances it was told to fork and has not yet reported."""

    id: str
    process: subprocess.Popen[bytes]
    socket: socket.socket
    outbox: deque[tuple[dict[str, Any], list[int]]] = field(default_factory=deque)
    expected: dict[str, list[str]] = field(default_factory=dict)


class Supervisor:
    """The loop and its tables."""

    def __init__(self, owner: socket.socket) -> None:
        self._owner = owner
        self._zygotes: dict[str, Zygote] = {}
        self._instances: dict[int, str] = {}
        self._spares: dict[int, str] = {}
        self._ended_spares: dict[int, tuple[int, float]] = {}
        self._selector = selectors.DefaultSelector()
        self._keeper = Keeper(self._selector, self._report, self._coordinator_said)

    def serve(self) -> None:
        """Until the owner has gone; then end everything."""
        woken, wake = socket.socketpair()
        woken.setblocking(False)  # noqa: FBT003 - the signature is socket's
        wake.setblocking(False)  # noqa: FBT003 - the signature is socket's
        signal.set_wakeup_fd(wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._owner.shutdown(socket.SHUT_RDWR))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._selector.register(self._owner, selectors.EVENT_READ, self._read_owner)
        self._selector.register(woken, selectors.EVENT_READ, lambda: self._reap(woken))
        try:
            self._report("hello", isolation=sandbox.why_no_isolation())
            while True:
                for key, _ in self._selector.select(self._keeper.patience_s()):
                    act: Callable[[], None] = key.data
                    act()
                self._keeper.attend()
        except packets.PeerGoneError:
            self._end_everything()

    def _report(self, event: str, **details: Any) -> None:
        packets.send(self._owner, {"event": event, **details})

    def _read_owner(self) -> None:
        message, descriptors = packets.receive(self._owner)
        try:
            if message["do"] == "zygote":
                self._start_zygote(message, descriptors)
            elif message["do"] == "create":
                self._create(message, descriptors)
            elif message["do"] == "kill":
                self._kill(message["id"], int(message["signal"]))
            elif message["do"] == "retire":
                self._retire(message["id"])
            elif message["do"] == "coordinator":
                self._keeper.begin(message, descriptors)
            elif message["do"] == "replace_coordinator":
                self._keeper.replace(int(message["epoch"]))
        finally:
            _close(descriptors)

    def _coordinator_said(self, message: Mapping[str, Any], descriptors: list[int]) -> None:
        if message["do"] == "fork":
            self._create({**message, "join": (), "coordinated": "empty"}, descriptors)
        elif message["do"] == "assign":
            self._assign(message["id"], message["as"], message["join"])
        elif message["do"] == "kill":
            self._kill(message["id"], signal.SIGKILL)

    def _assign(self, container: str, shadow: str, join: list[str]) -> None:
        pid = self._keeper.assign(container, shadow)
        if pid is not None:
            self._instances[pid] = shadow
            self._report("born", id=shadow, pid=pid)
            _join(pid, join)

    def _start_zygote(self, message: dict[str, Any], descriptors: list[int]) -> None:
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
            self._report("zygote_gone", zygote=message["id"], reason=str(error))
            return
        finally:
            theirs.close()
        mine.setblocking(False)  # noqa: FBT003 - the signature is socket's
        zygote = Zygote(message["id"], process, mine)
        self._zygotes[zygote.id] = zygote
        self._selector.register(mine, selectors.EVENT_READ, lambda: self._attend(zygote))

    def _create(self, message: Mapping[str, Any], descriptors: list[int]) -> None:
        zygote, instance_id = self._zygotes.get(message["zygote"]), str(message["id"])
        copies = [os.dup(descriptor) for descriptor in descriptors]
        if message.get("coordinated"):
            copies.append(self._keeper.open(instance_id, str(message["coordinated"])).detach())
        if zygote is None:
            _close(copies)
            self._report_gone(instance_id, None, 0.0, "its zygote has ended")
            return
        zygote.expected[instance_id] = list(message["join"])
        zygote.outbox.append(({"id": instance_id}, copies))
        self._flush(zygote)

    def _report_gone(self, instance_id: str, status: int | None, cpu_s: float, reason: str) -> None:
        if not self._keeper.is_reserve(instance_id):
            self._report("gone", id=instance_id, status=status, cpu_s=cpu_s, reason=reason)
        self._keeper.gone(instance_id)

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
            self._read_zygote(zygote)

    def _read_zygote(self, zygote: Zygote) -> None:
        try:
            message, _ = packets.receive(zygote.socket)
        except BlockingIOError:
            return
        except (packets.PeerGoneError, packets.PacketError):
            self._forget_zygote(zygote)
            return
        if message["event"] == "spare":
            self._spares[message["pid"]] = zygote.id
        elif message["event"] == "warm":
            self._report(zygote=zygote.id, **message)
        elif message["event"] == "born":
            self._adopt(zygote, message["id"], message["pid"])

    def _adopt(self, zygote: Zygote, instance_id: str, pid: int) -> None:
        join = zygote.expected.pop(instance_id, [])
        self._spares.pop(pid, None)
        if not self._keeper.is_reserve(instance_id):
            self._report("born", id=instance_id, pid=pid)
        if pid in self._ended_spares:
            status, cpu_s = self._ended_spares.pop(pid)
            self._report_gone(instance_id, status, cpu_s, "")
            return
        self._instances[pid] = instance_id
        self._keeper.born(instance_id, pid)
        _join(pid, join)

    def _forget_zygote(self, zygote: Zygote) -> None:
        if not self._knows(zygote):
            return
        del self._zygotes[zygote.id]
        self._selector.unregister(zygote.socket)
        zygote.socket.close()
        for _, descriptors in zygote.outbox:
            _close(descriptors)
        zygote.process.kill()
        status = zygote.process.wait()
        self._report("zygote_gone", zygote=zygote.id, reason=f"it ended with status {status}")
        for instance_id in zygote.expected:
            self._report_gone(instance_id, None, 0.0, "its zygote has ended")
        self._spares = {pid: owner for pid, owner in self._spares.items() if owner != zygote.id}
        self._end_orphans()

    def _knows(self, zygote: Zygote) -> bool:
        """Whether it has not been forgotten; another may have its id by now."""
        return self._zygotes.get(zygote.id) is zygote

    def _retire(self, zygote_id: str) -> None:
        if zygote_id in self._zygotes:
            self._forget_zygote(self._zygotes[zygote_id])

    def _kill(self, instance_id: str, number: int) -> None:
        for pid, known in self._instances.items():
            if known == instance_id:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _reap(self, woken: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while woken.recv(4096):
                pass
        somebody_ended = False
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            somebody_ended = self._ended(pid, status, usage.ru_utime + usage.ru_stime) or somebody_ended
        if somebody_ended:
            self._end_orphans()

    def _ended(self, pid: int, status: int, cpu_s: float) -> bool:
        if pid in self._instances:
            instance_id = self._instances.pop(pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            self._report_gone(instance_id, status, cpu_s, "")
            return True
        if self._keeper.ended(pid, status):
            return True
        if pid in self._spares:
            del self._spares[pid]
            self._ended_spares[pid] = (status, cpu_s)
            return True
        for zygote in list(self._zygotes.values()):
            if zygote.process.pid == pid:
                zygote.process.returncode = os.waitstatus_to_exitcode(status)
                self._drain(zygote)
                self._forget_zygote(zygote)
        # Anything else is an orphan that has ended, whose own children may be ours now.
        return True

    def _end_orphans(self) -> None:
        """End the children that are neither zygotes nor instances: what ended instances have left behind."""
        candidates = set(sandbox.children())
        for zygote in list(self._zygotes.values()):
            self._drain(zygote)
        known = {zygote.process.pid for zygote in self._zygotes.values()} | self._instances.keys() | self._spares.keys()
        for pid in candidates - known - {self._keeper.pid}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _drain(self, zygote: Zygote) -> None:
        """Read what a zygote has already said, so that no child of its is taken for an orphan."""
        with selectors.DefaultSelector() as ready:
            # Reading one that has died forgets it, which drains the others: any of them may be gone by its turn here.
            if self._knows(zygote):
                ready.register(zygote.socket, selectors.EVENT_READ)
            while self._knows(zygote) and ready.select(0):
                self._read_zygote(zygote)

    def _end_everything(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            for pid in sandbox.children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                os.wait()
            except ChildProcessError:
                return


def _join(pid: int, files: list[str]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            Path(file).write_text(str(pid), encoding="ascii")


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def main(arguments: list[str]) -> int:
    """Serve the owner at the other end of this descriptor."""
    linux.become_subreaper()
    linux.forbid_inspection()
    linux.set_process_name("gnomon super")
    owner = socket.socket(fileno=int(arguments[0]))
    owner.set_inheritable(False)
    Supervisor(owner).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
