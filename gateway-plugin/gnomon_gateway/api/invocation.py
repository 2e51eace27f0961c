r"""The gateway's application: the routes that bypass ASGI, `/function/…` and `/v2…`, and everything else as ASGI.

    /function/{name}[.namespace][/path]   one HTTP request to a function, and its answer back, here
    /v2…                                  v2/
    everything else                       the control application (`application`)

The request is sent unchanged (method, path below the name, query, headers, body) as a member of a batch; the answer's status,
headers and body return the same way. Redirects are passed on, not followed. The gateway adds these headers to the request:
`X-Call-Id` (kept if the client sent one), `X-Start-Time` (nanoseconds since 1970), `X-Forwarded-For` and `-Host` (the client's
are trusted only if a gateway in front is known to set them). To the answer it adds the first two and `X-Duration-Seconds`.
`X-Gnomon-Deadline-Ms` sets a shorter deadline than the function's.

A request to an application goes to the member that its `X-Gnomon-…` headers, or the parameters of its tensors, choose.
A model's function takes encoded images; tensors (JSON or binary) are parsed by the open inference protocol.
An answer streams if the client accepts `text/event-stream` or `application/x-ndjson`; such a request is a batch of its own.

While the gateway drains, admitted requests are answered and new requests to functions are refused with a retry hint; all other
paths are served, so that health checks report the draining.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from gnomon_core.errors import GnomonError, stopping
from gnomon_core.wire import Frame, Kind, Member
from gnomon_gateway.api.access import ANY
from gnomon_gateway.applications.application import Application, refusal_lines
from gnomon_gateway.applications.queries import read_constraints
from gnomon_gateway.dispatch.dispatcher import QUEUE_MOVED
from gnomon_gateway.functions.function_runtime import FunctionDirectory, FunctionRuntime
from gnomon_gateway.http.exchange import Exchange, too_large
from gnomon_gateway.http.headers import (
    DEADLINE_HEADER,
    HOP_BY_HOP,
    UnfitHeadersError,
    call_id_of,
    lines_of,
    member_lines,
    named_by_connection,
    read_deadline_s,
)
from gnomon_gateway.queueing.queue import Request
from gnomon_gateway.v2.routes import PREFIX as V2_PREFIX
from gnomon_gateway.v2.routes import READ_METHODS, READY, InferenceRoutes, refuse

MAX_BODY_BYTES = 64 << 20
"""The default limit of a request's body."""
FUNCTION_PREFIX = b"/function/"
_METHODS = frozenset(method.encode() for method in ANY)
_STREAMS = (b"text/event-stream", b"application/x-ndjson")
_REPLACED = frozenset({b"x-call-id", b"x-start-time", b"x-forwarded-for", b"x-forwarded-host", b"expect", DEADLINE_HEADER})
_NOT_SENT_ON = _REPLACED | HOP_BY_HOP
_LISTS = frozenset({b"accept", b"connection"})
"""Headers that may be repeated; their values form one list."""
_LOOKED_AT = _NOT_SENT_ON | {b"host", b"accept", b"content-length"}

TensorRoute = Callable[[Exchange, FunctionRuntime], bool]
"""The handler of requests with tensors to a model's function; returns False for other requests."""
QueryRoute = Callable[[Exchange, Application], bool]
"""The handler of requests with tensors to an application; returns False for other requests."""

ControlApp = Callable[[Any, Any, Any], Awaitable[None]]


