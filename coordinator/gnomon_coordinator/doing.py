"""What the coordination wants done, done: messages to instances, the supervisor and the platform, and shared memory for pairs.

A link that cannot be written to is broken, and that is an event for the coordination, which may want more done because of it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gnomon_coordinator.coordination import Coordination
from gnomon_coordinator.effects import Assign, Close, Connect, Effect, Fork, Kill, Send, Tell
from gnomon_coordinator.hand_over import hand_over
from gnomon_coordinator.links import Link, LinkBrokenError, LinkEndedError
from gnomon_coordinator.switchboard import Switchboard
from gnomon_core import packets
from gnomon_core.coordination import EMPTY_KIND
from gnomon_core.launch import Launch, Order, Sandbox


class Replaced(Exception):  # noqa: N818 - it is no error: another coordinator has taken over, or everything ends
    """The supervisor has closed its end."""


class Doing:
    """The links, and everything that is said over them. `now_s` is a monotonic clock.

    `Server` stands on it: one object in two rooms, because what is heard makes something to do, and what fails is heard of.
    """

    def __init__(self, supervisor: Link, platform: Link, now_s: Callable[[], float] = time.monotonic) -> None:
        self._supervisor = supervisor
        self._platform = platform
        self._now_s = now_s
        self._coordination = Coordination(0)
        self._instances: dict[str, Link] = {}
        self._board = Switchboard()
        self._zygote = ""
        self._adopting = True
        self._platform_open = True

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
            self._watch(link)

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
            close([nothing, paper])

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
            self._lose_platform(error)
        else:
            self._watch(self._platform)

    # Links

    def _watch(self, link: Link) -> None:
        """Listen to the platform or an instance, as soon as all instances are there."""
        if not self._adopting:
            self._board.watch(link)

    def _forget(self, instance_id: str) -> None:
        link = self._instances.pop(instance_id, None)
        if link is not None:
            self._board.drop(link)

    def _broken(self, instance_id: str, error: Exception) -> None:
        self._forget(instance_id)
        if isinstance(error, LinkEndedError):
            self._coordination.hung_up(instance_id, self._now_s())
        else:
            complain(f"{instance_id} is not heard any more: {error}")
            self._coordination.broken(instance_id, str(error), self._now_s())

    def _lose_platform(self, error: LinkBrokenError) -> None:
        """Nobody wishes for anything any more. The supervisor ends everything, or starts another coordinator.

        A platform that stops closes its socket first: that is no complaint.
        """
        if not isinstance(error, LinkEndedError):
            complain(f"the platform is not heard any more: {error}")
        self._platform_open = False
        self._board.drop(self._platform)

    def _replaced(self, error: LinkBrokenError) -> None:
        raise Replaced(str(error))


def close(descriptors: Sequence[int]) -> None:
    """Close them all."""
    for descriptor in descriptors:
        os.close(descriptor)


def complain(text: str) -> None:
    """For the log of whoever runs the platform."""
    sys.stderr.write(f"coordinator: {text}\n")
    sys.stderr.flush()
