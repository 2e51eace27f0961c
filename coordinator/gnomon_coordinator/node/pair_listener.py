"""The port at which Bodies of other nodes connect to this node's Shadows: one port for all Shadows, and a token for each.

    Body ── GET /gnomon/pair, its Shadow's token, Upgrade: gnomon-pair/1 ──▶ here ── the connection, as a descriptor ──▶ Shadow
    Body ◀────────── 101 Switching Protocols, then messages until one of the two ends ───────────────────── Shadow

A Shadow of the pool listens on no port and speaks no HTTP: it is forked in milliseconds, and ports of its own would need as many
exceptions in every NetworkPolicy. It gets the connection as it would get a pair's buffers, answers the upgrade itself, and no
data passes through this process.

Every function's pod may connect, and some run untrusted code: a connection without a complete request is closed after a timeout,
and the number of such connections is bounded. A Body sends its request at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from http import HTTPStatus

from gnomon_coordinator.node.pod_sockets import Acceptor
from gnomon_coordinator.node.shadows import NodeShadow, NodeShadows
from gnomon_core.coordination import PAIR_PATH, PAIR_PROTOCOL
from gnomon_core.errors import GnomonError

REQUEST_TIMEOUT_S = 3.0
MAX_WAITING = 64
MAX_HEAD_BYTES = 8192
_END = b"\r\n\r\n"


class PairListener:
    """The listener; runs on an event loop from `start` to `stop`. `port` is its port."""

    def __init__(self, shadows: NodeShadows) -> None:
        self._shadows = shadows
        self._loop = asyncio.get_running_loop()
        self._acceptor: Acceptor | None = None
        self._waiting: dict[asyncio.Task[None], None] = {}
        """Connections without a complete request, oldest first."""
        self.port = 0

    def start(self, host: str, port: int) -> None:
        """Listen; port 0 is any free port.

        Raises:
            OSError: the address cannot be listened on.

        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._acceptor = Acceptor(socket.create_server((host, port), family=family), self._connected)
        self.port = self._acceptor.port

    async def stop(self) -> None:
        """Stop listening. Connections that a Shadow has stay open. May be called again."""
        if self._acceptor is not None:
            self._acceptor.close()
        waiting = list(self._waiting)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    def _connected(self, connection: socket.socket) -> None:
        if len(self._waiting) >= MAX_WAITING:
            # A cancelled task ends one turn of the loop later; the next connection must find another one to close.
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.cancel()
        task = self._loop.create_task(self._handle(connection))
        self._waiting[task] = None
        task.add_done_callback(lambda done: self._waiting.pop(done, None))

    async def _handle(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await self._read_head(connection)
                try:
                    shadow = self._authorized(head)
                except GnomonError as refusal:
                    await self._loop.sock_sendall(connection, _response(refusal))
                else:
                    # The Shadow has a copy of the descriptor; ours is closed.
                    self._shadows.body_connected(shadow, connection.fileno())

    async def _read_head(self, connection: socket.socket) -> bytes:
        """The complete request head.

        Raises:
            OSError: the connection ends before that, or the head is too long.

        """
        head = b""
        while _END not in head:
            more = await self._loop.sock_recv(connection, MAX_HEAD_BYTES)
            head += more
            if not more or len(head) > MAX_HEAD_BYTES:
                raise ConnectionError("no complete request")
        return head

    def _authorized(self, head: bytes) -> NodeShadow:
        """The Shadow whose token the Body sends.

        Raises:
            GnomonError: 404 `not_found`, 401 `bad_token`, 426 `upgrade_required`.

        """
        first, *lines = head.partition(_END)[0].decode("latin-1").split("\r\n")
        if first.split(" ")[:2] != ["GET", PAIR_PATH]:
            raise GnomonError(404, "not_found", f"This port has only the route {PAIR_PATH}.")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        scheme, _, token = headers.get("authorization", "").partition(" ")
        shadow = self._shadows.of_token(token) if scheme == "Bearer" else None
        if shadow is None:
            raise GnomonError(401, "bad_token", "The token is that of no Shadow on this node.", "Send the Shadow's token.")
        if headers.get("upgrade") != PAIR_PROTOCOL:
            raise GnomonError(426, "upgrade_required", f"The connection must be upgraded to {PAIR_PROTOCOL}.")
        return shadow


def _response(refusal: GnomonError) -> bytes:
    body = refusal.body()
    headers = {**refusal.headers(), "Content-Length": str(len(body)), "Connection": "close"}
    lines = [
        f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}",
        *(f"{name}: {text}" for name, text in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
