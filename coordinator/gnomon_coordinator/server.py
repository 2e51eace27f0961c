"""The coordinator's process: what it hears, and when. What it does about it is in `doing`.

One thread. The supervisor is heard before everybody else, in each turn of the loop: when its end is closed this coordinator has
been replaced, and it ends before it says another word. Until the supervisor has handed over every instance that is there, nobody
else is heard and no time passes: a wish would meet an empty table, and a Body's first words name a Shadow that is yet to come.

What the coordination wants done, done: messages to instances, the supervisor and the platform, and shared memory for pairs.

A link that cannot be written to is broken, and that is an event for the coordination, which may want more done because of it.

The links that are listened to: which of them have something to say, and which wait to be rid of something.

The shared memory of one pair: a data socket and two buffers, with one writer each.

The layer blocks of models, which say how large a pair's buffers have to be.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from gnomon_coordinator import protocol as fields
from gnomon_coordinator import protocol as messages
from gnomon_coordinator.coordination import Coordination
from gnomon_coordinator.effects import Assign, Close, Connect, Effect, Fork, Kill, Papers, Send, Tell
from gnomon_coordinator.links import Link, LinkBrokenError, LinkEndedError
from gnomon_coordinator.protocol import BadMessageError
from gnomon_coordinator.table import Kind
from gnomon_core import packets, shared_memory
from gnomon_core.blocks import Layers
from gnomon_core.coordination import EMPTY_KIND
from gnomon_core.launch import Launch, Order, Sandbox


class Switchboard:
    """A selector that knows what each link waits for."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._watched: dict[Link, int] = {}

    def ready(self, patience_s: float | None) -> set[Link]:
        """The links that can be heard, or take more; none where nothing has come for so long."""
        return {key.data for key, _ in self._selector.select(patience_s)}

    def watch(self, link: Link) -> None:
        """Wait for this link to be readable, and writable while something waits to be sent."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.wants_to_write else 0)
        known = self._watched.get(link)
        if known is None:
            self._selector.register(link.socket, events, link)
        elif known != events:
            self._selector.modify(link.socket, events, link)
        self._watched[link] = events

    def flush(self, link: Link, lost: Callable[[LinkBrokenError], None]) -> None:
        """Send what a link takes now of what waits; `lost` hears of it if it takes nothing any more."""
        if link.wants_to_write:
            try:
                link.flush()
            except LinkBrokenError as error:
                lost(error)
                return
            self.watch(link)

    def drop(self, link: Link) -> None:
        """Close a link and forget it."""
        if self._watched.pop(link, None) is not None:
            self._selector.unregister(link.socket)
        link.close()

    def close(self) -> None:
        for link in list(self._watched):
            self.drop(link)
        self._selector.close()


@contextmanager
def hand_over(to_bytes: int, from_bytes: int) -> Iterator[tuple[list[int], list[int]]]:
    """What the Body and what the Shadow gets: its end of the data socket, the buffer to the Shadow, the buffer from it.

    Our own descriptors are closed on the way out, whatever happens: from then on the pair alone keeps the memory alive.

    Raises:
        OSError: the kernel has no memory or no descriptor left.

    """
    with ExitStack() as ours:
        for_body, for_shadow = (ours.enter_context(end) for end in packets.socket_pair())

        def keep(descriptor: int) -> int:
            ours.callback(os.close, descriptor)
            return descriptor

        there, back = (keep(shared_memory.make(name, size)) for name, size in (("there", to_bytes), ("back", from_bytes)))
        read_there, read_back = (keep(shared_memory.reader(descriptor)) for descriptor in (there, back))
        yield [for_body.fileno(), there, read_back], [for_shadow.fileno(), read_there, back]


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


MAX_LAYERS_KEPT = 64
MAX_LAYERS_BYTES = 64 * 2**20


class LayerFiles:
    """The blocks of models by their files, which never change once they are in a model repository."""

    def __init__(self) -> None:
        self._layers: dict[str, Layers] = {}

    def read(self, path: str) -> Layers:
        """The blocks in this file.

        Raises:
            BadMessageError: it holds none, or is larger than any.
            OSError: it cannot be read.

        """
        if path not in self._layers:
            if Path(path).stat().st_size > MAX_LAYERS_BYTES:
                raise BadMessageError("the layers' file is too large")
            try:
                layers = Layers.from_json(json.loads(Path(path).read_bytes()))
            except (ValueError, AttributeError, RecursionError) as error:
                raise BadMessageError(f"the layers cannot be read: {error}") from None
            while len(self._layers) >= MAX_LAYERS_KEPT:
                del self._layers[next(iter(self._layers))]
            self._layers[path] = layers
        return self._layers[path]


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
