"""The coordinator's event loop, which feeds messages to the node's state machine and executes the effects that it returns.

    supervisor ─┐                                        ┌▶ messages to instances, the supervisor and the platform
    platform ───┼▶ messages ▶ NodeState ▶ effects ───────┼▶ shared memory for a pair
    instances ──┘                          ▲             └▶ a link that breaks
                                           └──────────────────────┘ is an event again

One thread. In each turn the supervisor's messages are read before all others: if the supervisor has closed its end, this
coordinator has been replaced, and must end before it sends anything more. Until the supervisor has handed over every existing
instance, no other link is read and no timeout runs: a request would find an empty table, and a Body's first message would name a
Shadow that has not been handed over yet.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from gnomon_coordinator import protocol
from gnomon_coordinator.effects import Assign, Close, Connect, Descriptors, Effect, Fork, Kill, LogError, Notify, Send
from gnomon_coordinator.links import Link, LinkBrokenError, LinkEndedError, LinkSelector
from gnomon_coordinator.node_state import NodeState
from gnomon_coordinator.protocol import BadMessageError
from gnomon_coordinator.table import Kind
from gnomon_core import packets, shared_memory
from gnomon_core.blocks import Layers
from gnomon_core.coordination import EMPTY_KIND
from gnomon_core.launch import Launch, Order, Sandbox

MAX_ZYGOTE = 200
MAX_POOL = 1000
LAUNCH_FDS = 2
"""An order, and a log or the channel of the Body that a Shadow is to become."""
MESSAGES_A_TURN = 32
"""Messages that are read from the supervisor or the platform before the other links get their turn."""


class Replaced(Exception):  # noqa: N818 - not an error: another coordinator has taken over, or the platform ends
    """The supervisor has closed its end."""


class Server:
    """The loop, its links and its state machine. `now_s` is a monotonic clock."""

    def __init__(self, supervisor: Link, platform: Link, now_s: Callable[[], float] = time.monotonic) -> None:
        self._supervisor = supervisor
        self._platform = platform
        self._platform_open = True
        self._instances: dict[str, Link] = {}
        self._selector = LinkSelector()
        self._now_s = now_s
        self._state = NodeState(0)
        self._layers = LayerFiles()
        self._zygote = ""
        self._adopting = True
        """True until the supervisor has handed over every instance."""

    def serve(self) -> None:
        """Run until the supervisor closes its end."""
        self._selector.watch(self._supervisor)
        try:
            # The supervisor first hands over every instance of an earlier coordinator. Other links are not read until then: a
            # request would be answered from an incomplete table.
            while self._adopting:
                self._selector.ready(None)
                self._read_supervisor()
            while True:
                self._turn()
        except Replaced:
            self._selector.close()
            self._platform.close()

    def _turn(self) -> None:
        due_s = self._state.due_s()
        ready = self._selector.ready(None if due_s is None else max(0.0, due_s - self._now_s()))
        # The supervisor first, even if only another link is ready: this coordinator may have been replaced.
        self._read_supervisor()
        if self._platform in ready:
            self._selector.flush(self._platform, self._platform_lost)
            self._read_platform()
        for instance_id, link in list(self._instances.items()):
            if link in ready:
                self._selector.flush(link, partial(self._instance_broken, instance_id))
                self._read_instance(instance_id, link)
        self._state.tick(self._now_s())
        self._execute_effects()

    # Messages of the supervisor

    def _read_supervisor(self) -> None:
        self._selector.flush(self._supervisor, self._replaced)
        for _ in range(MESSAGES_A_TURN):
            try:
                received = self._supervisor.receive(self._now_s())
            except LinkBrokenError as error:
                raise Replaced(str(error)) from None
            if received is None:
                return
            message, descriptors = received
            try:
                self._supervisor_event(message, descriptors)
            except (BadMessageError, ValueError, OSError) as error:
                log(f"message of the supervisor ignored: {error}")
            finally:
                close(descriptors)

    def _supervisor_event(self, message: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        event = message.get("event")
        if event == "epoch":
            self._state = NodeState(protocol.read_integer(message, "epoch", 1, protocol.MAX_BYTES))
        elif event == "instance":
            self._adopt(protocol.read_id(message, "id"), Kind(str(message.get("kind"))), descriptors)
        elif event == "gone":
            instance_id = protocol.read_id(message, "id")
            self._state.gone(instance_id, self._now_s())
            self._execute_effects()
            self._forget(instance_id)
        elif event == "promoted":
            self._state.promoted(protocol.read_id(message, "id"))
        elif event == "adopted":
            self._adopting = False
            for link in (*self._instances.values(), self._platform):
                self._selector.watch(link)
            self._notify({"event": "ready", "epoch": self._state.epoch})
        self._execute_effects()

    def _adopt(self, instance_id: str, kind: Kind, descriptors: Sequence[int]) -> None:
        if len(descriptors) != 1 or instance_id in self._instances:
            raise BadMessageError(f"instance {instance_id} came with {len(descriptors)} sockets, or again")
        link = self._instances[instance_id] = Link(socket.socket(fileno=os.dup(descriptors[0])))
        self._watch(link)
        self._state.found(instance_id, kind, self._now_s())

    # Messages of the platform

    def _read_platform(self) -> None:
        for _ in range(MESSAGES_A_TURN):
            if not self._platform_open:
                return
            try:
                received = self._platform.receive(self._now_s())
            except LinkBrokenError as error:
                self._platform_lost(error)
                return
            if received is None:
                return
            message, fds = received
            descriptors = Descriptors(tuple(fds))
            try:
                self._platform_request(message, descriptors)
            except (BadMessageError, OSError) as error:
                descriptors.close()
                log(f"message of the platform refused: {error}")
                self._refuse(message, str(error))
            self._execute_effects()

    def _platform_request(self, message: Mapping[str, Any], descriptors: Descriptors) -> None:
        do, now_s = message.get("do"), self._now_s()
        if do == "create":
            task = protocol.read_task(message)
            if len(descriptors.fds) not in (0, LAUNCH_FDS):
                raise BadMessageError(f"{len(descriptors.fds)} descriptors")
            self._zygote = _read_zygote(message)
            layers = self._layers.read(task.layers)
            self._state.create(task, layers, descriptors if descriptors.fds else None, now_s)
            return
        if do == "join" and len(descriptors.fds) == 1:
            self._state.remote_body_connected(protocol.read_id(message, "shadow"), descriptors)
            self._execute_effects()
            descriptors.close()
            return
        if do == "promote" and len(descriptors.fds) == LAUNCH_FDS:
            self._state.promote(protocol.read_id(message, "shadow"), descriptors, now_s)
            return
        descriptors.close()
        if do == "change":
            self._state.change(protocol.read_id(message, "shadow"), protocol.read_change(message), now_s)
        elif do == "destroy":
            self._state.destroy(protocol.read_id(message, "shadow"), now_s)
        elif do == "pool":
            self._zygote = _read_zygote(message)
            size = protocol.read_integer(message, "size", 0, MAX_POOL)
            most = protocol.read_integer(message, "most", 0, MAX_POOL) if "most" in message else None
            self._state.pool.resize(size, now_s, most)
        elif do == "table":
            self._state.report()
        elif do == "ping":
            self._notify({"event": "pong", "number": protocol.read_integer(message, "number", 0, protocol.MAX_BYTES)})
        else:
            raise BadMessageError("unknown command")

    def _refuse(self, message: Mapping[str, Any], reason: str) -> None:
        shadow = message.get("shadow")
        if message.get("do") == "create" and isinstance(shadow, str):
            self._notify({"event": "failed", "shadow": shadow[:300], "reason": reason})

    # Messages of instances

    def _read_instance(self, instance_id: str, link: Link) -> None:
        """Read one message: each instance has one a turn, so that none is preferred."""
        if self._instances.get(instance_id) is not link:
            return
        now_s = self._now_s()
        try:
            received = link.receive(now_s)
            if received is None:
                return
            message, descriptors = received
            close(descriptors)
            self._state.handle_message(instance_id, protocol.read_instance_message(message, len(descriptors)), now_s)
        except (LinkBrokenError, BadMessageError) as error:
            self._instance_broken(instance_id, error)
        self._execute_effects()

    # Effects

    def _execute_effects(self) -> None:
        """Execute effects until there are none: one that fails is an event, which may have effects of its own."""
        while effects := self._state.take():
            for effect in effects:
                self._execute(effect)

    def _execute(self, effect: Effect) -> None:
        match effect:
            case Send(instance_id, message, descriptors):
                self._send(instance_id, message, () if descriptors is None else descriptors.fds)
            case Connect():
                self._connect(effect)
            case Fork(container):
                self._fork(container)
            case Assign(container, shadow, join):
                link = self._instances.pop(container, None)
                # The container's process becomes the Shadow: the same socket, under another id.
                if link is not None:
                    self._instances[shadow] = link
                self._to_supervisor({"do": "assign", "id": container, "as": shadow, "join": list(join)})
            case Kill(instance_id):
                self._to_supervisor({"do": "kill", "id": instance_id})
            case Close(instance_id):
                self._forget(instance_id)
            case Notify(message):
                self._notify(message)
            case LogError(text):
                log(text)

    def _send(self, instance_id: str, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        link = self._instances.get(instance_id)
        if link is None:
            return
        try:
            # The epoch is the fencing token: instances obey no coordinator older than the newest one that they know.
            link.send({**message, "epoch": self._state.epoch}, descriptors)
        except (LinkBrokenError, OSError) as error:
            self._instance_broken(instance_id, error)
        else:
            self._watch(link)

    def _connect(self, pair: Connect) -> None:
        try:
            with pair_memory(pair.to_bytes, pair.from_bytes) as (for_body, for_shadow):
                self._send(pair.shadow, pair.join, for_shadow)
                self._send(pair.body, pair.pair, for_body)
        except OSError as error:
            self._state.not_connected(pair.shadow, f"no shared memory: {error}", self._now_s())

    def _fork(self, container: str) -> None:
        order = Order(Launch(EMPTY_KIND, "", container), Sandbox())
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        order_fd = packets.sealed_file("order", order.to_json().encode())
        try:
            message = {"do": "fork", "id": container, "zygote": self._zygote}
            self._to_supervisor(message, [order_fd, null, sys.stderr.fileno()])
        finally:
            close([null, order_fd])

    def _to_supervisor(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        try:
            self._supervisor.send(message, descriptors)
        except LinkBrokenError as error:
            raise Replaced(str(error)) from None
        self._selector.watch(self._supervisor)

    def _notify(self, message: Mapping[str, Any]) -> None:
        """Send an event to the platform."""
        if not self._platform_open:
            return
        try:
            self._platform.send(message)
        except LinkBrokenError as error:
            self._platform_lost(error)
        else:
            self._watch(self._platform)

    # Links

    def _watch(self, link: Link) -> None:
        """Watch the link of the platform or an instance, once every instance has been handed over."""
        if not self._adopting:
            self._selector.watch(link)

    def _forget(self, instance_id: str) -> None:
        link = self._instances.pop(instance_id, None)
        if link is not None:
            self._selector.drop(link)

    def _instance_broken(self, instance_id: str, error: Exception) -> None:
        self._forget(instance_id)
        if isinstance(error, LinkEndedError):
            self._state.disconnected(instance_id, self._now_s())
        else:
            log(f"link to {instance_id} closed: {error}")
            self._state.broken(instance_id, str(error), self._now_s())

    def _platform_lost(self, error: LinkBrokenError) -> None:
        """Continue without the platform: the supervisor will end everything, or start another coordinator."""
        # A platform that shuts down closes its socket first: not an error, so not logged.
        if not isinstance(error, LinkEndedError):
            log(f"link to the platform closed: {error}")
        self._platform_open = False
        self._selector.drop(self._platform)

    def _replaced(self, error: LinkBrokenError) -> None:
        raise Replaced(str(error))


@contextmanager
def pair_memory(to_bytes: int, from_bytes: int) -> Iterator[tuple[list[int], list[int]]]:
    """A pair's descriptors for the Body and for the Shadow: a data socket, the buffer to the Shadow, and the buffer from it.

    Each buffer has one writer. The caller's context closes our descriptors; from then on only the pair keeps the memory.

    Raises:
        OSError: the kernel has no memory or no descriptor left.

    """
    with ExitStack() as ours:
        for_body, for_shadow = (ours.enter_context(end) for end in packets.socket_pair())

        def keep(descriptor: int) -> int:
            ours.callback(os.close, descriptor)
            return descriptor

        to_shadow = keep(shared_memory.make("there", to_bytes))
        from_shadow = keep(shared_memory.make("back", from_bytes))
        read_to_shadow, read_from_shadow = (keep(shared_memory.reader(descriptor)) for descriptor in (to_shadow, from_shadow))
        yield [for_body.fileno(), to_shadow, read_from_shadow], [for_shadow.fileno(), read_to_shadow, from_shadow]


MAX_LAYERS_KEPT = 64
MAX_LAYERS_BYTES = 64 * 2**20


class LayerFiles:
    """A cache of models' layer blocks by file. Files in a model repository never change."""

    def __init__(self) -> None:
        self._layers: dict[str, Layers] = {}

    def read(self, path: str) -> Layers:
        """The blocks in this file.

        Raises:
            BadMessageError: the file holds no blocks, or is too large.
            OSError: the file cannot be read.

        """
        if path not in self._layers:
            if Path(path).stat().st_size > MAX_LAYERS_BYTES:
                raise BadMessageError("the layers' file is too large")
            try:
                layers = Layers.from_json(json.loads(Path(path).read_bytes()))
            except (ValueError, AttributeError, RecursionError) as error:
                raise BadMessageError(f"the layers cannot be read: {error}") from None
            # The oldest entry first: dictionaries keep the order of insertion.
            while len(self._layers) >= MAX_LAYERS_KEPT:
                del self._layers[next(iter(self._layers))]
            self._layers[path] = layers
        return self._layers[path]


def close(descriptors: Sequence[int]) -> None:
    """Close all descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def log(text: str) -> None:
    """Write to the log of the platform."""
    sys.stderr.write(f"coordinator: {text}\n")
    sys.stderr.flush()


def _read_zygote(message: Mapping[str, Any]) -> str:
    """The id of the zygote that containers are forked from."""
    zygote = message.get("zygote")
    if not isinstance(zygote, str) or not 0 < len(zygote) <= MAX_ZYGOTE:
        raise BadMessageError("zygote is missing or too long")
    return zygote
