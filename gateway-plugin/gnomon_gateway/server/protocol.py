"""The HTTP/1.1 protocol of a connection: uvicorn's, with a quick way for hot routes and deadlines for slow clients.

uvicorn parses with httptools and runs ASGI. Here, requests of hot routes become an `Exchange` instead; everything else goes
uvicorn's way. uvicorn sets a timer per request and has no deadline for receiving one; here a connection notes what it waits for
and since when, and the server's sweep (sweep.py) looks at all of them twice a second.

Two requests matter at any moment: `_receiving`, whose body has not come to its end, and `_active`, whose turn it is to be
answered. Usually they are one. They are not when a client pipelines, or was answered before it had sent everything.
"""

from __future__ import annotations

from time import monotonic
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import get_local_addr

from gnomon_core.errors import GnomonError
from gnomon_gateway.server.acceptor import Peer
from gnomon_gateway.server.exchange import SMALL_BYTES, Exchange
from gnomon_gateway.server.farewell import PoliteTransport, announcing, expects, leave
from gnomon_gateway.server.heads import (
    CHECKED,
    Head,
    body_bytes,
    in_origin_form,
    is_request_line,
    malformed,
    too_large,
    without_offer,
)
from gnomon_gateway.server.intake import REQUEST_EVENTS, Intake, new_parser
from gnomon_gateway.server.refusals import STATUS_LINES, error_lines
from gnomon_gateway.server.shared import Phase, Shared

_IDLE, _HEAD, _BODY, _ANSWER, _CLOSING = Phase


