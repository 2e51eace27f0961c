"""How one of uvicorn's cycles closes its connection: so that the client still gets the answer.

A cycle that is not to keep its connection closes the transport with the last of the answer. Where part of the request has not
been read by then, the kernel resets the connection instead of ending it, and the reset may overtake the answer on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class PoliteTransport:
    """What a cycle writes its answer to. `close` is what it calls to end the connection."""

    __slots__ = ("_transport", "close", "write")

    def __init__(self, transport: Any, close: Callable[[], None]) -> None:
        self._transport = transport
        self.write = transport.write
        self.close = close

    def is_closing(self) -> bool:
        closing: bool = self._transport.is_closing()
        return closing


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
