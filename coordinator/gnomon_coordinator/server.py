"""The coordinator's process: what it hears, and when. What it does about it is in `doing`.

One thread. The supervisor is heard before everybody else, in each turn of the loop: when its end is closed this coordinator has
been replaced, and it ends before it says another word. Until the supervisor has handed over every instance that is there, nobody
else is heard and no time passes: a wish would meet an empty table, and a Body's first words name a Shadow that is yet to come.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gnomon_coordinator import fields, messages
from gnomon_coordinator.coordination import Coordination
from gnomon_coordinator.doing import Doing, Replaced, close, complain
from gnomon_coordinator.effects import Papers
from gnomon_coordinator.fields import BadMessageError
from gnomon_coordinator.layer_files import LayerFiles
from gnomon_coordinator.links import Link, LinkBrokenError
from gnomon_coordinator.table import Kind

MAX_ZYGOTE = 200
MAX_POOL = 1000
PAPERS = 2
"""An order, and a log or the channel of the Body that a Shadow is to become."""
_TURNS = 32
"""Messages that are read from one of ours before the others get their turn."""


class Server(Doing):
    """The loop, its links and its files. `now_s` is a monotonic clock."""

    def __init__(self, supervisor: Link, platform: Link, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(supervisor, platform, now_s)
        self._layers = LayerFiles()

    def serve(self) -> None:
        """Until the supervisor has closed its end."""
        self._board.watch(self._supervisor)
        try:
            while self._adopting:
                self._board.ready(None)
                self._hear_supervisor()
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
            self._board.flush(self._platform, self._lose_platform)
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
                complain(f"the supervisor's message was not understood: {error}")
            finally:
                close(descriptors)

    def _supervisor_said(self, message: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        event = message.get("event")
        if event == "epoch":
            self._coordination = Coordination(fields.whole_of(message, "epoch", 1, fields.MAX_BYTES))
        elif event == "instance":
            self._adopt(fields.read_id(message, "id"), Kind(str(message.get("kind"))), descriptors)
        elif event == "gone":
            instance_id = fields.read_id(message, "id")
            self._coordination.gone(instance_id, self._now_s())
            self._carry_out()
            self._forget(instance_id)
        elif event == "promoted":
            self._coordination.promoted(fields.read_id(message, "id"))
        elif event == "adopted":
            self._adopting = False
            for link in (*self._instances.values(), self._platform):
                self._board.watch(link)
            self._tell({"event": "ready", "epoch": self._coordination.epoch})
        self._carry_out()

    def _adopt(self, instance_id: str, kind: Kind, descriptors: Sequence[int]) -> None:
        if len(descriptors) != 1 or instance_id in self._instances:
            raise BadMessageError(f"instance {instance_id} came with {len(descriptors)} sockets, or again")
        link = self._instances[instance_id] = Link(socket.socket(fileno=os.dup(descriptors[0])))
        self._watch(link)
        self._coordination.found(instance_id, kind, self._now_s())

    def _hear_platform(self) -> None:
        for _ in range(_TURNS):
            if not self._platform_open:
                return
            try:
                received = self._platform.receive(self._now_s())
            except LinkBrokenError as error:
                self._lose_platform(error)
                return
            if received is None:
                return
            message, descriptors = received
            papers = Papers(tuple(descriptors))
            try:
                self._platform_said(message, papers)
            except (BadMessageError, OSError) as error:
                papers.close()
                complain(f"the platform's message was not understood: {error}")
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
        if do == "join" and len(papers.descriptors) == 1:
            self._coordination.reached(fields.read_id(message, "shadow"), papers)
            self._carry_out()
            papers.close()
            return
        if do == "promote" and len(papers.descriptors) == PAPERS:
            self._coordination.promote(fields.read_id(message, "shadow"), papers, now_s)
            return
        papers.close()
        if do == "change":
            self._coordination.change(fields.read_id(message, "shadow"), messages.read_change(message), now_s)
        elif do == "destroy":
            self._coordination.destroy(fields.read_id(message, "shadow"), now_s)
        elif do == "pool":
            self._zygote = _zygote_of(message)
            size = fields.whole_of(message, "size", 0, MAX_POOL)
            most = fields.whole_of(message, "most", 0, MAX_POOL) if "most" in message else None
            self._coordination.pool.resize(size, now_s, most)
        elif do == "table":
            self._coordination.report()
        elif do == "ping":
            self._tell({"event": "pong", "number": fields.whole_of(message, "number", 0, fields.MAX_BYTES)})
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
            close(descriptors)
            self._coordination.said(instance_id, messages.read_said(message, len(descriptors)), now_s)
        except (LinkBrokenError, BadMessageError) as error:
            self._broken(instance_id, error)
        self._carry_out()


def _zygote_of(message: Mapping[str, Any]) -> str:
    """From which zygote containers are forked."""
    zygote = message.get("zygote")
    if not isinstance(zygote, str) or not 0 < len(zygote) <= MAX_ZYGOTE:
        raise BadMessageError("no zygote")
    return zygote
