"""The HTTP server, embedded: started and stopped by a program that owns its own signals and loop.

uvicorn with httptools (docs/decisions/0002-http-server.md says why). Run the program on uvloop for the measured speed; any
asyncio loop works.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gnomon_core.addresses import host_and_port
from gnomon_core.errors import GnomonError
from gnomon_gateway.http.acceptor import Acceptor
from gnomon_gateway.http.connection import (
    GatewayProtocol,
    Limits,
    ReadBuffer,
    ServerContext,
    TimeoutCheck,
    connection_class,
    open_connection,
)
from gnomon_gateway.http.exchange import HotRoutes

_BACKLOG = 4096
_LOOK_S = 0.02


class ServedApp(HotRoutes, Protocol):
    """The application that the server serves: hot routes by exchange, everything else by ASGI."""

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        """Paths that begin with one of these are hot."""
        ...

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


class _Server(uvicorn.Server):
    """uvicorn's server without signal handlers, and with the gateway's own acceptor."""

    def __init__(self, config: Config, context: ServerContext) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self._context = context
        self._acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        common = HttpToolsProtocol(self.config, self.server_state, self.lifespan.state)
        opened = partial(open_connection, connection_class(common), self._context, ReadBuffer())
        self.servers = []
        self._acceptors = [Acceptor(listener, opened) for listener in sockets or ()]
        for acceptor in self._acceptors:
            acceptor.start()
        self.started = True
        self.listening.set()

    async def on_tick(self, counter: int) -> bool:
        stops = await super().on_tick(counter)
        self._context.set_default_headers(self.server_state.default_headers)
        return stops

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve all clients that have connected; later connections are refused, so that clients try another replica."""
        for acceptor in self._acceptors:
            await acceptor.stop()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class GatewayServer:
    """The HTTP server at `host` and `port`. With port 0 the kernel chooses a free port, which `port` is then set to."""

    def __init__(
        self, app: ServedApp, host: str = "127.0.0.1", port: int = 8080, *, limits: Limits | None = None, grace_s: float = 30.0
    ) -> None:
        self.host = host
        self.port = port
        self._grace_s = grace_s
        self._context = ServerContext(app, app.prefixes, limits or Limits())
        config = Config(
            app,
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            # uvicorn takes whole seconds, and 0 would cancel the requests in flight at once.
            timeout_graceful_shutdown=max(1, round(grace_s)),
        )
        self._server = _Server(config, self._context)
        self._timeout_check = TimeoutCheck(self._context, self._server.server_state.connections)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Returns when connections are accepted.

        Raises:
            GnomonError: 503 `port_in_use` or `cannot_listen`.

        """
        listener = _listen(self.host, self.port)
        self.port = listener.getsockname()[1]
        self._timeout_check.start()
        self._serving = asyncio.get_running_loop().create_task(self._server.serve(sockets=[listener]))
        await self._server.listening.wait()

    def announce_end(self) -> None:
        """End each connection after its next response, with `Connection: close`, so that clients reconnect to another replica."""
        self._context.closing = True
        for connection in self._connections():
            connection.answer_and_close()

    async def stop(self) -> None:
        """Answer the requests in flight, for at most the grace period, then stop accepting connections, and return.

        Until all are answered, connections are still accepted, so that health checks get a response. The application decides
        which requests it accepts meanwhile.
        """
        if self._serving is None:
            return
        loop = asyncio.get_running_loop()
        self._context.stopping_s = loop.time()
        end_s = loop.time() + self._grace_s
        self.announce_end()
        while any(connection.is_answering for connection in self._connections()) and loop.time() < end_s:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)  # polled, because an event would cost something for every answer
        # uvicorn gets what remains of the grace period, so that both waits together do not exceed it.
        self._server.config.timeout_graceful_shutdown = max(1, round(end_s - loop.time()))
        self._server.should_exit = True
        await self._serving
        self._timeout_check.stop()
        self._serving = None

    def _connections(self) -> list[GatewayProtocol]:
        return [connection for connection in self._server.server_state.connections if isinstance(connection, GatewayProtocol)]


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        code = "port_in_use" if error.errno == 98 else "cannot_listen"  # noqa: PLR2004 - EADDRINUSE
        message = f"Cannot listen on {host_and_port(host, port)}: {error.strerror}."
        raise GnomonError(
            503, code, message, "Choose another port with --port, or stop the program that uses this one."
        ) from None
    # Connections inherit TCP_NODELAY. asyncio sets it only on sockets that were created with TCP's protocol number, and without
    # it
    # an answer in two writes waits 40 ms for the client to acknowledge the first (Nagle's algorithm with delayed ACK).
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
