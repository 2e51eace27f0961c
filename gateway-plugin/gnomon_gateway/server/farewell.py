"""How connections end so that no client is left without the answer, and nobody works for one that has gone.

A cycle of uvicorn's that is not to keep its connection closes the transport with the last of the answer. Where part of the
request has not been read by then, the kernel resets the connection instead of ending it, and the reset may overtake the answer.

When the server ends, the same happens to whoever has connected, perhaps sent a request too, and was not heard: in the kernel's
queue before the listener, or on a connection of ours. He could not know whether it was executed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gnomon_gateway.server.exchange import Exchange
from gnomon_gateway.server.shared import Phase

if TYPE_CHECKING:
    from gnomon_gateway.server.protocol import GatewayProtocol


class PoliteTransport:
    """What a cycle writes its answer to. `close` is what it calls to end the connection.

    Once our side of the connection is closed, nothing is written: an application that asks for the rest of a body whose client
    waits for `100 Continue` would write that behind the answer.
    """

    __slots__ = ("_connection", "close")

    def __init__(self, connection: GatewayProtocol, close: Callable[[], None]) -> None:
        self._connection = connection
        self.close = close

    def write(self, data: bytes) -> None:
        if not self.is_closing():
            self._connection.transport.write(data)

    def is_closing(self) -> bool:
        return self._connection.phase == Phase.CLOSING or self._connection.transport.is_closing()


def announcing(app: Any, cycle: Any, closes: Callable[[], bool]) -> Any:
    """An application whose answer says that the connection ends, where it does: the client is to send its next request elsewhere.

    `closes` is asked when the answer begins, `cycle` is uvicorn's of the request.
    """

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        async def tell(message: Any) -> None:
            if message["type"] == "http.response.start" and closes():
                cycle.keep_alive = False
            await send(message)

        await app(scope, receive, tell)

    return answer


def expects(connection: GatewayProtocol) -> bool:
    """Whether a request has been sent on a connection and not been read, or may be about to be sent: on one that is new."""
    shared = connection.shared
    is_new = connection.phase == Phase.HEAD and shared.now_s - connection.since_s < shared.limits.last_s
    return is_new or connection.has_sent()


def leave(cycle: Any) -> None:
    """Tell whoever works on a request, an exchange or one of uvicorn's cycles, that its client has gone."""
    if type(cycle) is Exchange:
        cycle.lost()
    else:
        cycle.disconnected = True
        cycle.message_event.set()
