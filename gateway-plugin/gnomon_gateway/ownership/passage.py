"""One request on its way to the replica that has its function.

    body is here ▶ where is the function? ─┬─ here: the same way as any request of ours
                                           ├─ nobody's yet: wait for the next map, or for whoever lets go
                                           └─ another's ▶ send ─┬─ an answer, passed on as it comes
                                                                ├─ 421, "not mine": nothing was executed ▶ look again
                                                                ├─ no connection: nothing was received ▶ look again
                                                                └─ lost in between: it may have been executed ▶ 502

It is the rule of the request path for instances, one level up: what may have been executed is not executed again, except
once where that does no harm (a model's inference). The body is kept until the answer has begun, to be sent again if need be.
The deadline goes along, lessened by what has passed. A replica that was sent a request by another never sends it on: two that
disagree about the owner do not play ball with it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from gnomon_core.errors import INTERNAL_HEADER, GnomonError
from gnomon_core.ownership import Replica
from gnomon_gateway.call_id import new_call_id
from gnomon_gateway.dispatch.refusals import deadline_exceeded, queue_moved
from gnomon_gateway.headers import HOP_BY_HOP, named_by_connection
from gnomon_gateway.invoke import DEADLINE_HEADER
from gnomon_gateway.ownership.holdings import Place
from gnomon_gateway.ownership.peers import PeerConnection
from gnomon_gateway.ownership.refusals import no_owner, refuse, replica_lost
from gnomon_gateway.ownership.secret import HEADER
from gnomon_gateway.server.exchange import Exchange
from gnomon_gateway.serving.function_runtime import FunctionRuntime

if TYPE_CHECKING:
    from gnomon_gateway.ownership.forwarder import Forwarder

EPOCH_HEADER, CLIENT_HEADER = HEADER + b"-epoch", HEADER + b"-client"
GRACE_S = 0.5
"""So much later than the owner, which answers at the deadline itself, we do."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.5
_MOVED = 421
_MOST_CALL_ID = 128
_REPLACED = frozenset({b"content-length", b"expect", b"x-call-id", b"x-start-time", DEADLINE_HEADER}) | HOP_BY_HOP
_OURS = INTERNAL_HEADER.lower().encode() + b":"


