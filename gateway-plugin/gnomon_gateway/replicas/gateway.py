"""A gateway that shares its functions with other replicas: its two listeners and this replica, composed.

    clients   ─▶ SharedApp ─┬─ own function ─▶ GatewayApp          replicas ─▶ InsideApp ─┬─ own function ─▶ GatewayApp
                            ├─ another's ─▶ Forwarder                                     ├─ another's ─▶ 421
                            └─ other paths ─▶ LeaderForwarder                             ├─ /gnomon/ownership ─▶ ReplicaAgent
                                                                                          └─ other paths ─▶ GatewayApp

    shared = SharedGateway(app, guard, directory, board, read_peer_secret(path), identity=…, host=…, port=…)
    server = GatewayServer(shared.app, …)              # instead of GatewayServer(app, …)
    queue = AsyncQueue(…, shared.invoke(Invoker(directory)), …)
    start: await shared.start(), server.start()        stop: await shared.leave(), server.stop(), shared.stop()

The listener for replicas has a port of its own, answers nothing without the secret, and trusts the client address that the
sending replica states. An asynchronous call stays with the replica that accepted it, which retries it and delivers the callback;
only its execution is forwarded to the owner (`SharedInvoker`).
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, ClassVar

from gnomon_core.addresses import http_url
from gnomon_core.errors import GnomonError
from gnomon_core.ownership import OwnershipBoard, Replica
from gnomon_gateway.api.access import FROM_PEER, Guard
from gnomon_gateway.api.invocation import ControlApp, GatewayApp
from gnomon_gateway.asynchronous.calls import FunctionAnswer, Invocation, Invoke, answer_of
from gnomon_gateway.dispatch.dispatcher import deadline_exceeded, queue_moved
from gnomon_gateway.functions.function_runtime import FunctionDirectory
from gnomon_gateway.http.connection import Limits
from gnomon_gateway.http.exchange import Exchange
from gnomon_gateway.http.headers import DEADLINE_HEADER
from gnomon_gateway.http.server import GatewayServer
from gnomon_gateway.replicas.assignment import Place
from gnomon_gateway.replicas.forwarding import (
    CLIENT_HEADER,
    EPOCH_HEADER,
    LeaderForwarder,
    function_named,
    refuse,
    refuse_asgi,
)
from gnomon_gateway.replicas.peers import HEADER, OWNERSHIP_PATH, PeerConnection, Peers, PeerSecret
from gnomon_gateway.replicas.replica import ReplicaAgent, Reports, StateExchange

LEAVE_TIMEOUT_S = 20.0


class SharedGateway:
    """A gateway replica. It listens for other replicas at `host` and `port`; with port 0 the kernel chooses a free port.

    `guard` is the control application's, and checks a request before it is forwarded. `leads` returns whether this replica leads
    and serves control requests itself; by default every replica does. `state` is exchanged with the leader.
    """

    def __init__(
        self,
        app: GatewayApp,
        guard: Guard,
        directory: FunctionDirectory,
        board: OwnershipBoard,
        secret: PeerSecret,
        *,
        identity: str = "",
        host: str = "127.0.0.1",
        port: int = 0,
        leads: Callable[[], bool] = lambda: True,
        state: StateExchange | None = None,
    ) -> None:
        self.peers = Peers(secret)
        self.agent = agent = ReplicaAgent(identity or new_identity(), app, directory, board, self.peers, reports=Reports(state))
        control = LeaderForwarder(app, guard, self.peers, leads=leads, leader=agent.known_leader)
        self.app = SharedApp(app, agent, control)
        # A request from another replica is not forwarded again: if it arrives before this replica leads, it waits until it does.
        led = LeaderForwarder(app, guard, self.peers, leads=leads, leader=lambda: None)
        inside = InsideApp(app, agent, led)
        # Eight more header lines, for those that replicas add. The default idle timeout is longer than `peers.IDLE_S`, after
        # which the sending replica closes a connection, so that no request is sent on a connection that is being closed.
        self.inside = GatewayServer(inside, host, port, limits=replace(Limits(), head_lines=Limits().head_lines + 8))

    @property
    def address(self) -> str:
        """The URL of the internal listener, if it is reached at the address that it is bound to."""
        return http_url(self.inside.host, self.inside.port)

    def invoke(self, local: Invoke) -> Invoke:
        """An `Invoke` for calls from inside the gateway, for functions of any replica; `local` calls those of this one."""
        return SharedInvoker(local, self.agent)

    async def start(self) -> None:
        """Listen for other replicas and follow the map. Requests wait until the first map."""
        await self.inside.start()
        self.agent.address = self.address
        await self.agent.start()

    async def leave(self, timeout_s: float = LEAVE_TIMEOUT_S) -> bool:
        """Hand over all functions to other replicas. From then on requests are forwarded, until the server stops."""
        return await self.agent.leave(timeout_s)

    async def stop(self) -> None:
        """Stop the internal listener. The public listener must have stopped before."""
        await self.inside.stop()
        await self.agent.stop()


def new_identity() -> str:
    """A unique name for this process: the host's or pod's name and a random suffix, which changes at a restart."""
    return f"{socket.gethostname()}-{secrets.token_hex(4)}"


MOST_MESSAGE_BYTES = 4 << 20
"""The largest message between replicas. A map of ten replicas has 1 KB, the names of a thousand draining functions 60 KB."""


@dataclass(frozen=True, slots=True)
class SharedApp:
    """The application for clients: as `GatewayApp`, whichever replica owns the function. `control_app` serves all other paths."""

    app: GatewayApp
    agent: ReplicaAgent
    control_app: ControlApp

    prefixes: ClassVar[tuple[bytes, ...]] = GatewayApp.prefixes

    def begin(self, exchange: Exchange) -> None:
        """Begin a request on a hot route, whose headers have been received."""
        name = function_named(exchange.path)
        runtime = self.agent.directory.lookup(name) if name is not None else None
        if runtime is None or self.app.draining:
            self.app.begin(exchange)
        elif runtime.name in self.agent.holdings.serving:
            # The queue may move while the request waits: then it is forwarded to the new owner.
            exchange.moved = self.agent.forwarder.moved_since(time.monotonic())
            self.app.begin(exchange)
        else:
            self.agent.forwarder.take(exchange, runtime)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.control_app(scope, receive, send)


@dataclass(frozen=True, slots=True)
class InsideApp:
    """The application for other replicas. `control_app` serves the control requests that they forward to the leader."""

    app: GatewayApp
    agent: ReplicaAgent
    control_app: ControlApp

    prefixes: ClassVar[tuple[bytes, ...]] = (*GatewayApp.prefixes, OWNERSHIP_PATH)

    def begin(self, exchange: Exchange) -> None:
        """Begin a request, whose headers have been received."""
        peer_headers = {name: value for name, value in exchange.headers if name.startswith(HEADER)}
        if not self.agent.forwarder.peers.secret.allows(peer_headers.get(HEADER)):
            exchange.fail(_unauthenticated(), close=True)
        elif exchange.path == OWNERSHIP_PATH and exchange.method == b"POST":
            exchange.accept(_Message(exchange, self.agent), MOST_MESSAGE_BYTES)
        else:
            self._begin(exchange, peer_headers)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a control request that another replica forwards to the leader, with the client's own credentials.

        The forwarding replica has checked the client's connection, as only it can (`LeaderForwarder`). `FROM_PEER` is set only if
        the request carries the replicas' secret.
        """
        peer_headers = {name: value for name, value in scope["headers"] if name.startswith(HEADER)}
        if not self.agent.forwarder.peers.secret.allows(peer_headers.get(HEADER)):
            await refuse_asgi(send, _unauthenticated(), close=True)
            return
        # The application must not see the replicas' headers: the secret is among them.
        headers = [header for header in scope["headers"] if not header[0].startswith(HEADER)]
        client = (peer_headers.get(CLIENT_HEADER, b"").decode("latin-1"), 0)
        await self.control_app({**scope, "headers": headers, "client": client, FROM_PEER: True}, receive, send)

    def _begin(self, exchange: Exchange, peer_headers: dict[bytes, bytes]) -> None:
        self.agent.forwarder.counters.inside += 1
        exchange.headers = [header for header in exchange.headers if not header[0].startswith(HEADER)]
        exchange.client = peer_headers.get(CLIENT_HEADER, b"")
        name = function_named(exchange.path)
        runtime = self.agent.directory.lookup(name) if name is not None else None
        if name is None:
            exchange.fail(GnomonError(404, "route_not_found", "Replicas send each other requests to functions only."))
        elif runtime is None:
            # The sender knows the function: it was deployed or removed a moment ago, or this replica is about to stop.
            error = self.agent.directory.refusal(name)
            refuse(exchange, queue_moved() if error.status == HTTPStatus.NOT_FOUND else error, b"")
        elif runtime.name in self.agent.holdings.serving:
            self.app.begin(exchange)
        else:
            epoch = peer_headers.get(EPOCH_HEADER, b"")
            self.agent.forwarder.take(exchange, runtime, sender_epoch=int(epoch) if epoch.isdigit() else 0)


