"""Forwarding to other replicas: calls of a function to the owner of its queue, control requests to the leader.

    body received ▶ where is the function? ─┬─ here: GatewayApp
                                            ├─ no owner yet: wait for the next map, or for the old owner to release the function
                                            └─ another replica ▶ send ─┬─ an answer: passed on as it arrives
                                                                       ├─ 421 queue_moved: not executed ▶ retry
                                                                       ├─ no connection: not received ▶ retry
                                                                       └─ connection lost: may have been executed ▶ 502

A request that may have been executed is not executed again, except once if it is idempotent (a model's inference). The body is
kept until the answer begins, for a retry. The remaining deadline is forwarded. A forwarded request is never forwarded again, so
that two replicas which disagree about the owner cannot send it back and forth. Requests under way are bounded by count and bytes.

    PUT /system/functions ─▶ replica: authorised? ─ internal listener, with the client's login ─▶ leader ─▶ control application

Only the leader writes to the cluster and knows all decisions. While no replica leads, control requests wait. A replica answers
the `LOCAL_PATHS` itself: its health, its metrics, the calls that it keeps, and the model repository, which all replicas share.
Authorisation is checked at the replica that the client connects to, because only its kernel knows which process owns the socket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from gnomon_core.errors import INTERNAL_HEADER, GnomonError
from gnomon_core.ownership import Replica
from gnomon_gateway.api.access import Guard
from gnomon_gateway.api.invocation import MAX_BODY_BYTES, ControlApp, GatewayApp
from gnomon_gateway.dispatch.dispatcher import deadline_exceeded, function_removed, queue_moved
from gnomon_gateway.functions.function_runtime import FunctionDirectory, FunctionRuntime
from gnomon_gateway.http.exchange import Exchange
from gnomon_gateway.http.headers import DEADLINE_HEADER, HOP_BY_HOP, named_by_connection, new_call_id, read_deadline_s
from gnomon_gateway.replicas.assignment import Place
from gnomon_gateway.replicas.peers import HEADER, PeerConnection, Peers
from gnomon_gateway.v2 import routes as v2


def refuse(exchange: Exchange, error: GnomonError, lines: bytes) -> None:
    """Respond with an error of the gateway, in the format of the requested route."""
    if exchange.path.startswith(v2.PREFIX):
        v2.refuse(exchange, error)
    else:
        exchange.fail(error, lines)


async def refuse_asgi(send: Any, error: GnomonError, *, close: bool = False) -> None:
    """Respond with an error of the gateway through ASGI; `close` ends the connection after it."""
    headers = [(name.lower().encode(), value.encode()) for name, value in error.headers().items()]
    body = error.body()
    headers += [(b"content-length", b"%d" % len(body)), *([(b"connection", b"close")] if close else [])]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def replica_lost() -> GnomonError:
    """502: the owner's connection was lost; the request may have been executed."""
    return GnomonError(
        502,
        "replica_lost",
        "The replica of the gateway that has this function's queue ended before it answered.",
        "The request may have been executed; send it again only if that does no harm.",
    )


def no_owner() -> GnomonError:
    """503: no replica owns the function; the request was not executed."""
    return GnomonError(
        503,
        "no_owner",
        "No replica of the gateway took this request within its deadline. It was not executed.",
        "Send it again; if that does not help, see whether the gateway has a leader.",
        retry_after_s=1.0,
    )


def too_many_forwarded(requests: int, most_bytes: int) -> GnomonError:
    """503: too many requests, or too many bytes, are being forwarded."""
    return GnomonError(
        503,
        "too_many_forwarded",
        f"{requests} requests or {most_bytes} bytes wait here for other replicas of the gateway.",
        "Send it again later.",
        retry_after_s=1.0,
    )


