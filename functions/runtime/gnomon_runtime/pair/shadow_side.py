"""The lifecycle of a pool container: empty, then the Shadow of one Body, then either ended or promoted to a Body.

    hello ─▶ "empty"     load ─▶ sandbox, weights, segments ─▶ "registered"     join ─▶ batches     stop, or no peer left ─▶ end
                         promote ─▶ the other weights ─▶ "complete"             serve ─▶ a Body

An empty container belongs to no function and has seen no data. A load makes it a function's Shadow: it enters that function's
sandbox, under the function's user, and cannot leave it. It runs no user code as a Shadow, and is never reused.

Of several waiting hand-overs only the newest is computed: the Body has given up the older ones. The process ends on the
coordinator's order, when a load fails, and when coordinator and Body have both disconnected.

Promotion of a Shadow to a Body: the remaining weights are loaded in pieces, between the micro-batches of the pair, which stays
active.

    promote ─▶ pieces … ─▶ "complete"      (its Body lets go)      serve ─▶ bind, warm up ─▶ HELLO on a batch channel of its own

Weights that the Shadow holds are not loaded again. A piece is small, so that a hand-over which arrives meanwhile hardly waits:
2 MiB are copied in about 1 ms, and mapped in less. Binding the program and the first run take tens of milliseconds; they happen
after the Body has unpaired. Until then the Shadow is unchanged, so a promotion can be cancelled at any time.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import sys
import termios
import time
from collections.abc import Callable, Generator, Iterator
from itertools import pairwise
from typing import Any

import torch

from gnomon_core import packets
from gnomon_core.launch import Order
from gnomon_runtime import instance
from gnomon_runtime.body import ModelApplication
from gnomon_runtime.engine.torch_support import keep_freed_memory
from gnomon_runtime.instance import pin
from gnomon_runtime.pair.headers import Kind, NonsenseError
from gnomon_runtime.pair.link import DataPath, Link
from gnomon_runtime.pair.orders import REFUSALS, Coordination, OrderHandler
from gnomon_runtime.pair.remote_link import StreamLink
from gnomon_runtime.pair.shadow_model import HeldModel, compute_answer, hold_model

LOAD_FAILED = 1
GREETINGS_BYTES = 128
"""Bytes that a few "hello" orders take at most: more bytes on the socket include a load."""
AT_ONCE_S = 0.03
"""A container that was forked for a Shadow gets its load within a few milliseconds of its start. One without a load by then was
forked ahead, and has time to rehearse."""


class ShadowSide:
    """The event loop of a pool container. `apply_order` enters the sandbox, and sets the CPUs and threads of the process."""

    def __init__(self, coordination: Coordination, apply_order: Callable[[Order], None]) -> None:
        self._apply_order = apply_order
        self._held: HeldModel | None = None
        self._shadow = self._body = ""
        self._afar = False
        """Whether the Shadow's Body is on another node."""
        self._phases_ms: list[float] = []
        """Milliseconds of the load's phases: entering the sandbox, reading the program, loading and binding the blocks."""
        self._link: DataPath | None = None
        self._status: int | None = None
        self._poll = select.poll()
        self._poll.register(coordination.fileno(), select.POLLIN)
        self._promotion: Promotion | None = None
        self._is_promoted = False
        handlers = {"hello": self._hello, "load": self._load, "join": self._join, "change": self._change, "stop": self._stop}
        handlers |= {"promote": self._promote, "serve": self._serve_as_body}
        self._orders: OrderHandler | None = OrderHandler(coordination, handlers, self._refused)

    def serve(self) -> int:
        """Run until the container's end or promotion. Returns the exit status."""
        while self._status is None:
            if self._orders is None and self._link is None:
                return 0
            loads = self._promotion is not None and not self._promotion.complete
            ready = {descriptor for descriptor, _ in self._poll.poll(0 if loads else None)}
            if self._link is not None and self._link.fileno() in ready:
                self._compute_newest(self._link)
            if self._orders is not None and self._orders.fileno() in ready:
                self._handle_orders(self._orders)
            if self._promotion is not None:
                self._load_more(self._promotion)
        self._close_link()
        return self._status

    @property
    def completed_promotion(self) -> Promotion | None:
        """The promotion that is to be completed; None if the container ended as a Shadow."""
        return self._promotion if self._is_promoted else None

    def _compute_newest(self, link: DataPath) -> None:
        """Compute the newest of the waiting hand-overs."""
        try:
            requests = link.pending()
            if not requests and link.awaited():
                requests = link.pending()
            requests = [message for message in requests if message.kind is Kind.COMPUTE]
            if requests:
                link.send(compute_answer(self._held, requests[-1], link.to, link.back, link.send_hint))
        except packets.PeerGoneError:
            self._unpair("the Body has gone")
        except NonsenseError as error:
            self._unpair(f"the Body sends nonsense: {error}")

    def _handle_orders(self, orders: OrderHandler) -> None:
        while self._status is None and orders.next():
            pass
        if orders.gone:
            self._poll.unregister(orders.fileno())
            self._orders = None
            orders.close()

    def _refused(self) -> None:
        if self._held is None:
            # A failed load may have entered the sandbox in part: the process cannot be reused.
            self._status = LOAD_FAILED

    def _hello(self, _message: dict[str, Any], _descriptors: list[int]) -> None:
        if self._held is None:
            self._say("empty", pid=os.getpid())
        else:
            self._registered(self._held)

    def _load(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if self._held is not None:
            raise ValueError("it is a Shadow already")
        stamps_s = [time.monotonic()]
        order = Order.from_json(packets.read_file(descriptors[0]))
        for number in (1, 2):
            os.dup2(descriptors[1], number)
        self._apply_order(order)
        stamps_s.append(time.monotonic())
        model = hold_model(message, int(message["cores"]))
        stamps_s.append(time.monotonic())
        model.hold(int(block) for block in message["blocks"])
        stamps_s.append(time.monotonic())
        self._held, self._shadow, self._body = model, str(message["shadow"]), str(message["body"])
        self._afar = bool(message.get("afar", False))
        self._phases_ms = [round(1e3 * (end_s - begin_s), 3) for begin_s, end_s in pairwise(stamps_s)]
        self._registered(model)

    def _registered(self, model: HeldModel) -> None:
        self._say(
            "registered",
            shadow=self._shadow,
            body=self._body,
            blocks=list(model.blocks),
            resident_bytes=model.resident_bytes,
            load_ms=round(sum(self._phases_ms), 3),
            phases_ms=self._phases_ms,
            paired=self._link is not None,
            afar=self._afar,
        )

    def _join(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if self._held is None:
            raise ValueError("it has loaded no blocks")
        self._close_link()
        self._link = _data_path(message, descriptors)
        self._poll.register(self._link.fileno(), select.POLLIN)
        self._say("paired", shadow=self._shadow)

    def _change(self, message: dict[str, Any], _descriptors: list[int]) -> None:
        if self._held is None:
            raise ValueError("it has loaded no blocks")
        if self._promotion is not None:
            raise ValueError("it is being promoted to a Body")
        self._held.hold(int(block) for block in message["blocks"])
        if "cores" in message:
            pin(tuple(int(cpu) for cpu in message.get("cpus", ())))
            self._held.resize(int(message["cores"]))
        self._say("changed", blocks=list(self._held.blocks))

    def _promote(self, _message: dict[str, Any], descriptors: list[int]) -> None:
        if self._held is None:
            raise ValueError("it has loaded no blocks")
        if self._promotion is None:
            self._promotion = Promotion(self._held, descriptors)
        else:
            self._promotion.take(descriptors)
            if self._promotion.complete:
                self._complete(self._promotion)

    def _load_more(self, promotion: Promotion) -> None:
        try:
            if promotion.step():
                self._complete(promotion)
        except REFUSALS as error:
            self._say("failed", shadow=self._shadow, reason=f"{type(error).__name__}: {error}")
            promotion.close()
            self._promotion = None

    def _complete(self, promotion: Promotion) -> None:
        assert self._held is not None
        self._say("complete", shadow=self._shadow, resident_bytes=self._held.resident_bytes, load_ms=promotion.loading_ms)

    def _serve_as_body(self, _message: dict[str, Any], _descriptors: list[int]) -> None:
        if self._promotion is None or not self._promotion.complete:
            raise ValueError("it does not hold the whole model")
        self._is_promoted = True
        self._status = 0

    def _stop(self, _message: dict[str, Any], _descriptors: list[int]) -> None:
        self._status = 0

    def _unpair(self, reason: str) -> None:
        self._close_link()
        self._say("unpaired", shadow=self._shadow, reason=reason)

    def _close_link(self) -> None:
        if self._link is not None:
            self._poll.unregister(self._link.fileno())
            self._link.close()
            self._link = None

    def _say(self, answer: str, **details: Any) -> None:
        if self._orders is not None:
            self._orders.say(answer, **details)


def _data_path(message: dict[str, Any], descriptors: list[int]) -> DataPath:
    """The data path of a "join" order: buffers for a Body on this node, a connection for a Body on another.

    Raises:
        ValueError, OSError: the order has no data path, or the Body has disconnected.

    """
    if "to_bytes" not in message:
        return Link(descriptors, body=False)
    sizes = int(message["to_bytes"]), int(message["from_bytes"])
    (connection,) = descriptors
    descriptors.clear()
    link = StreamLink(socket.socket(fileno=connection), sizes)
    try:
        link.accept_upgrade()
    except OSError:
        link.close()
        raise
    return link


def _load_waits(connection: socket.socket) -> bool:
    """True if more bytes wait on the socket than "hello" orders take, so that a load must be among them."""
    return int.from_bytes(fcntl.ioctl(connection, termios.FIONREAD, bytes(4)), sys.byteorder) > GREETINGS_BYTES


def _load_arrives_at_once(connection: socket.socket) -> bool:
    """True if a load arrives within `AT_ONCE_S`."""
    until_s = time.monotonic() + AT_ONCE_S
    with select.epoll() as arrivals:
        # Edge-triggered: the "hello" that comes first stays in the socket, and a level-triggered poll would spin on it.
        arrivals.register(connection, select.EPOLLIN | select.EPOLLET)
        while not (waits := _load_waits(connection)) and (left_s := until_s - time.monotonic()) > 0:
            arrivals.poll(left_s)
    return waits


def serve(connection: socket.socket, apply_order: Callable[[Order], None], rehearsal: Generator[None, None, None]) -> int:
    """Run this process as a pool container, then as a Shadow and possibly a Body. Returns the exit status."""
    keep_freed_memory()
    torch.set_num_threads(1)
    if not _load_arrives_at_once(connection):
        for _ in rehearsal:
            if _load_waits(connection):
                break
    rehearsal.close()
    coordination = Coordination(connection)
    shadow = ShadowSide(coordination, apply_order)
    status = shadow.serve()
    return status if shadow.completed_promotion is None else shadow.completed_promotion.serve(coordination)


PIECE_BYTES = 2 << 20
PROMOTION_FDS = 2
"""File descriptors of a promotion: the order of the new Body, and that Body's end of its batch channel."""


class Promotion:
    """The promotion of one Shadow. Duplicates the descriptors."""

    def __init__(self, model: HeldModel, descriptors: list[int]) -> None:
        self._held = model
        self._pieces: Iterator[int] | None = model.load_remaining(PIECE_BYTES)
        self._loading_s = 0.0
        self._order: Order | None = None
        self._channel = -1
        self.take(descriptors)

    def take(self, descriptors: list[int]) -> None:
        """Take the descriptors of the promotion, or newer ones from a later coordinator.

        Raises:
            ValueError: these are not the descriptors of a promotion.

        """
        if len(descriptors) != PROMOTION_FDS:
            raise ValueError(f"{len(descriptors)} descriptors; an order and a channel are two")
        order = Order.from_json(packets.read_file(descriptors[0]))
        self.close()
        self._order, self._channel = order, os.dup(descriptors[1])

    @property
    def complete(self) -> bool:
        """True if the whole model is resident."""
        return self._pieces is None

    @property
    def loading_ms(self) -> float:
        """Milliseconds spent on loading so far, micro-batches in between not counted."""
        return round(1e3 * self._loading_s, 3)

    def step(self) -> bool:
        """Load one piece. Returns whether it was the last.

        Raises:
            GnomonError: 422 `invalid_program`: the weight file does not fit the program.
            OSError: it cannot be read.

        """
        if self._pieces is None:
            return False
        started_s = time.monotonic()
        ended = next(self._pieces, None) is None
        self._loading_s += time.monotonic() - started_s
        if ended:
            self._pieces = None
        return ended

    def serve(self, coordination: Coordination) -> int:
        """Serve as that Body until its batch channel ends. Returns the exit status."""
        assert self._order is not None
        instance.pin(self._order.cpus)
        connection, self._channel = socket.socket(fileno=self._channel), -1
        application = ModelApplication(self._order.launch, self._held.whole(self._loading_s))
        return instance.run(application, connection, application.listen(coordination))

    def close(self) -> None:
        """Close the channel. May be called again."""
        if self._channel >= 0:
            os.close(self._channel)
            self._channel = -1
