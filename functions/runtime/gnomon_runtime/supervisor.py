"""The supervisor: parent of every zygote and instance on this machine. It starts, ends and reports them, and makes no plans.

One thread and the standard library only, to keep failures unlikely. The supervisor talks to its owner over the socket that it
inherits (`python -m gnomon_runtime.supervisor FD`), in JSON messages (gnomon_core.packets):

    in    {"do": "zygote", "id", "start", "command", "environment"}
                                                             + a sandbox's description, if it runs in one; `start` is the
                                                             owner's number, repeated in every event about it
          {"do": "create", "id", "zygote", "join", "coordinated"}
                                                             + order, channel, log; `join` are control-group files
          {"do": "kill", "id", "signal"}   {"do": "retire", "id"}
          {"do": "coordinator", "command", "environment", "after"}
                                                             + its end of the owner's socket; the first one's epoch is after + 1
          {"do": "replace_coordinator", "epoch"}
          {"do": "promoted", "id"}                           a Shadow that has become a Body
          {"do": "adopt", "id", "kind"}                      + the coordination socket of an instance of another container
          {"do": "forget", "id"}                             it has gone
    out   {"event": "hello", "isolation", "python", "libraries"}   {"event": "warm", "zygote", "start", …}
          {"event": "zygote_gone", "zygote", "start", "reason"}
          {"event": "forked", "id", "pid"}    {"event": "gone", "id", "status", "cpu_s", "reason"}
          {"event": "coordinator", "epoch", "pid"}           {"event": "coordinator_gone", "epoch", "status"}

A coordinated instance gets a fourth descriptor, whose other end `coordinator_guard` keeps for the node's coordinators. The
coordinator may request and name empty containers. A container belongs to no function, and is reported to the owner only once it
has become a Shadow.

When the owner's socket closes, for any reason, the supervisor kills all processes and exits. It is a subreaper: a process that a
function leaves behind becomes its child, is recognised as an orphan, and is killed.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gnomon_core import packets
from gnomon_core.packaging import FOR_LIBRARIES
from gnomon_runtime import linux, sandbox
from gnomon_runtime.coordinator_guard import CoordinatorGuard
from gnomon_runtime.zygote_table import ZygoteEvents, ZygoteTable


class Supervisor:
    """The supervisor's event loop, and its tables of processes."""

    def __init__(self, owner: socket.socket) -> None:
        self._owner = owner
        self._instances: dict[int, str] = {}
        self._selector = selectors.DefaultSelector()
        self._zygotes = ZygoteTable(self._selector, self._report, self._zygote_events())
        self._coordinator_guard = CoordinatorGuard(self._selector, self._report, self._on_coordinator_request)

    def _zygote_events(self) -> ZygoteEvents:
        return ZygoteEvents(self._adopt, self._not_forked, self._end_orphans, self._is_known)

    def _is_known(self, pid: int) -> bool:
        return pid in self._instances or pid == self._coordinator_guard.pid

    def serve(self) -> None:
        """Run until the owner disconnects; then end every process."""
        woken, wake = socket.socketpair()
        woken.setblocking(False)  # noqa: FBT003 - the signature is socket's
        wake.setblocking(False)  # noqa: FBT003 - the signature is socket's
        # Python writes to the descriptor only for signals that have a handler, even one that does nothing.
        signal.set_wakeup_fd(wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # SIGTERM ends the loop in the same way as an owner that disconnects: the next receive raises PeerGoneError.
        signal.signal(signal.SIGTERM, lambda *_: self._owner.shutdown(socket.SHUT_RDWR))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._selector.register(self._owner, selectors.EVENT_READ, self._read_owner)
        self._selector.register(woken, selectors.EVENT_READ, lambda: self._reap(woken))
        try:
            here = {"python": sys.executable, "libraries": dict(FOR_LIBRARIES)}
            self._report("hello", isolation=sandbox.why_no_isolation(), **here)
            while True:
                for key, _ in self._selector.select(self._coordinator_guard.timeout_s()):
                    act: Callable[[], None] = key.data
                    act()
                self._coordinator_guard.attend()
        except packets.PeerGoneError:
            self._end_everything()

    def _report(self, event: str, **details: Any) -> None:
        packets.send(self._owner, {"event": event, **details})

    def _read_owner(self) -> None:
        message, descriptors = packets.receive(self._owner)
        try:
            if message["do"] == "zygote":
                self._zygotes.start(message, descriptors)
            elif message["do"] == "create":
                self._create(message, descriptors)
            elif message["do"] == "kill":
                self._kill(message["id"], int(message["signal"]))
            elif message["do"] == "retire":
                self._zygotes.retire(message["id"])
            elif message["do"] == "coordinator":
                self._coordinator_guard.begin(message, descriptors)
            elif message["do"] == "promoted":
                self._coordinator_guard.promoted(str(message["id"]))
            elif message["do"] == "replace_coordinator":
                self._coordinator_guard.replace(int(message["epoch"]))
            elif message["do"] == "adopt":
                self._coordinator_guard.adopt(
                    str(message["id"]), str(message["kind"]), socket.socket(fileno=os.dup(descriptors[0]))
                )
            elif message["do"] == "forget":
                self._coordinator_guard.gone(str(message["id"]))
        finally:
            _close(descriptors)

    def _on_coordinator_request(self, message: Mapping[str, Any], descriptors: list[int]) -> None:
        if message["do"] == "fork":
            self._create({**message, "join": (), "coordinated": "empty"}, descriptors)
        elif message["do"] == "assign":
            self._assign(message["id"], message["as"], message["join"])
        elif message["do"] == "kill":
            self._kill(message["id"], signal.SIGKILL)

    def _assign(self, container: str, shadow: str, join: list[str]) -> None:
        pid = self._coordinator_guard.assign(container, shadow)
        if pid is not None:
            self._instances[pid] = shadow
            self._report("forked", id=shadow, pid=pid)
            _join(pid, join)

    def _create(self, message: Mapping[str, Any], descriptors: list[int]) -> None:
        # Read all fields first: an invalid message must not leave anything open.
        instance_id, zygote, join = str(message["id"]), str(message["zygote"]), list(message["join"])
        copies = [os.dup(descriptor) for descriptor in descriptors]
        if message.get("coordinated"):
            copies.append(self._coordinator_guard.open(instance_id, str(message["coordinated"])).detach())
        self._zygotes.fork(zygote, instance_id, join, copies)

    def _not_forked(self, instance_id: str) -> None:
        self._report_gone(instance_id, None, 0.0, "its zygote has ended")

    def _report_gone(self, instance_id: str, status: int | None, cpu_s: float, reason: str) -> None:
        if not self._coordinator_guard.is_reserve(instance_id):
            self._report("gone", id=instance_id, status=status, cpu_s=cpu_s, reason=reason)
        self._coordinator_guard.gone(instance_id)

    def _adopt(self, instance_id: str, pid: int, join: list[str]) -> None:
        if not self._coordinator_guard.is_reserve(instance_id):
            self._report("forked", id=instance_id, pid=pid)
        ended = self._zygotes.ended_before_start(pid)
        if ended is not None:
            self._report_gone(instance_id, *ended, "")
            return
        self._instances[pid] = instance_id
        self._coordinator_guard.forked(instance_id, pid)
        _join(pid, join)

    def _kill(self, instance_id: str, number: int) -> None:
        # A pid in the table is not another process's: the kernel keeps it until `_reap`, which removes it here, has waited.
        for pid, known in self._instances.items():
            if known == instance_id:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _reap(self, woken: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while woken.recv(4096):
                pass
        any_ended = False
        # Pending signals of one kind merge (signal(7)): one SIGCHLD may stand for several ends.
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            any_ended = True
            self._ended(pid, status, usage.ru_utime + usage.ru_stime)
        if any_ended:
            self._end_orphans()

    def _ended(self, pid: int, status: int, cpu_s: float) -> None:
        """Handle the end of a child: an instance, the coordinator, a zygote or a spare. Orphans are ignored."""
        if pid in self._instances:
            instance_id = self._instances.pop(pid)
            # An instance leads a session: its group has the programs that it started and that did not leave the group. While such
            # a program exists, no new process gets this pid (free_pid in Linux's kernel/pid.c).
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            self._report_gone(instance_id, status, cpu_s, "")
        elif not self._coordinator_guard.ended(pid, status):
            self._zygotes.ended(pid, status, cpu_s)

    def _end_orphans(self) -> None:
        """Kill orphans: children that are neither zygotes, instances nor the coordinator, left behind by ended processes."""
        candidates = set(sandbox.children())
        known = self._zygotes.pids()
        known |= self._instances.keys()
        for pid in candidates - known - {self._coordinator_guard.pid}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _end_everything(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # Each child that ends leaves its own children to this subreaper, so this goes on until there are none.
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