def no_leader() -> GnomonError:
    """503: no replica leads; the control request was not executed."""
    return GnomonError(
        503,
        "no_leader",
        "No replica of the gateway leads. Functions are served; nothing can be deployed or changed now.",
        "Try again; if that does not help, see whether the API server is reached.",
        retry_after_s=1.0,
    )


def leader_lost() -> GnomonError:
    """502: the leader's connection was lost; the control request may have been executed."""
    return GnomonError(
        502,
        "leader_lost",
        "The replica of the gateway that leads ended before it answered.",
        "Check whether the change was made, then try again.",
    )


EPOCH_HEADER, CLIENT_HEADER = HEADER + b"-epoch", HEADER + b"-client"
GRACE_S = 0.5
"""The time after the owner's deadline at which the forwarder answers itself: the owner's own answer can still arrive."""
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.01, 0.5
_MOVED = 421
_MOST_CALL_ID = 128
_REPLACED = frozenset({b"content-length", b"expect", b"x-call-id", b"x-start-time", DEADLINE_HEADER}) | HOP_BY_HOP
_PLATFORM_ERROR_LINE = INTERNAL_HEADER.lower().encode() + b":"


class ProxiedRequest:
    """A forwarded or parked request: owner of the exchange, and receiver of the other replica's response."""

    __slots__ = (
        "_backoff_s",
        "_body",
        "_call_id",
        "_connecting",
        "_connection",
        "_counted_bytes",
        "_deadline_s",
        "_ended",
        "_exchange",
        "_forwarder",
        "_replayed",
        "_retry_timer",
        "_runtime",
        "_sender_epoch",
        "_streams",
        "_timer",
        "target",
    )

    def __init__(
        self, forwarder: Forwarder, exchange: Exchange, runtime: FunctionRuntime, deadline_s: float, sender_epoch: int | None
    ) -> None:
        self._forwarder, self._exchange, self._runtime = forwarder, exchange, runtime
        self._deadline_s, self._sender_epoch = deadline_s, sender_epoch
        self._body: bytes | memoryview = b""
        self._counted_bytes = 0
        self._call_id = b""
        self._connection: PeerConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._backoff_s = MIN_BACKOFF_S
        self._replayed = self._streams = self._ended = False
        self.target = ""
        """The id of the replica to which the request was sent."""

    # Owner of the exchange

    def received(self, body: bytes | memoryview) -> None:
        self._body = body
        self._forwarder.requests += 1
        self._counted_bytes = len(body)
        self._forwarder.bytes += len(body)
        left_s = self._deadline_s - time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, left_s), self._deadline_passed)
        self.route()

    def left(self) -> None:
        """The client has disconnected: close the connection to the owner, which cancels the request there."""
        if self._connection is not None:
            self._connection.drop()
        self._end()

    # Routing

    def route(self) -> None:
        """Look up the function's place: serve the request here, forward it, park it or refuse it."""
        if self._ended or self._connection is not None or self._connecting is not None:
            return
        self._stop_waiting()
        if not self._forwarder.knows(self._runtime):
            # The replica that has forwarded the request says whether the function was removed, or only left by this replica.
            self._refuse(function_removed() if self._sender_epoch is None else queue_moved())
            return
        place = self._forwarder.place(self._runtime.name)
        if place is Place.HERE:
            self._serve_here()
        elif place is Place.WAITS or not isinstance(place, Replica):
            self._forwarder.park(self)
        elif self._sender_epoch is None:
            self._send_to(place)
        elif self._sender_epoch > self._forwarder.epoch:
            # Not refused: the newer map is on its way, and the client's replica could only send the request here again.
            self._forwarder.park(self)  # the sender knows a newer map, by which this replica may own the function
            self._forwarder.refresh_map()
        else:
            self._refuse(queue_moved())

    def owner_gone(self) -> None:
        """The replica to which the request was sent is not in the map any more: treat its connection as lost."""
        if self._connection is not None:
            self._connection.drop()
            self.lost()

    def _serve_here(self) -> None:
        exchange, body, sender_epoch = self._exchange, self._body, self._sender_epoch
        left_ms = (self._deadline_s - time.monotonic()) * 1e3
        if left_ms <= 0:
            self._deadline_passed()
            return
        kept = [header for header in exchange.headers if header[0] not in (DEADLINE_HEADER, b"x-call-id")]
        # The remaining deadline replaces the client's: time spent waiting for an owner counts.
        exchange.headers = [*kept, (DEADLINE_HEADER, b"%.3f" % left_ms), (b"x-call-id", self._ensure_call_id())]
        self._end()
        # A request that was forwarded here is not forwarded again: replicas that disagree about the owner would exchange it
        # forever.
        if sender_epoch is None:
            exchange.moved = self._forwarder.moved_since(time.monotonic())
        exchange.restart(self._forwarder.app, body)

    def _send_to(self, replica: Replica) -> None:
        self.target = replica.id
        connection = self._forwarder.peers.idle(replica.address)
        if connection is not None:
            self._send(connection)
        else:
            self._connecting = asyncio.get_running_loop().create_task(self._open(replica))

    async def _open(self, replica: Replica) -> None:
        try:
            connection = await self._forwarder.peers.open(replica.address)
        except (OSError, TimeoutError):
            self._connecting = None
            self._forwarder.counters.unreached += 1
            self._retry_later()
            return
        self._connecting = None
        if self._ended:
            self._forwarder.peers.keep(connection)
        else:
            self._send(connection)

    def _send(self, connection: PeerConnection) -> None:
        left_ms = (self._deadline_s - time.monotonic()) * 1e3
        if left_ms <= 0:
            self._forwarder.peers.keep(connection)
            self._deadline_passed()
            return
        self._connection = connection
        self._forwarder.counters.forwarded += 1
        self._forwarder.sent(self)
        connection.send(self._head(left_ms), self._body, self, bodiless=self._exchange.method == b"HEAD")

    def _head(self, left_ms: float) -> bytes:
        exchange, forwarder = self._exchange, self._forwarder
        target = exchange.path + b"?" + exchange.query if exchange.query else exchange.path
        # Hop-by-hop headers belong to the client's connection (RFC 9110, section 7.6.1), the others are replaced below.
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
            lines.append(b"host: \r\n")  # optional in the client's HTTP/1.0, required in the HTTP/1.1 between replicas
        lines.append(
            b"%b: %d\r\n%b: %b\r\n%b: %.3f\r\nx-call-id: %b\r\ncontent-length: %d\r\n\r\n"
            % (
                *(EPOCH_HEADER, forwarder.epoch, CLIENT_HEADER, exchange.client),
                *(DEADLINE_HEADER, left_ms, self._ensure_call_id(), len(self._body)),
            )
        )
        return b"".join(lines)

    def _ensure_call_id(self) -> bytes:
        """The call's id: the client's, or a new one that stays the same when the request is forwarded again."""
        if not self._call_id:
            given = next((value for name, value in self._exchange.headers if name == b"x-call-id"), b"")
            self._call_id = given[:_MOST_CALL_ID] or new_call_id()
        return self._call_id

    # Receiver of the answer

    def whole(self, status: int, lines: bytes, body: bytes) -> None:
        self._release_connection()
        # A function may answer 421 itself: only the platform's own header marks the queue's move.
        if status == _MOVED and _PLATFORM_ERROR_LINE in lines.lower():
            self._forwarder.counters.moved += 1
            self._retry_later()
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
        self._release_connection()
        self._end()
        self._exchange.end()

    def lost(self) -> None:
        """Handle a lost connection. The owner may have executed the request: only a model's is repeated, once."""
        self._release_connection()
        if self._streams:
            self._end()
            self._exchange.abort()
            return
        self._forwarder.counters.lost += 1
        if self._runtime.signature is not None and not self._replayed:
            self._replayed = True
            self._retry_later()
        else:
            self._refuse(replica_lost())

    # Ends

    def _retry_later(self) -> None:
        """Park the request, and look up the owner again after a pause or when the map changes."""
        # The client disconnected while the connection was opened: the connection is kept for the next request.
        if self._ended:
            return
        self._forwarder.refresh_map()
        self._forwarder.park(self)
        self._retry_timer = asyncio.get_running_loop().call_later(self._backoff_s, self.route)
        # Exponential back-off: while ownership moves, all parked requests refresh the map and look up their owners.
        self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)

    def _deadline_passed(self) -> None:
        """Refuse the request at its deadline. A request that was sent waits `GRACE_S` longer for the owner's own answer."""
        if self._connection is not None and time.monotonic() < self._deadline_s + GRACE_S:
            self._timer = asyncio.get_running_loop().call_later(GRACE_S, self._deadline_passed)
            return
        if self._connection is not None:
            self._connection.drop()
            self._release_connection()
            self._refuse(deadline_exceeded(self._runtime.settings.deadline_s))
        else:
            self._refuse(no_owner())

    def _refuse(self, error: GnomonError) -> None:
        self._end()
        refuse(self._exchange, error, b"x-call-id: %b\r\n" % self._ensure_call_id())

    def _release_connection(self) -> None:
        self._connection = None
        self._forwarder.returned(self)

    def _stop_waiting(self) -> None:
        self._forwarder.unpark(self)
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None

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


