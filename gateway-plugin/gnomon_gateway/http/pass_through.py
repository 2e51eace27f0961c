"""The TCP proxy of a standby gateway, which forwards connections to the leader.

    client ─▶ this port ─▶ the leader's port        while no gateway leads, connections wait for the next leader

Bytes are forwarded unparsed, so the leader answers every request itself, streams and credentials included. When this process
becomes the leader, it stops listening here, its own server takes over the port, and waiting connections are passed to that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

PATIENCE_S = 25.0
"""Timeout of a connection that waits for a leader: the 15 s of the Lease, and the start of the next leader."""
AGAIN_S = 0.1
CHUNK_BYTES = 64 * 1024
MAX_CONNECTIONS = 10_000
CLOSE_S = 5.0

Place = tuple[str, int]
_LOG = logging.getLogger("gnomon.gateway")


class PassThrough:
    """A proxy on `host` and `port`; port 0 takes a free one, which `port` then holds. `leader` returns the target, or None."""

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
        """Close the listener. Open connections continue until they end."""
        if self._server is not None:
            self._server.close()
            self._server = None
            # asyncio closes the listening socket only in the loop's next turn.
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """Close the listener and all connections."""
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
        for each_writer in (writer, other_writer):
            each_writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        there_way = asyncio.ensure_future(_copy(reader, other_writer))
        back_way = asyncio.ensure_future(_copy(other_reader, writer))
        try:
            # A client may close its sending half and still read; once the leader has closed, nothing more can come.
            await back_way
        finally:
            for way in (there_way, back_way):
                way.cancel()
            await asyncio.gather(there_way, back_way, return_exceptions=True)
            await _close(other_writer)

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection to the current leader; None if none is reached before the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    place = self._leader()
                    if place is not None:
                        with contextlib.suppress(OSError):
                            return await asyncio.open_connection(*place)
                    await asyncio.sleep(AGAIN_S)
        _LOG.warning("a connection has waited %g s for a leading gateway", PATIENCE_S)
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes at the reader's pace, and then the end of the stream."""
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close a connection after its unsent bytes, unless the peer does not read them."""
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await writer.wait_closed()