class _Message:
    """The owner of an exchange at `/gnomon/ownership`: a message of another replica or of the leader."""

    def __init__(self, exchange: Exchange, agent: ReplicaAgent) -> None:
        self._exchange, self._agent = exchange, agent

    def received(self, body: bytes | memoryview) -> None:
        try:
            answer = self._agent.answer(json.loads(bytes(body)))
        except ValueError as error:
            self._exchange.fail(GnomonError(400, "invalid_talk", f"The message is not valid JSON: {error}."))
        except GnomonError as error:
            self._exchange.fail(error)
        else:
            self._exchange.respond(200, b"content-type: application/json\r\n", json.dumps(answer).encode())

    def left(self) -> None:
        """Ignore the disconnect: the message has been processed."""


def _unauthenticated() -> GnomonError:
    return GnomonError(
        401, "peer_unknown", "This port is for the replicas of the gateway, which share a secret.", "Use the gateway's own port."
    )


PAUSE_S = 0.05
_MOVED = 421


class SharedInvoker:
    """An `Invoke` that calls `local` for functions of this replica, and the owner for all others."""

    def __init__(self, local: Invoke, agent: ReplicaAgent) -> None:
        self._local, self._agent = local, agent

    async def __call__(self, invocation: Invocation) -> FunctionAnswer:
        runtime = self._agent.directory.lookup(str(invocation.function))
        if runtime is None:
            return await self._local(invocation)
        allowed_s = min(runtime.settings.deadline_s, invocation.deadline_s or runtime.settings.deadline_s)
        end_s = time.monotonic() + allowed_s
        while (left_s := end_s - time.monotonic()) > 0:
            if self._agent.directory.lookup(runtime.name) is None:
                return await self._local(invocation)  # it was removed meanwhile
            place = self._agent.place(runtime.name)
            answer = None
            if place is Place.HERE:
                answer = await self._local(invocation)
            elif isinstance(place, Replica):
                answer = await self._ask(place, invocation, left_s)
            # 421 of the platform: the owner has changed and the call was not executed, so it is retried.
            if answer is not None and not (answer.status == _MOVED and answer.is_ours):
                return answer
            self._agent.refresh_map()
            await asyncio.sleep(PAUSE_S)
        return answer_of(deadline_exceeded(allowed_s))

    async def _ask(self, replica: Replica, invocation: Invocation, left_s: float) -> FunctionAnswer | None:
        """The owner's response; None if the owner has certainly received nothing."""
        peers = self._agent.forwarder.peers
        try:
            connection = peers.idle(replica.address) or await peers.open(replica.address)
        except (OSError, TimeoutError):
            return None
        waiting = _Waiting()
        try:
            async with asyncio.timeout(left_s):
                connection.send(self._head(invocation, left_s), invocation.body, waiting)
                return await waiting.answered
        except ConnectionResetError:
            return answer_of(GnomonError(502, "replica_lost", "The replica that executed the call ended before it answered."))
        except TimeoutError:
            return answer_of(deadline_exceeded(left_s))
        finally:
            _leave(connection, waiting)

    def _head(self, invocation: Invocation, left_s: float) -> bytes:
        query = f"?{invocation.query}" if invocation.query else ""
        lines = [f"{invocation.method} /function/{invocation.function}{invocation.path}{query} HTTP/1.1", "host: gnomon"]
        lines += [f"{name}: {value}" for name, value in invocation.headers if name.lower() != "host"]
        ours = b"%b: %d\r\n%b: %.3f\r\ncontent-length: %d\r\n\r\n"
        values = (EPOCH_HEADER, self._agent.holdings.epoch, DEADLINE_HEADER, left_s * 1e3, len(invocation.body))
        text = "\r\n".join(lines).encode("latin-1", "replace")
        return text + b"\r\n" + self._agent.forwarder.peers.secret.line + ours % values


def _leave(connection: PeerConnection, waiting: _Waiting) -> None:
    if not waiting.came:
        connection.drop()


class _Waiting:
    """The receiver of the response to one call."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[FunctionAnswer] = asyncio.get_running_loop().create_future()
        self.came = False
        self._status, self._lines, self._parts = 0, b"", list[bytes]()

    def whole(self, status: int, lines: bytes, body: bytes) -> None:
        self.came = True
        named = (line.partition(":") for line in lines.decode("latin-1").split("\r\n") if line)
        if not self.answered.done():
            self.answered.set_result(FunctionAnswer(status, tuple((name, value.strip()) for name, _, value in named), body))

    def start(self, status: int, lines: bytes) -> None:
        self._status, self._lines = status, lines

    def part(self, data: bytes) -> None:
        self._parts.append(data)

    def end(self) -> None:
        self.whole(self._status, self._lines, b"".join(self._parts))

    def lost(self) -> None:
        self.came = True
        if not self.answered.done():
            self.answered.set_exception(ConnectionResetError("the replica has closed the connection"))
