"""What concerns no function's queue, asked of a replica that does not lead: the one that does answers it.

    PUT /system/functions ─▶ replica: may it? ─ its internal listener, with the client's login ─▶ leader ─▶ control application

Only the leader writes to the cluster, and only it knows all of what was decided. While nobody leads, such a request waits. What
each replica answers for itself is in `OWN`: how it is, what it has counted, and calls that it keeps.

Who may use a control route is checked where the client has connected, before anything is forwarded: the leader's kernel does not
know whose connection that is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gnomon_core.errors import GnomonError
from gnomon_core.ownership import Replica
from gnomon_gateway.api.guard import Guard
from gnomon_gateway.app import MAX_BODY_BYTES, ControlApp
from gnomon_gateway.http.headers import HOP_BY_HOP
from gnomon_gateway.replicas.forwarding import CLIENT_HEADER, leader_lost, no_leader, refuse_asgi
from gnomon_gateway.replicas.peer_secret import HEADER
from gnomon_gateway.replicas.peers import PeerConnection, Peers

OWN = ("/healthz", "/metrics", "/async-function/")
PATIENCE_S = 25.0
"""How long a request waits for a leader: a Lease's 15 s, and for its successor to begin."""
AGAIN_S = 0.1
_DROPPED = HOP_BY_HOP | {b"content-length", b"expect"}
_SAFE = ("GET", "HEAD")


class ToLeader:
    """The control application of a replica. `leads` says whether its own one is asked, `leader` who is asked else."""

    def __init__(
        self, own: ControlApp, guard: Guard, peers: Peers, *, leads: Callable[[], bool], leader: Callable[[], Replica | None]
    ) -> None:
        self._own, self._guard, self._peers, self._leads, self._leader = own, guard, peers, leads, leader

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._leads() or scope["type"] != "http" or scope["path"].startswith(OWN):
            await self._own(scope, receive, send)
            return
        refusal = await self._guard.refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        body = await _whole(receive)
        if body is None:
            await refuse_asgi(send, GnomonError(413, "body_too_large", f"A request has at most {MAX_BODY_BYTES} bytes."))
            return
        try:
            async with asyncio.timeout(PATIENCE_S) as patience:
                while not self._leads():
                    connection = await self._reach()
                    if connection is not None:
                        patience.reschedule(None)
                        if await self._passed(scope, body, receive, send, connection):
                            return
                        patience.reschedule(asyncio.get_running_loop().time() + PATIENCE_S)
                    await asyncio.sleep(AGAIN_S)
        except TimeoutError:
            await refuse_asgi(send, no_leader())
            return
        await self._own(scope, _again(body, receive), send)

    async def _reach(self) -> PeerConnection | None:
        leader = self._leader()
        if leader is None:
            return None
        try:
            return self._peers.idle(leader.address) or await self._peers.open(leader.address)
        except (OSError, TimeoutError):
            return None

    async def _passed(self, scope: Any, body: bytes, receive: Any, send: Any, connection: PeerConnection) -> bool:
        """Send it on; False where it is to be sent again, because nothing has come of it that could have changed anything."""
        answer = _Answer(bodiless=scope["method"] == "HEAD")
        connection.send(_head(scope, len(body), self._peers), body, answer, bodiless=scope["method"] == "HEAD")
        left = asyncio.ensure_future(_left(receive))
        left.add_done_callback(lambda watching: None if watching.cancelled() else answer.lost())
        try:
            while (message := await answer.messages.get()) is not None:
                await send(message)
        finally:
            left.cancel()
            if not answer.ended:
                connection.drop()
        if answer.ended or answer.begun or left.done():
            return True  # of one that broke off the server ends the client's connection, as it was ended here
        if scope["method"] in _SAFE:
            return False
        await refuse_asgi(send, leader_lost())
        return True


class _Answer:
    """The receiver of an answer: what is to be sent to the client, and None behind it."""

    def __init__(self, *, bodiless: bool) -> None:
        self.messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.begun = self.ended = False
        self._bodiless = bodiless

    def whole(self, status: int, lines: bytes, body: bytes) -> None:
        self._begin(status, [*_headers(lines), (b"content-length", b"%d" % len(body))])
        self._say(b"" if self._bodiless else body, more=False)

    def start(self, status: int, lines: bytes) -> None:
        self._begin(status, _headers(lines))

    def part(self, data: bytes) -> None:
        self._say(data, more=True)

    def end(self) -> None:
        self._say(b"", more=False)

    def lost(self) -> None:
        if not self.ended:
            self.messages.put_nowait(None)

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.begun = True
        self.messages.put_nowait({"type": "http.response.start", "status": status, "headers": headers})

    def _say(self, data: bytes, *, more: bool) -> None:
        self.messages.put_nowait({"type": "http.response.body", "body": data, "more_body": more})
        if not more:
            self.ended = True
            self.messages.put_nowait(None)


def _head(scope: Any, length: int, peers: Peers) -> bytes:
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    client = (scope.get("client") or ("", 0))[0].encode("latin-1", "replace")
    kept = [
        name + b": " + value + b"\r\n" for name, value in scope["headers"] if name not in _DROPPED and not name.startswith(HEADER)
    ]
    first = scope["method"].encode() + b" " + target + b" HTTP/1.1\r\n"
    ours = b"%b: %b\r\ncontent-length: %d\r\n\r\n" % (CLIENT_HEADER, client, length)
    return b"".join([first, peers.secret.line, *kept, ours])


def _headers(lines: bytes) -> list[tuple[bytes, bytes]]:
    named = (line.partition(b":") for line in lines.split(b"\r\n") if line)
    return [(name.lower(), value.strip()) for name, _, value in named]


async def _whole(receive: Any) -> bytes | None:
    """A request's body; None for one that is too long."""
    parts, length = [], 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        length += len(part)
        if length > MAX_BODY_BYTES:
            return None
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _again(body: bytes, receive: Any) -> Any:
    """What gives a body once more, and then whatever comes."""
    whole = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def give() -> Any:
        message = next(whole, None)
        return message if message is not None else await receive()

    return give


async def _left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
