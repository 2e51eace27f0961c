"""Supervises the coordinator's process: holds the instances' coordination sockets, and restarts the coordinator.

Every Body that can have a Shadow, and every empty container, is forked with one end of a socket pair; the guard holds the other
end until the instance ends. An instance of another container (a Body in its pod) brings its own socket, which is held until the
owner reports that the instance has ended. A coordinator gets duplicates of these sockets. When a coordinator ends, the guard
starts another at once with a higher epoch and sends it all sockets again: instances notice only a new epoch. If instances
outlive a supervisor, the owner tells the next supervisor which epoch to continue from.

    to the coordinator     {"event": "epoch", "epoch"}      {"event": "instance", "id", "kind", "pid"} + [socket]
                           {"event": "gone", "id"}          {"event": "adopted"}: these were all
                           {"event": "promoted", "id"}: this Shadow has become a Body
    from the coordinator   {"do": "fork", "id", "zygote"} + [order, channel, log]
                           {"do": "assign", "id", "as", "join"}     {"do": "kill", "id"}

The coordinator is a child process. A coordinator that is replaced is killed first, so it can send no further message. It ends
Shadows and containers. A request to kill a Body is ignored: that Body was a Shadow when the request was sent, and the event
"promoted" is still on its way.
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
"""A coordinator that ran this long, several times its start-up time, did not fail at start-up: it is replaced at once. Earlier
ends are failed starts, with a back-off that doubles each time."""

OnRequest = Callable[[Mapping[str, Any], list[int]], None]


@dataclass(slots=True)
class Registration:
    """The guard's end of an instance's coordination socket. `pid` is None before the fork, 0 in another container."""

    id: str
    kind: str
    socket: socket.socket
    pid: int | None = None


class CoordinatorGuard:
    """The coordinator's process and all coordination sockets. `report` sends to the owner, `on_request` gets requests."""

    def __init__(self, selector: selectors.BaseSelector, report: Callable[..., None], on_request: OnRequest) -> None:
        self._selector = selector
        self._report = report
        self._on_request = on_request
        self._registrations: dict[str, Registration] = {}
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
        """Make a socket pair for an instance about to be forked. Returns its end, which the caller passes on and closes."""
        ours, theirs = packets.socket_pair()
        ours.setblocking(False)  # noqa: FBT003 - the signature is socket's
        self._registrations[instance_id] = Registration(instance_id, kind, ours)
        return theirs

    def forked(self, instance_id: str, pid: int) -> None:
        """Record the fork of an instance and announce the instance to the coordinator."""
        registration = self._registrations.get(instance_id)
        if registration is not None:
            registration.pid = pid
            self._announce(registration)

    def gone(self, instance_id: str) -> None:
        """Forget an instance that has ended or was never forked, and report it to the coordinator."""
        registration = self._registrations.pop(instance_id, None)
        if registration is not None:
            registration.socket.close()
            self._tell({"event": "gone", "id": instance_id})

    def is_reserve(self, instance_id: str) -> bool:
        """True if this is an empty container: the owner gets no events about those."""
        registration = self._registrations.get(instance_id)
        return registration is not None and registration.kind == "empty"

    def assign(self, container: str, shadow: str) -> int | None:
        """Turn an empty container into a Shadow. Returns its process id; None if no such container exists any more."""
        registration = self._registrations.get(container)
        if registration is None or registration.kind != "empty" or registration.pid is None or shadow in self._registrations:
            return None
        del self._registrations[container]
        self._registrations[shadow] = Registration(shadow, "shadow", registration.socket, registration.pid)
        return registration.pid

    def promoted(self, shadow: str) -> None:
        """Record that a Shadow has become a Body, for this coordinator and later ones. Ignored for anything but a Shadow."""
        registration = self._registrations.get(shadow)
        if registration is not None and registration.kind == "shadow":
            registration.kind = "body"
            self._tell({"event": "promoted", "id": shadow})

    def adopt(self, instance_id: str, kind: str, connection: socket.socket) -> None:
        """Take over the socket of an instance in another container. It replaces an earlier instance of the same id."""
        self.gone(instance_id)
        connection.setblocking(False)  # noqa: FBT003 - the signature is socket's
        registration = self._registrations[instance_id] = Registration(instance_id, kind, connection, pid=0)
        self._announce(registration)

    # The coordinator's process

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def begin(self, message: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Start the coordinator as the owner specifies. The descriptor, its socket to the owner, is kept for restarts."""
        if self._platform is not None:
            return
        self._command, self._environment = list(message["command"]), dict(message["environment"])
        self._platform = os.dup(descriptors[0])
        self._epoch = int(message.get("after", 0))
        self._start()

    def replace(self, epoch: int) -> None:
        """Kill the coordinator of this epoch because it does not answer. Nothing happens if it has been replaced already."""
        if epoch == self._epoch:
            self._kill()

    def ended(self, pid: int, status: int) -> bool:
        """Handle the end of a child process. Returns whether it was the coordinator."""
        if self._process is None or self._process.pid != pid:
            return False
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._process = None
        # Its last messages remain valid: a container that it has assigned is a Shadow by now.
        while self._attend_link():
            pass
        self._close_link()
        now_s = time.monotonic()
        self._failures = 0 if now_s - self._started_s > HEALTHY_S else self._failures + 1
        self._due_s = now_s + self._pause_s()
        self._report("coordinator_gone", epoch=self._epoch, status=status)
        self.attend()
        return True

    def _pause_s(self) -> float:
        """The restart back-off in seconds. Example: 0, then 0.05, 0.1, 0.2 … 5 s while coordinators end at once."""
        return 0.0 if self._failures < 2 else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (self._failures - 2))  # noqa: PLR2004 - one early end may be a kill

    def timeout_s(self) -> float | None:
        """Seconds until `attend` must be called; None if no restart is due."""
        return None if self._due_s is None else max(0.0, self._due_s - time.monotonic())

    def attend(self) -> None:
        """Start the next coordinator if its back-off is over."""
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
        for registration in self._registrations.values():
            self._announce(registration)
        self._tell({"event": "adopted"})

    # Messages

    def _announce(self, registration: Registration) -> None:
        if registration.pid is not None:
            self._tell({"event": "instance", "id": registration.id, "kind": registration.kind, "pid": registration.pid})

    def _tell(self, message: dict[str, Any]) -> None:
        if self._link is not None:
            self._outbox.append(message)
            self._flush()

    def _flush(self) -> None:
        """Send until the socket would block. Instances that have ended meanwhile are not announced: their sockets are closed."""
        while self._outbox and self._link is not None:
            message = self._outbox[0]
            descriptors: list[int] = []
            if message["event"] == "instance":
                registration = self._registrations.get(message["id"])
                if registration is None:
                    self._outbox.popleft()
                    continue
                descriptors = [registration.socket.fileno()]
            try:
                packets.send(self._link, message, descriptors)
            except BlockingIOError:
                break
            except packets.PeerGoneError:
                # The end of the coordinator is reported when its process is reaped.
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
            self._close_link()
            # The coordinator has ended, has closed its socket without ending, or violates the protocol. Killing covers all three.
            self._kill()
            return False
        try:
            if not self._is_promoted(message):
                self._on_request(message, descriptors)
        except (KeyError, TypeError, ValueError) as error:
            sys.stderr.write(f"An invalid message of the coordinator is dropped: {type(error).__name__}: {error}\n")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _is_promoted(self, message: Mapping[str, Any]) -> bool:
        """True if the message would kill an instance that has been promoted from Shadow to Body meanwhile."""
        registration = self._registrations.get(str(message["id"])) if message["do"] == "kill" else None
        return registration is not None and registration.kind == "body"

    def _kill(self) -> None:
        # Popen.kill polls, and so would reap an ended process: `ended` would never see it.
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    def _close_link(self) -> None:
        self._outbox.clear()
        if self._link is not None:
            self._selector.unregister(self._link)
            self._link.close()
            self._link = None
