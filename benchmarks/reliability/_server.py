"""Gnomon's HTTP server alone, which answers each request at once: for comparison with other servers. Run with its port."""

import asyncio
import sys
from typing import Any

import uvloop

from gnomon_gateway.http.exchange import Exchange
from gnomon_gateway.http.server import GatewayServer

ANSWER = b'{"y": [7]}'
LINES = b"content-type: application/json\r\n"


class Owner:
    """Answers a request when its body is there."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def received(self, _body: bytes | memoryview) -> None:
        self._exchange.respond(200, LINES, ANSWER)

    def left(self) -> None:
        """Do nothing: a request that was sent cannot be withdrawn."""


class Routes:
    prefixes = (b"/",)

    def begin(self, exchange: Exchange) -> None:
        exchange.accept(Owner(exchange), 1 << 20)

    async def __call__(self, scope: Any, _receive: Any, _send: Any) -> None:
        raise RuntimeError(scope)


async def serve(port: int) -> None:
    await GatewayServer(Routes(), port=port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
