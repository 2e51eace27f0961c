"""The coordinator's process: sockets, time and shared memory around the coordination.

One thread. The supervisor is heard before everybody else, in each turn of the loop: when its end is closed this coordinator has
been replaced, and it ends before it says another word. The platform is heard once the supervisor has handed over every instance
that is there, so that its wishes never meet an empty table.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gnomon_coordinator import messages
from gnomon_coordinator.coordination import Coordination
from gnomon_coordinator.effects import Assign, Close, Connect, Effect, Fork, Kill, Papers, Send, Tell
from gnomon_coordinator.hand_over import hand_over
from gnomon_coordinator.layer_files import LayerFiles
from gnomon_coordinator.links import Link, LinkBrokenError, LinkEndedError
from gnomon_coordinator.messages import BadMessageError
from gnomon_coordinator.switchboard import Switchboard
from gnomon_coordinator.table import Kind
from gnomon_core import packets
from gnomon_core.coordination import EMPTY_KIND
from gnomon_core.launch import Launch, Order, Sandbox

MAX_ZYGOTE = 200
PAPERS = 2
"""An order and a log."""
_TURNS = 32
"""Messages that are read from one of ours before the others get their turn."""


class Replaced(Exception):  # noqa: N818 - it is no error: another coordinator has taken over, or everything ends
    """The supervisor has closed its end."""


class Server:
    """The loop, its links and its files. `now_s` is a monotonic clock."""

    def __init__(self, supervisor: Link, platform: Link, now_s: Callable[[], float] = time.monotonic) -> None:
        self._supervisor = supervisor
        self._platform = platform
        self._now_s = now_s
        self._coordination = Coordination(0)
        self._instances: dict[str, Link] = {}
        self._board = Switchboard()
        self._layers = LayerFiles()
        self._zygote = ""
        self._adopting = True
        self._platform_open = True

    def serve(self) -> None:
        """Until the supervisor has closed its end."""
        self._board.watch(self._supervisor)
        try:
            while True:
                self._turn()
        except Replaced:
            self._board.close()
            self._platform.close()

    def _turn(self) -> None:
        ready = self._board.ready(self._patience_s())
        # Whatever else has come: the supervisor first.
        self._hear_supervisor()
        if self._platform in ready:
            self._board.flush(self._platform, lambda error: self._lose_platform(str(error)))
            self._hear_platform()
        for instance_id, link in list(self._instances.items()):
            if link in ready:
                self._board.flush(link, partial(self._broken, instance_id))
                self._hear_instance(instance_id, link)
        self._coordination.tick(self._now_s())
        self._carry_out()

    def _patience_s(self) -> float | None:
        due_s = self._coordination.due_s()
        return None if due_s is None else max(0.0, due_s - self._now_s())

    # Hearing

    def _hear_supervisor(self) -> None:
        self._board.flush(self._supervisor, self._replaced)
        for _ in range(_TURNS):
            try:
                received = self._supervisor.receive(self._now_s())
            except LinkBrokenError as error:
                raise Replaced(str(error)) from None
            if received is None:
                return
            message, descriptors = received
            try:
                self._supervisor_said(message, descriptors)
            except (BadMessageError, ValueError, OSError) as error:
                _complain(f"the supervisor's message was not understood: {error}")
            finally:
                _close(descriptors)

    def _supervisor_said(self, message: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        event = message.get("event")
        if event == "epoch":
            self._coordination = Coordination(messages.whole_of(message, "epoch", 1, messages.MAX_BYTES))
        elif event == "instance":
            self._adopt(messages.read_id(message, "id"), Kind(str(message.get("kind"))), descriptors)
        elif event == "gone":
            instance_id = messages.read_id(message, "id")
            self._coordination.gone(instance_id, self._now_s())
            self._carry_out()
            self._forget(instance_id)
        elif event == "adopted":
            self._adopting = False
            self._board.watch(self._platform)
            self._tell({"event": "ready", "epoch": self._coordination.epoch})
        self._carry_out()

    def _adopt(self, instance_id: str, kind: Kind, descriptors: Sequence[int]) -> None:
        if len(descriptors) != 1 or instance_id in self._instances:
            raise BadMessageError(f"instance {instance_id} came with {len(descriptors)} sockets, or again")
        link = self._instances[instance_id] = Link(socket.socket(fileno=os.dup(descriptors[0])))
        self._board.watch(link)
        self._coordination.found(instance_id, kind, self._now_s())

    def _hear_platform(self) -> None:
        for _ in range(_TURNS):
            if not self._platform_open:
                return
            try:
                received = self._platform.receive(self._now_s())
            except LinkBrokenError as error:
                self._lose_platform(str(error))
                return
            if received is None:
                return
            message, descriptors = received
            papers = Papers(tuple(descriptors))
            try:
                self._platform_said(message, papers)
            except (BadMessageError, OSError) as error:
                papers.close()
                _complain(f"the platform's message was not understood: {error}")
                self._refuse(message, str(error))
            self._carry_out()

    def _platform_said(self, message: Mapping[str, Any], papers: Papers) -> None:
        do, now_s = message.get("do"), self._now_s()
        if do == "create":
            task = messages.read_task(message)
            if len(papers.descriptors) not in (0, PAPERS):
                raise BadMessageError(f"{len(papers.descriptors)} descriptors")
            self._zygote = _zygote_of(message)
            layers = self._layers.read(task.layers)
            self._coordination.create(task, layers, papers if papers.descriptors else None, now_s)
            return
        papers.close()
        if do == "change":
            self._coordination.change(messages.read_id(message, "shadow"), messages.read_change(message), now_s)
        elif do == "destroy":
            self._coordination.destroy(messages.read_id(message, "shadow"), now_s)
        elif do == "pool":
            self._zygote = _zygote_of(message)
            self._coordination.pool.resize(messages.whole_of(message, "size", 0, 1000), now_s)
        elif do == "table":
            self._coordination.report()
        elif do == "ping":
            self._tell({"event": "pong", "number": messages.whole_of(message, "number", 0, messages.MAX_BYTES)})
        else:
            raise BadMessageError("nothing that can be done")

    def _refuse(self, message: Mapping[str, Any], reason: str) -> None:
        shadow = message.get("shadow")
        if message.get("do") == "create" and isinstance(shadow, str):
            self._tell({"event": "failed", "shadow": shadow[:300], "reason": reason})

    def _hear_instance(self, instance_id: str, link: Link) -> None:
        """One message a turn, so that nobody is heard more often than the others."""
        if self._instances.get(instance_id) is not link:
            return
        now_s = self._now_s()
        try:
            received = link.receive(now_s)
            if received is None:
                return
            message, descriptors = received
            _close(descriptors)
            self._coordination.said(instance_id, messages.read_said(message, len(descriptors)), now_s)
        except (LinkBrokenError, BadMessageError) as error:
            self._broken(instance_id, error)
        self._carry_out()

    # Doing

    def _carry_out(self) -> None:
        """Do what the coordination wants done. What fails there may want more."""
        while effects := self._coordination.take():
            for effect in effects:
                self._do(effect)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send(instance_id, message, papers):
                self._send(instance_id, message, () if papers is None else papers.descriptors)
            case Connect():
                self._connect(effect)
            case Fork(container):
                self._fork(container)
            case Assign(container, shadow, join):
                link = self._instances.pop(container, None)
                if link is not None:
                    self._instances[shadow] = link
                self._to_supervisor({"do": "assign", "id": container, "as": shadow, "join": list(join)})
            case Kill(instance_id):
                self._to_supervisor({"do": "kill", "id": instance_id})
            case Close(instance_id):
                self._forget(instance_id)
            case Tell(message):
                self._tell(message)

    def _send(self, instance_id: str, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        link = self._instances.get(instance_id)
        if link is None:
            return
        try:
            link.send({**message, "epoch": self._coordination.epoch}, descriptors)
        except (LinkBrokenError, OSError) as error:
            self._broken(instance_id, error)
        else:
            self._board.watch(link)

    def _connect(self, wanted: Connect) -> None:
        try:
            with hand_over(wanted.to_bytes, wanted.from_bytes) as (for_body, for_shadow):
                self._send(wanted.shadow, wanted.join, for_shadow)
                self._send(wanted.body, wanted.pair, for_body)
        except OSError as error:
            self._coordination.not_connected(wanted.shadow, f"no shared memory: {error}", self._now_s())

    def _fork(self, container: str) -> None:
        order = Order(Launch(EMPTY_KIND, "", container), Sandbox())
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        paper = packets.sealed_file("order", order.to_json().encode())
        try:
            message = {"do": "fork", "id": container, "zygote": self._zygote}
            self._to_supervisor(message, [paper, nothing, sys.stderr.fileno()])
        finally:
            _close([nothing, paper])

    def _to_supervisor(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        try:
            self._supervisor.send(message, descriptors)
        except LinkBrokenError as error:
            raise Replaced(str(error)) from None
        self._board.watch(self._supervisor)

    def _tell(self, message: Mapping[str, Any]) -> None:
        if not self._platform_open:
            return
        try:
            self._platform.send(message)
        except LinkBrokenError as error:
            self._lose_platform(str(error))
        else:
            if not self._adopting:
                self._board.watch(self._platform)

    # Links

    def _forget(self, instance_id: str) -> None:
        link = self._instances.pop(instance_id, None)
        if link is not None:
            self._board.drop(link)

    def _broken(self, instance_id: str, error: Exception) -> None:
        self._forget(instance_id)
        if isinstance(error, LinkEndedError):
            self._coordination.hung_up(instance_id, self._now_s())
        else:
            _complain(f"{instance_id} is not heard any more: {error}")
            self._coordination.broken(instance_id, str(error), self._now_s())

    def _lose_platform(self, reason: str) -> None:
        """Nobody wishes for anything any more. The supervisor ends everything, or starts another coordinator."""
        _complain(f"the platform is not heard any more: {reason}")
        self._platform_open = False
        self._board.drop(self._platform)

    def _replaced(self, error: LinkBrokenError) -> None:
        raise Replaced(str(error))


def _zygote_of(message: Mapping[str, Any]) -> str:
    """From which zygote containers are forked."""
    zygote = message.get("zygote")
    if not isinstance(zygote, str) or not 0 < len(zygote) <= MAX_ZYGOTE:
        raise BadMessageError("no zygote")
    return zygote


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _complain(text: str) -> None:
    sys.stderr.write(f"coordinator: {text}\n")
    sys.stderr.flush()
