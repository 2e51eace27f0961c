"""What a connection has received goes to the parser in portions, so that no client keeps the event loop to itself.

One read brings up to 256 KB, and uvloop reads 32 times in a row: room for 200,000 pipelined requests, or a million chunks of one
byte. Parsing and answering them at once kept everybody else waiting for 4 s, as measured. Here a portion of 8 KB is worked off,
at most 200 requests or 2 ms of work; then it is the other connections' turn. A body of a stated length passes at once.

What waits counts as not read: while it does, nothing more is. The same holds while the client does not take its answers, which
would otherwise pile up here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gnomon_gateway.server.acceptor import Peer
from gnomon_gateway.server.hung_up import has_hung_up, has_sent

PORTION_BYTES = 8 << 10
MOST_EVENTS = 512
REQUEST_EVENTS = 8
"""A request is this many times the work of a chunk."""
PORTION_EVENTS = 32
"""A portion of which nothing comes, such as empty lines, is work too. A whole read of them ends uvloop's reading in a row."""


class Flow(FlowControl):
    """uvicorn's flow control, and one more reason not to read. `read_paused` is what the others want."""

    def __init__(self, transport: asyncio.Transport, wanted: Callable[[], None]) -> None:
        super().__init__(transport)
        self._wanted = wanted
        self._held = False

    def pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            if not self._held:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            if self._held:
                self._wanted()
            else:
                self._transport.resume_reading()

    def hold(self) -> None:
        """Read nothing before `release`."""
        if not self._held:
            self._held = True
            if not self.read_paused:
                self._transport.pause_reading()

    def release(self) -> None:
        """Read again, unless somebody else does not want to."""
        if self._held:
            self._held = False
            if not self.read_paused:
                self._transport.resume_reading()


def new_parser(protocol: HttpToolsProtocol) -> httptools.HttpRequestParser:
    """A parser that calls this protocol back. As in uvicorn, more may follow a request that ends the connection."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


class Intake(HttpToolsProtocol):
    """The receiving side of a connection. `events` counts the parser's callbacks, weighted by the work they are.

    `common` is a protocol of uvicorn's that serves no connection: what is the same for all of them, such as the configuration, is
    looked up there. Setting it on each connection took as long as parsing a request, and ten thousand idle ones would hold it.
    """

    flow: Flow
    scheme = "http"
    # What the parser could tell and need not. It asks for each, and `__getattr__` would look for them in vain.
    on_status = on_reset = on_chunk_header = on_chunk_complete = None

    def __init__(self, common: HttpToolsProtocol, peer: Peer) -> None:  # instead of uvicorn's
        self._common = common
        self._descriptor = peer.descriptor
        self.connections, self.server_state, self.loop = common.connections, common.server_state, common.loop
        self.client = peer.host, peer.port
        self.pipeline = deque()
        self.cycle = None  # type: ignore[assignment]
        self.parser = new_parser(self)
        self.events = 0
        self._waiting = b""
        self._taken_bytes = 0
        self._scheduled = False

    def feed(self, data: bytes) -> None:
        """Give the parser this."""
        raise NotImplementedError

    def unread_bytes(self) -> float:
        """How much of the body that is being received may still come."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_common"], name)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.connections.add(self)
        self.transport = transport
        self.flow = Flow(transport, self._go_on)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.connections.discard(self)
        self.flow.resume_writing()
        self.parser = None  # type: ignore[assignment]

    def has_hung_up(self) -> bool:
        """Whether the client has closed the connection, as the kernel knows it."""
        return self.transport.is_closing() or has_hung_up(self._descriptor)

    def has_sent(self) -> bool:
        """Whether the client has sent something that was not read."""
        if self.transport.is_closing():
            return False
        return bool(self._waiting) or has_sent(self._descriptor)

    def data_received(self, data: bytes) -> None:
        if not self._waiting and len(data) <= PORTION_BYTES:
            self.feed(data)
        else:
            self._waiting, self._taken_bytes = self._waiting[self._taken_bytes :] + data, 0
            self._work_off()

    def drop_waiting(self) -> None:
        """Forget what was received and not parsed: nobody will."""
        self._waiting, self._taken_bytes = b"", 0

    def pause_writing(self) -> None:
        super().pause_writing()
        self.flow.hold()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._go_on()

    def _go_on(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._work_off)

    def _work_off(self) -> None:
        self._scheduled = False
        if self.transport.is_closing():
            self.drop_waiting()
            return
        flow, most = self.flow, self.events + MOST_EVENTS
        while self._waiting and self.events < most and not (flow.read_paused or flow.write_paused):
            left = self.unread_bytes()
            size = int(left) if PORTION_BYTES < left < float("inf") else PORTION_BYTES
            # By its place, for the rest would be copied as often as there are portions of it.
            begin = self._taken_bytes
            self._taken_bytes = begin + size
            portion = self._waiting[begin : begin + size]
            if self._taken_bytes >= len(self._waiting):
                self.drop_waiting()
            self.events += PORTION_EVENTS
            self.feed(portion)
        if not self._waiting and not flow.write_paused:
            flow.release()
            return
        flow.hold()
        if not (flow.read_paused or flow.write_paused):
            self._go_on()