MOST_REQUESTS = 8192
MOST_BYTES = 256 << 20

FindPlace = Callable[[str], "Place | Replica"]


@dataclass(slots=True)
class ForwardCounters:
    """Counters since the start; `inside` counts requests that other replicas have forwarded here."""

    forwarded: int = 0
    inside: int = 0
    waited: int = 0
    moved: int = 0
    unreached: int = 0
    lost: int = 0
    refused: int = 0


class Forwarder:
    """The forwarded and parked requests, with this replica's application, the connections and the look-up of owners (`place`)."""

    def __init__(
        self,
        app: GatewayApp,
        directory: FunctionDirectory,
        peers: Peers,
        *,
        place: FindPlace,
        refresh_map: Callable[[], None],
    ) -> None:
        self.app = app
        self.peers = peers
        self.place = place
        self.refresh_map = refresh_map
        """Called when the known map seems outdated."""
        self.counters = ForwardCounters()
        self.epoch = 0
        self._directory = directory
        self._parked: set[ProxiedRequest] = set()
        self._sent: set[ProxiedRequest] = set()
        self.requests = 0
        self.bytes = 0

    def take(self, exchange: Exchange, runtime: FunctionRuntime, *, sender_epoch: int | None = None) -> None:
        """Accept a request whose headers have been received.

        With a `sender_epoch` the request comes from a replica that knows the map of this epoch, and is not forwarded again.
        """
        # Bodies are kept for a retry, so an owner that is slow would fill this replica's memory.
        if self.requests >= MOST_REQUESTS or self.bytes >= MOST_BYTES:
            self.counters.refused += 1
            refuse(exchange, too_many_forwarded(MOST_REQUESTS, MOST_BYTES), b"")
            return
        try:
            budget_s = _budget_s(exchange, runtime)
        except GnomonError as error:
            refuse(exchange, error, b"")
            return
        exchange.accept(
            ProxiedRequest(self, exchange, runtime, time.monotonic() + budget_s, sender_epoch), self.app.max_body_bytes
        )

    def moved(self, began_s: float, exchange: Exchange, body: bytes | memoryview) -> None:
        """Forward a request that this replica's queue has returned, because another replica owns the queue now."""
        runtime = self._runtime(exchange)
        if runtime is None:
            refuse(exchange, function_removed(), b"")
            return
        self.counters.moved += 1
        proxied = ProxiedRequest(self, exchange, runtime, began_s + _budget_s(exchange, runtime), None)
        exchange.accept(proxied, self.app.max_body_bytes)
        proxied.received(body)

    def moved_since(self, began_s: float) -> Callable[[Exchange, bytes | memoryview], None]:
        """The value of `Exchange.moved` for a request that began here at this time."""
        return partial(self.moved, began_s)

    def changed(self) -> None:
        """Look up the owners of all parked requests again: ownership may have changed."""
        for proxied in list(self._parked):
            proxied.route()

    def gone(self, members: frozenset[str]) -> None:
        """Drop the requests that were sent to replicas outside the map, which may have executed them."""
        for proxied in list(self._sent):
            if proxied.target not in members:
                proxied.owner_gone()

    def park(self, proxied: ProxiedRequest) -> None:
        """Park a request until the map of owners or a replica's state changes."""
        if proxied not in self._parked:
            self.counters.waited += 1
            self._parked.add(proxied)

    def unpark(self, proxied: ProxiedRequest) -> None:
        self._parked.discard(proxied)

    def sent(self, proxied: ProxiedRequest) -> None:
        self._sent.add(proxied)

    def returned(self, proxied: ProxiedRequest) -> None:
        self._sent.discard(proxied)

    @property
    def waiting(self) -> int:
        """The number of parked requests."""
        return len(self._parked)

    def knows(self, runtime: FunctionRuntime) -> bool:
        """Return whether there is still a function of this name."""
        return self._directory.lookup(runtime.name) is not None

    def _runtime(self, exchange: Exchange) -> FunctionRuntime | None:
        name = function_named(exchange.path)
        return self._directory.lookup(name) if name is not None else None


