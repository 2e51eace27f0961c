"""Where Bodies of other nodes come to this node's Shadows: one port for all of them, and a token for each.

    Body ── GET /gnomon/pair, its Shadow's token, Upgrade: gnomon-pair/1 ──▶ here ── the connection, as a descriptor ──▶ Shadow
    Body ◀────────── 101 Switching Protocols, and whatever comes then, until one of the two ends ───────────────────── Shadow

A Shadow of the pool listens nowhere and knows no HTTP: it is forked in milliseconds, and a pool of processes with ports of their
own would need as many holes in every NetworkPolicy. It gets the connection as it would get a pair's buffers, answers the upgrade
itself, and nothing of what follows passes through here.

Every function's pod may come to this port, and some run anybody's code: who does not say what it wants is left after a moment,
and there are a few of those at most. A Body says it straight away.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from http import HTTPStatus

from gnomon_coordinator.node.pod_sockets import Listening
from gnomon_coordinator.node.shadows import Shadow, Shadows
from gnomon_core.coordination import PAIR_PATH, PAIR_PROTOCOL
from gnomon_core.errors import GnomonError

PATIENCE_S = 3.0
MAX_WAITING = 64
MAX_HEAD_BYTES = 8192
_END = b"\r\n\r\n"


class Arrivals:
    """Listens on an event loop, from `start` to `stop`. `port` is where."""

    def __init__(self, shadows: Shadows) -> None:
        self._shadows = shadows
        self._loop = asyncio.get_running_loop()
        self._listening: Listening | None = None
        self._waiting: dict[asyncio.Task[None], None] = {}
        """Who has connected and not said everything yet, in the order in which they came."""
        self.port = 0

    def start(self, host: str, port: int) -> None:
        """Let them come; a port 0 is any.

        Raises:
            OSError: nobody may listen there.

        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = Listening(socket.create_server((host, port), family=family), self._come)
        self.port = self._listening.port

    async def stop(self) -> None:
        """Let nobody come any more. Who has reached a Shadow stays with it. May be called again."""
        if self._listening is not None:
            self._listening.close()
        waiting = list(self._waiting)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    def _come(self, connection: socket.socket) -> None:
        if len(self._waiting) >= MAX_WAITING:
            # It ends a turn of the loop later, in which the next one comes and must find another to leave.
            leaving = next(iter(self._waiting))
            del self._waiting[leaving]
            leaving.cancel()
        task = self._loop.create_task(self._meet(connection))
        self._waiting[task] = None
        task.add_done_callback(lambda done: self._waiting.pop(done, None))

    async def _meet(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(PATIENCE_S):
                head = await self._head(connection)
                try:
                    shadow = self._asked_for(head)
                except GnomonError as refusal:
                    await self._loop.sock_sendall(connection, _answer(refusal))
                else:
                    # From here on it has it; ours is closed without a word.
                    self._shadows.reached(shadow, connection.fileno())

    async def _head(self, connection: socket.socket) -> bytes:
        """The request, whole.

        Raises:
            OSError: it ends before that, or does not end.

        """
        head = b""
        while _END not in head:
            more = await self._loop.sock_recv(connection, MAX_HEAD_BYTES)
            head += more
            if not more or len(head) > MAX_HEAD_BYTES:
                raise ConnectionError("no request")
        return head

    def _asked_for(self, head: bytes) -> Shadow:
        """Whose Body this is.

        Raises:
            GnomonError: 404 `not_found`, 401 `bad_token`, 426 `upgrade_required`.

        """
        first, *lines = head.partition(_END)[0].decode("latin-1").split("\r\n")
        if first.split(" ")[:2] != ["GET", PAIR_PATH]:
            raise GnomonError(404, "not_found", "Here is nothing but the way to this node's Shadows.")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        scheme, _, token = headers.get("authorization", "").partition(" ")
        shadow = self._shadows.of_token(token) if scheme == "Bearer" else None
        if shadow is None:
            raise GnomonError(401, "bad_token", "This is for the Bodies of this node's Shadows.", "Send your Shadow's token.")
        if headers.get("upgrade") != PAIR_PROTOCOL:
            raise GnomonError(426, "upgrade_required", f"This is for Bodies: it needs an upgrade to {PAIR_PROTOCOL}.")
        return shadow


def _answer(refusal: GnomonError) -> bytes:
    body = refusal.body()
    headers = {**refusal.headers(), "Content-Length": str(len(body)), "Connection": "close"}
    lines = [
        f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}",
        *(f"{name}: {text}" for name, text in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