class GatewayProtocol(Intake):
    """One connection."""

    cycle: Any
    """The newest request: uvicorn's own, an `Exchange`, or None."""

    def __init__(
        self,
        common: HttpToolsProtocol,
        shared: Shared,
        peer: Peer,
    ) -> None:
        super().__init__(common, peer)
        self.shared = shared
        self.phase = _HEAD
        self.arrived_s = peer.arrived_s
        self.since_s = min(shared.now_s, peer.arrived_s or shared.now_s)
        self.received_bytes = self.unsent_bytes = 0
        self.client_address = peer.host.encode()
        self._active: Any = None
        self._receiving: Any = None
        self._head = Head()
        self._head_bytes = 0
        self._silent_bytes = 0
        self._portion = b""
        self._earlier = bytearray()
        self._in_head = self._behind_another = False
        self._most_head_bytes, self._most_head_lines = shared.limits.head_bytes, shared.limits.head_lines
        self._deaf = False
        self._turning = False

    @property
    def date_line(self) -> bytes:
        return self.shared.date_line(self.server_state)

    # The connection

    def connection_lost(self, exc: Exception | None) -> None:
        newest, active, self._active = self.cycle, self._active, None
        waiting = [cycle for cycle, _ in self.pipeline]
        self.pipeline.clear()
        self.shared.unsent.release(self)
        super().connection_lost(exc)
        for cycle in (newest, active, *waiting):
            if cycle is not None:
                leave(cycle)
        self.cycle = self._receiving = None

    def feed(self, data: bytes) -> None:
        if self._deaf:
            return
        if self.phase == _IDLE:
            self.phase, self.since_s = _HEAD, self.shared.now_s
        self._portion = data
        # The parser joins the pieces of a header in its own memory and says nothing before its end, nor of a chunk's extensions.
        self._silent_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if not self._deaf:
                self._decline(data[offer.args[0] :])
        except httptools.HttpParserError:
            self.refuse(malformed())
        if self._silent_bytes > self._most_head_bytes:
            self.refuse(too_large(self.shared.limits))
        self._portion = b""
        if self._in_head and not self._deaf:
            self._earlier += data
            return
        self._behind_another = False
        if self._earlier:
            self._earlier = bytearray()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.shared.unsent.hold(self)

    def resume_writing(self) -> None:
        self.shared.unsent.release(self)
        super().resume_writing()

    @property
    def is_answering(self) -> bool:
        return self._active is not None

    def answer_and_close(self) -> None:
        """Close behind the answer that is under way; go on where there is none."""
        if self._active is not None:
            self._active.keep_alive = False

    def shutdown(self) -> None:
        """Answer what is under way, and what the client has sent or is about to send; then close."""
        self.answer_and_close()
        if self._active is None and not expects(self):
            self.transport.close()

    def refuse(self, error: GnomonError) -> None:
        """Answer what is being received with an error, unless it has been answered, and hear nothing more on this connection."""
        if self._deaf or self.transport.is_closing():
            return
        active, receiving = self._active, self._receiving
        if active is None:
            self._end(error if receiving is None else None)
        elif active is not receiving:
            # An earlier request is being answered. What was received behind it does not come to its turn.
            self._deaf = True
            if receiving is not None and self.pipeline:
                leave(self.pipeline.popleft()[0])
        elif type(active) is Exchange and not active.streaming:
            active.fail(error, close=True)
        else:
            has_begun = type(active) is Exchange or active.response_started
            self._active = None
            leave(active)
            self._end(None if has_begun else error)

    def _end(self, error: GnomonError | None) -> None:
        """The connection's last words."""
        if error is not None:
            body = error.body()
            length = b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(b"".join((STATUS_LINES[error.status], self.date_line, error_lines(error), length, body)))
        self.close_after_answer(unread=True)

    def close_after_answer(self, *, unread: bool) -> None:
        """Close once the answer is out.

        Where the client is still sending, or has sent further requests, closing at once would reset the connection and could
        destroy the answer on its way: our side is closed for writing, nothing more is read, and the sweep ends it a second later.
        """
        self._deaf = True
        self.phase, self.since_s = _CLOSING, self.shared.now_s
        unread = unread or bool(self.pipeline) or self.has_sent()
        self.drop_waiting()
        if unread and self.transport.can_write_eof():
            self.flow.pause_reading()
            self.transport.write_eof()
        else:
            self.transport.close()

    def _close_after_cycle(self) -> None:
        self.close_after_answer(unread=self.unread_bytes() > 0)

    # The parser's callbacks

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._receiving = None
        self._head = Head()
        self._head_bytes = 0
        self._in_head = True
        self.received_bytes = 0

    def on_url(self, url: bytes) -> None:
        self.url += url
        self._head_bytes += len(url)
        if self._head_bytes > self._most_head_bytes:
            self.refuse(too_large(self.shared.limits))

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if self._receiving is None:  # a trailer is no header: whoever looked at the head has not seen it
            if name in CHECKED:
                self._head.note(name, value)
            self.headers.append((name, value))
        self._silent_bytes = 0
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._most_head_bytes or len(self.headers) > self._most_head_lines:
            self.refuse(too_large(self.shared.limits))

    def on_headers_complete(self) -> None:
        self._silent_bytes, self._in_head = 0, False
        if self._deaf:
            return
        parser = self.parser
        method, version = parser.get_method(), parser.get_http_version()
        if (fault := self._head.fault(method, version)) is not None:
            self.refuse(fault)
            return
        received = bytes(self._earlier) + self._portion if self._earlier else self._portion
        if not is_request_line(received, method, self.url, version, anywhere=self._behind_another):
            self.refuse(malformed())
            return
        if parser.should_upgrade():
            return  # the parser goes no further; `_decline` does
        self.events += REQUEST_EVENTS
        self.phase, self.since_s = _BODY, self.shared.now_s
        # The wait before the connection was accepted is its first request's, whatever route that has.
        arrived_s, self.arrived_s = self.arrived_s or monotonic(), 0.0
        url = self.url = in_origin_form(self.url, self.headers)
        if not url.startswith(self.shared.prefixes):
            self._begin_asgi()
            return
        path, _, query = url.partition(b"?")
        exchange = Exchange(
            self,
            method,
            path,
            query,
            self.headers,
            http_version=version,
            keep_alive=version != "1.0" and parser.should_keep_alive() and not self.shared.closing,
            expects_continue=self._head.expects_continue(version),
            arrived_s=arrived_s,
        )
        previous = self.cycle
        self.cycle = self._receiving = exchange
        if previous is None or previous.response_complete:
            self._turn(exchange)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cast("Any", exchange), self.app))

    def on_body(self, body: bytes) -> None:
        if self._deaf:
            return
        self.events += 1
        self._silent_bytes = 0
        self.received_bytes += len(body)
        cycle = self.cycle
        if type(cycle) is Exchange:
            cycle.on_body(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._silent_bytes, self._behind_another = 0, True
        if self._deaf or self._receiving is None:
            return
        cycle, self._receiving = self.cycle, None
        self.phase = _IDLE if cycle.response_complete else _ANSWER
        if type(cycle) is Exchange:
            cycle.on_complete()
        else:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer is whole: it is the next request's turn."""
        answered, self._active = self._active, None
        if self._turning or self.phase == _CLOSING or self.transport.is_closing():
            return
        if self._leaves_unread(answered) or (self._deaf and not self.pipeline):
            self.close_after_answer(unread=True)
            return
        if not self.pipeline:
            self.flow.resume_reading()
            if self.phase == _ANSWER:
                self.phase, self.since_s = _IDLE, self.shared.now_s
            return
        self._turning = True
        try:
            # A loop and not a recursion: a client may pipeline a thousand requests that are all answered at once.
            while self.pipeline and self.phase != _CLOSING and not self.transport.is_closing():
                cycle, app = self.pipeline.pop()
                self._start_asgi_task(cycle, app)
                if not cycle.response_complete:
                    if not self.pipeline:
                        self.flow.resume_reading()
                    return
        finally:
            self._turning = False
        self.on_response_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if type(cycle) is Exchange:
            self._turn(cycle)
        else:
            self._active = cycle
            super()._start_asgi_task(cycle, announcing(app, cycle, lambda: self._leaves_unread(cycle) or self.shared.closing))

    # Ours

    def unread_bytes(self) -> float:
        return 0 if self._receiving is None else body_bytes(self.headers) - self.received_bytes

    def _leaves_unread(self, answered: Any) -> bool:
        return answered is self._receiving and self.unread_bytes() > SMALL_BYTES

    def _turn(self, exchange: Exchange) -> None:
        self._active = exchange
        exchange.begin(self.shared.routes)

    def _begin_asgi(self) -> None:
        """Go uvicorn's way: it makes the scope when a message begins, here it is made when the message turns out to need one."""
        url, headers = self.url, self.headers
        self.server = get_local_addr(self.transport)
        super().on_message_begin()
        self.url, self.expect_100_continue = url, self._head.expects_continue(self.parser.get_http_version())
        self.headers.extend(headers)
        super().on_headers_complete()
        self._receiving = self.cycle
        self.cycle.transport = PoliteTransport(self, self._close_after_cycle)

    def _decline(self, rest: bytes) -> None:
        """Go on in HTTP/1.1 where a client offers another protocol, as Java's does with every request.

        The parser stops at such an offer and would lose the body: another one takes the request, without the offer.
        """
        head = without_offer(self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers)
        self.parser = new_parser(self)
        self.feed(head + rest)