def function_named(path: bytes) -> str | None:
    """The function's name in a hot path; None if the path names none."""
    parts = path.split(b"/", 4)
    if len(parts) > 2 and parts[1] == b"function":  # noqa: PLR2004 - /function/name
        return parts[2].decode("latin-1")
    if len(parts) > 3 and parts[1] == b"v2" and parts[2] == b"models":  # noqa: PLR2004 - /v2/models/name
        return parts[3].decode("latin-1")
    return None


def _budget_s(exchange: Exchange, runtime: FunctionRuntime) -> float:
    budget_s = runtime.settings.deadline_s
    for name, value in exchange.headers:
        if name == DEADLINE_HEADER:
            budget_s = min(budget_s, read_deadline_s(value))
    return budget_s


LOCAL_PATHS = ("/healthz", "/metrics", "/async-function/", "/gnomon/models")
LEADER_TIMEOUT_S = 25.0
"""The timeout of a request that waits for a leader: the 15 s of the Lease, and the start of the next leader."""
RETRY_S = 0.1
_DROPPED = HOP_BY_HOP | {b"content-length", b"expect"}
_SAFE = ("GET", "HEAD")


class LeaderForwarder:
    """Passes control requests on to the leader's replica, or to `control`, this replica's application, if `leads()`."""

    def __init__(
        self, control: ControlApp, guard: Guard, peers: Peers, *, leads: Callable[[], bool], leader: Callable[[], Replica | None]
    ) -> None:
        self._control, self._guard, self._peers, self._leads, self._leader = control, guard, peers, leads, leader

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._leads() or scope["type"] != "http" or scope["path"].startswith(LOCAL_PATHS):
            await self._control(scope, receive, send)
            return
        refusal = await self._guard.refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        body = await _read_body(receive)
        if body is None:
            await refuse_asgi(send, GnomonError(413, "body_too_large", f"A request has at most {MAX_BODY_BYTES} bytes."))
            return
        try:
            async with asyncio.timeout(LEADER_TIMEOUT_S) as timeout:
                while not self._leads():
                    connection = await self._reach()
                    if connection is not None:
                        # The timeout bounds the wait for a leader, not the leader's work, which may take long (a build).
                        timeout.reschedule(None)
                        if await self._forward(scope, body, receive, send, connection):
                            return
                        timeout.reschedule(asyncio.get_running_loop().time() + LEADER_TIMEOUT_S)
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            await refuse_asgi(send, no_leader())
            return
        await self._control(scope, _replay(body, receive), send)

    async def _reach(self) -> PeerConnection | None:
        leader = self._leader()
        if leader is None:
            return None
        try:
            return self._peers.idle(leader.address) or await self._peers.open(leader.address)
        except (OSError, TimeoutError):
            return None

    async def _forward(self, scope: Any, body: bytes, receive: Any, send: Any, connection: PeerConnection) -> bool:
        """Forward a request to the leader; False if it must be sent again: a GET or HEAD without a response changed nothing."""
        answer = _Answer(bodiless=scope["method"] == "HEAD")
        connection.send(_head(scope, len(body), self._peers), body, answer, bodiless=scope["method"] == "HEAD")
        # ASGI reports the client's disconnect only to a pending `receive`, so one waits during the whole answer.
        disconnect = asyncio.ensure_future(_disconnected(receive))
        disconnect.add_done_callback(lambda watching: None if watching.cancelled() else answer.lost())
        try:
            while (message := await answer.messages.get()) is not None:
                await send(message)
        finally:
            disconnect.cancel()
            if not answer.ended:
                connection.drop()
        if answer.ended or answer.begun or disconnect.done():
            return True  # the server closes the client's connection if the response is incomplete
        if scope["method"] in _SAFE:
            return False
        await refuse_asgi(send, leader_lost())
        return True


