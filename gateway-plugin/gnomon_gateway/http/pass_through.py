"""A gateway that stands by: what comes to its port goes on to the one that leads, byte by byte, and back.

    client ─▶ this port ─▶ the leader's port        while nobody leads, connections wait for who will

Nothing is read of what passes, so every request is answered as the leader answers it, streams and credentials included. When this
process leads itself it stops listening here, its own server takes the port over, and connections that wait come to that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

PATIENCE_S = 25.0
"""How long a connection waits for a leader: a Lease's 15 s, and for its successor to begin."""
AGAIN_S = 0.1
CHUNK_BYTES = 64 * 1024
MAX_CONNECTIONS = 10_000
CLOSE_S = 5.0

Place = tuple[str, int]
_LOG = logging.getLogger("gnomon.gateway")


class PassThrough:
    """Listens on `host` and `port`; port 0 takes a free one, which `port` then says. `leader` says where to, if there is one."""

    def __init__(self, host: str, port: int, leader: Callable[[], Place | None]) -> None:
        self.host, self.port = host, port
        self._leader = leader
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._connected, self.host, self.port, reuse_address=True)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop_listening(self) -> None:
        """Leave the port to another. What passes goes on until it ends."""
        if self._server is not None:
            self._server.close()
            self._server = None
            # The loop forgets a listener in its next turn.
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """End everything that passes."""
        await self.stop_listening()
        for connection in tuple(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) < MAX_CONNECTIONS:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            try:
                with contextlib.suppress(OSError):
                    await self._pass(reader, writer)
            finally:
                await _close(writer)
            return
        await _close(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await self._reach()
        if there is None:
            return
        other_reader, other_writer = there
        for one in (writer, other_writer):
            one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        there_way = asyncio.ensure_future(_copy(reader, other_writer))
        back_way = asyncio.ensure_future(_copy(other_reader, writer))
        try:
            # A client may say that it has sent all and still listen; one whose leader has said its last has nothing to wait for.
            await back_way
        finally:
            for way in (there_way, back_way):
                way.cancel()
            await asyncio.gather(there_way, back_way, return_exceptions=True)
            await _close(other_writer)

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection to the leader, whoever that is by then; None if nobody was to be reached."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    place = self._leader()
                    if place is not None:
                        with contextlib.suppress(OSError):
                            return await asyncio.open_connection(*place)
                    await asyncio.sleep(AGAIN_S)
        _LOG.warning("a connection has waited %g s for a gateway that leads", PATIENCE_S)
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes, as fast as it is taken, and its end."""
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close a connection, with what is left to be sent unless nobody takes it."""
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await writer.wait_closed()
