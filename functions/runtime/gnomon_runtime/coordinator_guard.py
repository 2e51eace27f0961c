"""Supervises the coordinator's process: keeps the instances' coordination sockets, and starts the next coordinator.

Every Body that can have a Shadow and every empty container is born with one end of a socket pair; the guard has the other end
for as long as the instance lives; an instance of another container (a Body in its pod) comes with a socket of its own, which is
kept until the owner says that it has gone. A coordinator gets duplicates. When it ends another is started at once, with a higher
epoch, and is handed all of them again: no instance notices more than a new epoch. Where instances outlive a supervisor, the owner
says from which epoch on the next one counts.

    to the coordinator     {"event": "epoch", "epoch"}      {"event": "instance", "id", "kind", "pid"} + [socket]
                           {"event": "gone", "id"}          {"event": "adopted"}: these were all
                           {"event": "promoted", "id"}: this Shadow has become a Body
    from the coordinator   {"do": "fork", "id", "zygote"} + [order, channel, log]
                           {"do": "assign", "id", "as", "join"}     {"do": "kill", "id"}

The coordinator is started as our child and is ours to end: one that is replaced is killed first, so it can say nothing more. It
ends Shadows and containers. What it wants killed and is a Body by now has become one since, which it is about to hear.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gnomon_core import packets

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
HEALTHY_S = 0.5
"""A coordinator that has lived so long, several times what its start takes, was not ended by its own fault at its start: it is
replaced at once. Those that end sooner are, after pauses that double each time."""

Said = Callable[[Mapping[str, Any], list[int]], None]


@dataclass(slots=True)
class Kept:
    """An instance's coordination socket, ours. `pid` is None until it is born, and 0 for one of another container."""

    id: str
    kind: str
    socket: socket.socket
    pid: int | None = None