class _Answer:
    """The receiver of the leader's response, as a queue of ASGI messages that ends with None."""

    def __init__(self, *, bodiless: bool) -> None:
        self.messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.begun = self.ended = False
        self._bodiless = bodiless

    def whole(self, status: int, lines: bytes, body: bytes) -> None:
        self._begin(status, [*_headers(lines), (b"content-length", b"%d" % len(body))])
        self._put(b"" if self._bodiless else body, more=False)

    def start(self, status: int, lines: bytes) -> None:
        self._begin(status, _headers(lines))

    def part(self, data: bytes) -> None:
        self._put(data, more=True)

    def end(self) -> None:
        self._put(b"", more=False)

    def lost(self) -> None:
        if not self.ended:
            self.messages.put_nowait(None)

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.begun = True
        self.messages.put_nowait({"type": "http.response.start", "status": status, "headers": headers})

    def _put(self, data: bytes, *, more: bool) -> None:
        self.messages.put_nowait({"type": "http.response.body", "body": data, "more_body": more})
        if not more:
            self.ended = True
            self.messages.put_nowait(None)


def _head(scope: Any, length: int, peers: Peers) -> bytes:
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    client = (scope.get("client") or ("", 0))[0].encode("latin-1", "replace")
    kept = [
        name + b": " + value + b"\r\n" for name, value in scope["headers"] if name not in _DROPPED and not name.startswith(HEADER)
    ]
    first = scope["method"].encode() + b" " + target + b" HTTP/1.1\r\n"
    ours = b"%b: %b\r\ncontent-length: %d\r\n\r\n" % (CLIENT_HEADER, client, length)
    return b"".join([first, peers.secret.line, *kept, ours])


def _headers(lines: bytes) -> list[tuple[bytes, bytes]]:
    named = (line.partition(b":") for line in lines.split(b"\r\n") if line)
    return [(name.lower(), value.strip()) for name, _, value in named]


async def _read_body(receive: Any) -> bytes | None:
    """The whole body of a request; None if it is too long."""
    parts, length = [], 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        length += len(part)
        if length > MAX_BODY_BYTES:
            return None
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Any) -> Any:
    """A `receive` that returns this body first, and then the messages of the original `receive`."""
    whole = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def give() -> Any:
        message = next(whole, None)
        return message if message is not None else await receive()

    return give


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