class Passage:
    """The request: owner of the exchange, and receiver of the other replica's answer."""

    __slots__ = (
        "_asked_epoch",
        "_body",
        "_call_id",
        "_connection",
        "_counted_bytes",
        "_deadline_s",
        "_ended",
        "_exchange",
        "_forwarder",
        "_opening",
        "_pause_s",
        "_pausing",
        "_replayed",
        "_runtime",
        "_streams",
        "_timer",
        "target",
    )

    def __init__(
        self, forwarder: Forwarder, exchange: Exchange, runtime: FunctionRuntime, deadline_s: float, asked_epoch: int | None
    ) -> None:
        self._forwarder, self._exchange, self._runtime = forwarder, exchange, runtime
        self._deadline_s, self._asked_epoch = deadline_s, asked_epoch
        self._body: bytes | memoryview = b""
        self._counted_bytes = 0
        self._call_id = b""
        self._connection: PeerConnection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._pausing: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pause_s = FIRST_PAUSE_S
        self._replayed = self._streams = self._ended = False
        self.target = ""
        """The id of the replica that it was sent to."""

    # Owner of the exchange

    def received(self, body: bytes | memoryview) -> None:
        self._body = body
        self._forwarder.requests += 1
        self._counted_bytes = len(body)
        self._forwarder.bytes += len(body)
        left_s = self._deadline_s - time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, left_s), self._late)
        self.go()

    def left(self) -> None:
        """The client has gone, and the owner learns it by the end of the connection."""
        if self._connection is not None:
            self._connection.drop()
        self._end()

    # Where to

    def go(self) -> None:
        """Look where the function is now, and go there."""
        if self._ended or self._connection is not None or self._opening is not None:
            return
        self._stop_waiting()
        place = self._forwarder.place(self._runtime.name)
        if place is Place.HERE:
            self._go_here()
        elif place is Place.WAITS or not isinstance(place, Replica):
            self._forwarder.park(self)
        elif self._asked_epoch is None:
            self._send_to(place)
        elif self._asked_epoch > self._forwarder.epoch:
            self._forwarder.park(self)  # who sent it knows a newer map, by which it may be ours
            self._forwarder.look()
        else:
            self._refuse(queue_moved())

    def owner_gone(self) -> None:
        """The replica that it was sent to is not in the map any more."""
        if self._connection is not None:
            self._connection.drop()
            self.lost()

    def _go_here(self) -> None:
        exchange, body, asked = self._exchange, self._body, self._asked_epoch
        left_ms = (self._deadline_s - time.monotonic()) * 1e3
        if left_ms <= 0:
            self._late()
            return
        kept = [header for header in exchange.headers if header[0] not in (DEADLINE_HEADER, b"x-call-id")]
        exchange.headers = [*kept, (DEADLINE_HEADER, b"%.3f" % left_ms), (b"x-call-id", self._named())]
        self._end()
        if asked is None:
            exchange.moved = self._forwarder.moving(time.monotonic())
        exchange.again(self._forwarder.app, body)

    def _send_to(self, replica: Replica) -> None:
        self.target = replica.id
        connection = self._forwarder.peers.idle(replica.address)
        if connection is not None:
            self._send(connection)
        else:
            self._opening = asyncio.get_running_loop().create_task(self._open(replica))

    async def _open(self, replica: Replica) -> None:
        try:
            connection = await self._forwarder.peers.open(replica.address)
        except (OSError, TimeoutError):
            self._opening = None
            self._forwarder.counters.unreached += 1
            self._look_again()
            return
        self._opening = None
        if self._ended:
            self._forwarder.peers.keep(connection)
        else:
            self._send(connection)

    def _send(self, connection: PeerConnection) -> None:
        left_ms = (self._deadline_s - time.monotonic()) * 1e3
        if left_ms <= 0:
            self._forwarder.peers.keep(connection)
            self._late()
            return
        self._connection = connection
        self._forwarder.counters.forwarded += 1
        self._forwarder.sent(self)
        connection.send(self._head(left_ms), self._body, self, bodiless=self._exchange.method == b"HEAD")

    def _head(self, left_ms: float) -> bytes:
        exchange, forwarder = self._exchange, self._forwarder
        target = exchange.path + b"?" + exchange.query if exchange.query else exchange.path
        dropped: frozenset[bytes] = _REPLACED
        for name, value in exchange.headers:
            if name == b"connection":
                dropped |= named_by_connection(value)
        lines = [b"%b %b HTTP/1.1\r\n" % (exchange.method, target), forwarder.peers.secret.line]
        lines += [
            name + b": " + value + b"\r\n"
            for name, value in exchange.headers
            if name not in dropped and not name.startswith(HEADER)
        ]
        if not any(name == b"host" for name, _ in exchange.headers):
            lines.append(b"host: \r\n")  # HTTP/1.0 can do without, what we speak cannot
        lines.append(
            b"%b: %d\r\n%b: %b\r\n%b: %.3f\r\nx-call-id: %b\r\ncontent-length: %d\r\n\r\n"
            % (
                *(EPOCH_HEADER, forwarder.epoch, CLIENT_HEADER, exchange.client),
                *(DEADLINE_HEADER, left_ms, self._named(), len(self._body)),
            )
        )
        return b"".join(lines)

    def _named(self) -> bytes:
        """The call's id: the client's, or one that stays the same wherever the request goes."""
        if not self._call_id:
            given = next((value for name, value in self._exchange.headers if name == b"x-call-id"), b"")
            self._call_id = given[:_MOST_CALL_ID] or new_call_id()
        return self._call_id

    # Receiver of the answer

    def whole(self, status: int, lines: bytes, body: bytes) -> None:
        self._come_back()
        if status == _MOVED and _OURS in lines.lower():
            self._forwarder.counters.moved += 1
            self._look_again()
            return
        self._end()
        self._exchange.respond(status, lines, body)

    def start(self, status: int, lines: bytes) -> None:
        self._streams = True
        self._body = b""
        if self._timer is not None:
            self._timer.cancel()  # the deadline was for the first part
        self._exchange.start(status, lines)

    def part(self, data: bytes) -> None:
        self._exchange.write(data)

    def end(self) -> None:
        self._come_back()
        self._end()
        self._exchange.end()

    def lost(self) -> None:
        """It may have been executed."""
        self._come_back()
        if self._streams:
            self._end()
            self._exchange.abort()
            return
        self._forwarder.counters.lost += 1
        if self._runtime.signature is not None and not self._replayed:
            self._replayed = True
            self._look_again()
        else:
            self._refuse(replica_lost())

    # Ends

    def _look_again(self) -> None:
        """Soon, or when the map changes: whoever is there now may have it."""
        if self._ended:
            return
        self._forwarder.look()
        self._forwarder.park(self)
        self._pausing = asyncio.get_running_loop().call_later(self._pause_s, self.go)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _late(self) -> None:
        """The deadline has come."""
        if self._connection is not None and time.monotonic() < self._deadline_s + GRACE_S:
            self._timer = asyncio.get_running_loop().call_later(GRACE_S, self._late)
            return
        if self._connection is not None:
            self._connection.drop()
            self._come_back()
            self._refuse(deadline_exceeded(self._runtime.settings.deadline_s))
        else:
            self._refuse(no_owner())

    def _refuse(self, error: GnomonError) -> None:
        self._end()
        refuse(self._exchange, error, b"x-call-id: %b\r\n" % self._named())

    def _come_back(self) -> None:
        self._connection = None
        self._forwarder.returned(self)

    def _stop_waiting(self) -> None:
        self._forwarder.unpark(self)
        if self._pausing is not None:
            self._pausing.cancel()
            self._pausing = None

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._stop_waiting()
        self._forwarder.returned(self)
        if self._timer is not None:
            self._timer.cancel()
            self._forwarder.requests -= 1
            self._forwarder.bytes -= self._counted_bytes
        self._connection = None
        self._body = b""