class CoordinatorGuard:
    """`report` tells the owner, `said` gets the coordinator's requests."""

    def __init__(self, selector: selectors.BaseSelector, report: Callable[..., None], said: Said) -> None:
        self._selector = selector
        self._report = report
        self._said = said
        self._kept: dict[str, Kept] = {}
        self._command: list[str] = []
        self._environment: dict[str, str] = {}
        self._platform: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._outbox: deque[dict[str, Any]] = deque()
        self._epoch = 0
        self._started_s = 0.0
        self._failures = 0
        self._due_s: float | None = None

    # Instances

    def open(self, instance_id: str, kind: str) -> socket.socket:
        """An instance is about to be forked: its end of a coordination socket, for the caller to hand over and close."""
        ours, theirs = packets.socket_pair()
        ours.setblocking(False)  # noqa: FBT003 - the signature is socket's
        self._kept[instance_id] = Kept(instance_id, kind, ours)
        return theirs

    def born(self, instance_id: str, pid: int) -> None:
        """The instance was forked: the coordinator may send it messages."""
        kept = self._kept.get(instance_id)
        if kept is not None:
            kept.pid = pid
            self._announce(kept)

    def gone(self, instance_id: str) -> None:
        """The instance has ended, or was never forked."""
        kept = self._kept.pop(instance_id, None)
        if kept is not None:
            kept.socket.close()
            self._tell({"event": "gone", "id": instance_id})

    def is_reserve(self, instance_id: str) -> bool:
        """Whether this is an empty container, which the owner need not know of."""
        kept = self._kept.get(instance_id)
        return kept is not None and kept.kind == "empty"

    def assign(self, container: str, shadow: str) -> int | None:
        """An empty container is a Shadow from now on. Its process id; None where there is none of that name any more."""
        kept = self._kept.get(container)
        if kept is None or kept.kind != "empty" or kept.pid is None or shadow in self._kept:
            return None
        del self._kept[container]
        self._kept[shadow] = Kept(shadow, "shadow", kept.socket, kept.pid)
        return kept.pid

    def promoted(self, shadow: str) -> None:
        """A Shadow is a Body from now on, for this coordinator and its successors. Others are ignored."""
        kept = self._kept.get(shadow)
        if kept is not None and kept.kind == "shadow":
            kept.kind = "body"
            self._tell({"event": "promoted", "id": shadow})

    def adopt(self, instance_id: str, kind: str, connection: socket.socket) -> None:
        """An instance of another container has come, with a socket of its own. It takes the place of an earlier one of its id."""
        self.gone(instance_id)
        connection.setblocking(False)  # noqa: FBT003 - the signature is socket's
        kept = self._kept[instance_id] = Kept(instance_id, kind, connection, pid=0)
        self._announce(kept)

    # The coordinator's process

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def begin(self, message: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Start the coordinator that the owner describes. The descriptor is its end of the owner's socket, for all who follow."""
        if self._platform is not None:
            return
        self._command, self._environment = list(message["command"]), dict(message["environment"])
        self._platform = os.dup(descriptors[0])
        self._epoch = int(message.get("after", 0))
        self._start()

    def replace(self, epoch: int) -> None:
        """Replace the coordinator of this epoch, which does not answer. One that has been replaced already is left alone."""
        if epoch == self._epoch:
            self._kill()

    def ended(self, pid: int, status: int) -> bool:
        """A child process has ended. Returns whether it was the coordinator."""
        if self._process is None or self._process.pid != pid:
            return False
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._process = None
        # Its last messages still hold: a container that it has assigned is a Shadow by now.
        while self._attend_link():
            pass
        self._hang_up()
        now_s = time.monotonic()
        self._failures = 0 if now_s - self._started_s > HEALTHY_S else self._failures + 1
        self._due_s = now_s + self._pause_s()
        self._report("coordinator_gone", epoch=self._epoch, status=status)
        self.attend()
        return True

    def _pause_s(self) -> float:
        """Example: nothing the first time, then 0.05, 0.1, 0.2 … 5 s while they keep ending at once."""
        return 0.0 if self._failures < 2 else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (self._failures - 2))  # noqa: PLR2004 - one early end may be a kill

    def patience_s(self) -> float | None:
        """How long until `attend` has something to do."""
        return None if self._due_s is None else max(0.0, self._due_s - time.monotonic())

    def attend(self) -> None:
        """Start the next coordinator if it is time."""
        if self._due_s is not None and time.monotonic() >= self._due_s:
            self._due_s = None
            self._start()

    def _start(self) -> None:
        assert self._platform is not None
        self._epoch += 1
        self._started_s = time.monotonic()
        ours, theirs = packets.socket_pair()
        ours.setblocking(False)  # noqa: FBT003 - the signature is socket's
        numbers = (theirs.fileno(), self._platform)
        try:
            self._process = subprocess.Popen(
                [*self._command, *map(str, numbers)],
                env=self._environment,
                pass_fds=numbers,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            sys.stderr.write(f"The coordinator could not be started: {error}\n")
            ours.close()
            self._failures += 1
            self._due_s = self._started_s + max(FIRST_PAUSE_S, self._pause_s())
            return
        finally:
            theirs.close()
        self._link = ours
        self._selector.register(ours, selectors.EVENT_READ, self._attend_link)
        self._report("coordinator", epoch=self._epoch, pid=self._process.pid)
        self._tell({"event": "epoch", "epoch": self._epoch})
        for kept in self._kept.values():
            self._announce(kept)
        self._tell({"event": "adopted"})

    # Messages

    def _announce(self, kept: Kept) -> None:
        if kept.pid is not None:
            self._tell({"event": "instance", "id": kept.id, "kind": kept.kind, "pid": kept.pid})

    def _tell(self, message: dict[str, Any]) -> None:
        if self._link is not None:
            self._outbox.append(message)
            self._flush()

    def _flush(self) -> None:
        """Send what it takes now. Sockets are duplicated as they leave: what has gone meanwhile is not announced."""
        while self._outbox and self._link is not None:
            message = self._outbox[0]
            descriptors: list[int] = []
            if message["event"] == "instance":
                kept = self._kept.get(message["id"])
                if kept is None:
                    self._outbox.popleft()
                    continue
                descriptors = [kept.socket.fileno()]
            try:
                packets.send(self._link, message, descriptors)
            except BlockingIOError:
                break
            except packets.PeerGoneError:
                # Its end is reported when it is collected.
                self._outbox.clear()
                return
            self._outbox.popleft()
        if self._link is not None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0)
            self._selector.modify(self._link, events, self._attend_link)

    def _attend_link(self) -> bool:
        """Read one message of the coordinator. Returns whether there was one."""
        link = self._link
        if link is None:
            return False
        self._flush()
        try:
            message, descriptors = packets.receive(link)
        except BlockingIOError:
            return False
        except (packets.PeerGoneError, packets.PacketError, OSError):
            self._hang_up()
            # Unless it has ended, it has closed its end without ending, or does not speak our language.
            self._kill()
            return False
        try:
            if not self._is_risen(message):
                self._said(message, descriptors)
        except (KeyError, TypeError, ValueError) as error:
            sys.stderr.write(f"The coordinator said what is not understood: {type(error).__name__}: {error}\n")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _is_risen(self, message: Mapping[str, Any]) -> bool:
        """Whether this would kill a Body, which was a Shadow when the message was sent."""
        kept = self._kept.get(str(message["id"])) if message["do"] == "kill" else None
        return kept is not None and kept.kind == "body"

    def _kill(self) -> None:
        # Popen.kill would reap a process that has ended, and its end would never be reported.
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    def _hang_up(self) -> None:
        self._outbox.clear()
        if self._link is not None:
            self._selector.unregister(self._link)
            self._link.close()
            self._link = None