class GatewayApp:
    """The application of a `GatewayServer`: the functions of a directory, and a control application for all other paths.

    While `draining` is set, no function gets a new request. `behind` says that a stock OpenFaaS gateway is in front of this one.
    `ready` returns whether functions can be reached, which `/v2/health/ready` reports.
    """

    prefixes = (FUNCTION_PREFIX, V2_PREFIX)

    def __init__(
        self,
        directory: FunctionDirectory,
        control_app: ControlApp,
        *,
        max_body_bytes: int = MAX_BODY_BYTES,
        behind: bool = False,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.draining = False
        self.max_body_bytes = max_body_bytes
        self._control_app = control_app
        self._inference = InferenceRoutes(directory, max_body_bytes, ready)
        self._functions = FunctionRoutes(
            directory, max_body_bytes, self._inference.take_tensors, self._inference.take_query, behind=behind
        )

    def begin(self, exchange: Exchange) -> None:
        """Begin a request on a hot route, whose headers have been received."""
        if self.draining:
            self._turn_away(exchange)
        elif exchange.path.startswith(FUNCTION_PREFIX):
            self._functions.begin(exchange)
        else:
            self._inference.begin(exchange)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._control_app(scope, receive, send)

    def _turn_away(self, exchange: Exchange) -> None:
        error = stopping()
        if exchange.path.startswith(FUNCTION_PREFIX):
            exchange.fail(error, close=True)
        elif exchange.path == READY or exchange.method not in READ_METHODS:
            refuse(exchange, error)
        else:
            self._inference.begin(exchange)


class FunctionRoutes:
    """The route `/function/` for the functions of a directory. With `behind`, a gateway in front states origins."""

    def __init__(
        self,
        directory: FunctionDirectory,
        max_body_bytes: int,
        tensors: TensorRoute,
        query: QueryRoute = lambda _exchange, _application: False,
        *,
        behind: bool = False,
    ) -> None:
        self._directory = directory
        self._behind = behind
        self._max_body_bytes = max_body_bytes
        self._tensors = tensors
        self._query = query

    def begin(self, exchange: Exchange) -> None:
        """Begin a request below `/function/`, whose headers have been received."""
        if exchange.method not in _METHODS:
            exchange.fail(_wrong_method())
            return
        name, slash, subpath = exchange.path[len(FUNCTION_PREFIX) :].partition(b"/")
        function = name.decode("latin-1")
        runtime = self._directory.lookup(function)
        if runtime is None:
            application = self._directory.application(function)
            if application is None:
                exchange.fail(self._directory.refusal(function))
            elif not self._query(exchange, application):
                self._choose(exchange, application, slash + subpath or b"/")
            return
        if runtime.signature is not None and self._tensors(exchange, runtime):
            return
        self.take(exchange, runtime, slash + subpath or b"/")

    def _choose(self, exchange: Exchange, application: Application, path: bytes) -> None:
        """Take a request to an application whose body is for the model's own pre-processing, such as an image."""
        try:
            chosen = application.choose(read_constraints(dict(exchange.headers)))
        except GnomonError as error:
            application.metrics.started += 1
            application.metrics.refused(error, time.monotonic() - exchange.arrived_s)
            exchange.fail(error, refusal_lines(error))
            return
        self.take(exchange, chosen.member.runtime, path, chosen.lines)

    def take(self, exchange: Exchange, runtime: FunctionRuntime, path: bytes, lines: bytes = b"") -> None:
        """Take a request to this function, which gets this path. `lines` are further header lines of the answer."""
        try:
            invocation = Invocation(exchange, runtime, lines)
            invocation.read_headers(path, behind=self._behind)
        except GnomonError as error:
            exchange.fail(error)
            return
        # Both refusals come before the body: under overload, reading bodies only to refuse them would take the time of admitted
        # requests.
        if invocation.content_length > self._max_body_bytes:
            invocation.refuse_unread(too_large(self._max_body_bytes))
        elif invocation.content_length and not runtime.dispatcher.queue.has_room(invocation.content_length):
            invocation.refuse_queue_full()
        else:
            exchange.accept(invocation, self._max_body_bytes)


class Invocation:
    """A request to a function in flight: owner of the exchange, responder of the request."""

    __slots__ = (
        "_began_ns",
        "_began_s",
        "_budget_s",
        "_call_id",
        "_exchange",
        "_lines",
        "_meta",
        "_request",
        "_runtime",
        "_streams",
        "content_length",
    )

    def __init__(self, exchange: Exchange, runtime: FunctionRuntime, lines: bytes) -> None:
        self._lines = lines
        self._began_s = exchange.arrived_s
        self._began_ns = time.time_ns()
        self._exchange = exchange
        self._runtime = runtime
        self._request: Request | None = None
        self._budget_s = runtime.settings.deadline_s
        self._call_id = b""
        self._streams = False
        self.content_length = 0
        self._meta = b""

    def read_headers(self, path: bytes, *, behind: bool) -> None:
        """Make the meta of the batch's member for this path, and store the headers that are for the gateway.

        Raises:
            GnomonError: 400 `invalid_deadline`.

        """
        exchange = self._exchange
        lines = [exchange.method, path, exchange.query]
        gateway_headers: dict[bytes, bytes] = {}
        for name, value in exchange.headers:
            if name in _LOOKED_AT:
                gateway_headers[name] = (
                    value if name not in _LISTS or name not in gateway_headers else gateway_headers[name] + b"," + value
                )
                if name in _NOT_SENT_ON:
                    continue
            lines.append(name + b": " + value)
        # A `Connection` header names further hop-by-hop headers, which end here (RFC 9110, section 7.6.1).
        if b"connection" in gateway_headers:
            dropped = named_by_connection(gateway_headers[b"connection"])
            lines[3:] = [line for line in lines[3:] if line.partition(b":")[0] not in dropped]
        if b"content-length" in gateway_headers:
            self.content_length = int(gateway_headers[b"content-length"])
        if DEADLINE_HEADER in gateway_headers:
            self._budget_s = min(self._budget_s, read_deadline_s(gateway_headers[DEADLINE_HEADER]))
        accepted = gateway_headers.get(b"accept")
        self._streams = accepted is not None and any(kind in accepted for kind in _STREAMS)
        self._call_id = call_id_of(gateway_headers)
        client, host = exchange.client, gateway_headers.get(b"host", b"")
        if behind:
            # Each proxy on the way may have extended the header of the proxy before it, or have added another header.
            hops = [value for name, value in exchange.headers if name == b"x-forwarded-for"]
            client = b", ".join(hop for hop in (*hops, client) if hop)
            host = gateway_headers.get(b"x-forwarded-host", host)
        lines.append(
            b"x-call-id: %b\nx-start-time: %d\nx-forwarded-for: %b\nx-forwarded-host: %b"
            % (self._call_id, self._began_ns, client, host)
        )
        self._meta = b"\n".join(lines)

    # Owner of the exchange

    def received(self, body: bytes | memoryview) -> None:
        self._request = self._request_with(body)
        self._runtime.submit(self._request)

    def refuse_queue_full(self) -> None:
        """Refuse a request whose body does not fit into the queue, before the body is read."""
        request = self._request_with(b"")
        request.body_bytes += self.content_length
        self._runtime.refuse_queue_full(request)

    def _request_with(self, body: bytes | memoryview) -> Request:
        runtime = self._runtime
        lane = runtime.stream_lane if self._streams else runtime.event_lane
        request = Request(lane, time.monotonic(), self._began_s + self._budget_s, 1, self._meta, body, self, self._exchange)
        request.replay_safe, request.streaming = runtime.replay_safe, self._streams
        return request

    def refuse_unread(self, error: GnomonError) -> None:
        """Respond with an error before the request is submitted."""
        self._runtime.metrics.started += 1
        self._runtime.metrics.answered(error.status, 0.0)
        self.refuse(error)

    def left(self) -> None:
        if self._request is not None:
            self._runtime.left(self._request)

    # Responder of the request

    def answer(self, member: Member, head: bytes) -> None:
        del head
        try:
            lines = member_lines(member)
        except UnfitHeadersError as error:
            self.refuse(_invalid_headers(error))
            return
        self._exchange.respond(member.code, lines + self._own_lines(), member.body)

    def refuse(self, error: GnomonError) -> None:
        if error.code == QUEUE_MOVED and self._exchange.hand_over():
            return
        self._exchange.fail(error, self._own_lines())

    def stream(self, frame: Frame) -> None:
        if frame.kind == Kind.STREAM_DATA:
            for member in frame.members:
                self._exchange.write(member.body)
        elif frame.kind == Kind.STREAM_END:
            if frame.members:  # a member in the last frame reports that the stream broke off
                self._exchange.abort()
            else:
                self._exchange.end()
        else:
            first = frame.members[0]
            try:
                self._exchange.start(first.code, member_lines(first) + self._own_lines())
            except UnfitHeadersError as error:
                self.refuse(_invalid_headers(error))

    def broken(self) -> None:
        self._exchange.abort()

    def _own_lines(self) -> bytes:
        return lines_of(self._call_id, self._began_ns, self._began_s) + self._lines


def _wrong_method() -> GnomonError:
    return GnomonError(405, "method_not_allowed", "Functions do not support this method.", f"Use {', '.join(ANY)}.")


def _invalid_headers(error: UnfitHeadersError) -> GnomonError:
    return GnomonError(
        502, "invalid_headers", f"The function answered with a header that cannot be sent: {error}.", "Fix the handler."
    )
