"""What is served where there are several replicas: to clients, and to the other replicas.

    clients   ─▶ SharedApp ─┬─ ours ─▶ GatewayApp                  replicas ─▶ InsideApp ─┬─ ours ─▶ GatewayApp
                            ├─ another's ─▶ Forwarder                                     ├─ not ours ─▶ 421
                            └─ no function's ─▶ `to_leader`                               ├─ /gnomon/ownership ─▶ what we know
                                                                                          └─ no function's ─▶ GatewayApp

A gateway that is alone has neither: its GatewayApp is what it serves. The listener for replicas is on a port of its own, answers
nothing without the secret, and believes who says for which client it asks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from gnomon_core.errors import GnomonError
from gnomon_gateway.api.guard import FROM_PEER
from gnomon_gateway.app import ControlApp, GatewayApp
from gnomon_gateway.functions.function_runtime import FunctionDirectory
from gnomon_gateway.http.exchange import Exchange
from gnomon_gateway.replicas.assignment import Holdings
from gnomon_gateway.replicas.forwarding import CLIENT_HEADER, EPOCH_HEADER, Forwarder, function_named, refuse_asgi
from gnomon_gateway.replicas.peer_secret import HEADER, PeerSecret

OWNERSHIP_PATH = b"/gnomon/ownership"
MOST_TALK_BYTES = 4 << 20
"""A map of ten replicas has 1 KB; the names of a thousand functions that are drained have 60 KB."""

Talk = Callable[[Any], dict[str, Any]]
"""What another replica or the leader says, as JSON, and what we say to it."""


class SharedApp:
    """What clients are served: as `GatewayApp`, wherever the function is."""

    prefixes = GatewayApp.prefixes

    def __init__(
        self,
        app: GatewayApp,
        directory: FunctionDirectory,
        holdings: Holdings,
        forwarder: Forwarder,
        control_app: ControlApp | None = None,
    ) -> None:
        self._app, self._directory, self._holdings, self._forwarder = app, directory, holdings, forwarder
        self._control_app = control_app or app

    def begin(self, exchange: Exchange) -> None:
        """A hot request's headers are here."""
        name = function_named(exchange.path)
        runtime = self._directory.lookup(name) if name is not None else None
        if runtime is None or self._app.draining:
            self._app.begin(exchange)
        elif runtime.name in self._holdings.serving:
            exchange.moved = self._forwarder.moving(time.monotonic())
            self._app.begin(exchange)
        else:
            self._forwarder.take(exchange, runtime)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._control_app(scope, receive, send)


class InsideApp:
    """What other replicas are served."""

    prefixes = (*GatewayApp.prefixes, OWNERSHIP_PATH)

    def __init__(
        self,
        app: GatewayApp,
        directory: FunctionDirectory,
        holdings: Holdings,
        forwarder: Forwarder,
        *,
        secret: PeerSecret,
        talk: Talk,
        control_app: ControlApp | None = None,
    ) -> None:
        self._app, self._directory, self._holdings, self._forwarder = app, directory, holdings, forwarder
        self._control_app = control_app or app
        self._secret, self._talk = secret, talk

    def begin(self, exchange: Exchange) -> None:
        """Any request's headers are here."""
        said = {name: value for name, value in exchange.headers if name.startswith(HEADER)}
        if not self._secret.allows(said.get(HEADER)):
            exchange.fail(_stranger(), close=True)
        elif exchange.path == OWNERSHIP_PATH and exchange.method == b"POST":
            exchange.accept(_Talking(exchange, self._talk), MOST_TALK_BYTES)
        else:
            self._begin(exchange, said)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """What concerns no function's queue: another replica passes it on to us, who lead. The client's own login goes along.

        That replica has looked whose connection it is, as only it can (`ToLeader`); who shows no secret gets no mark.
        """
        said = {name: value for name, value in scope["headers"] if name.startswith(HEADER)}
        if not self._secret.allows(said.get(HEADER)):
            await refuse_asgi(send, _stranger(), close=True)
            return
        headers = [header for header in scope["headers"] if not header[0].startswith(HEADER)]
        client = (said.get(CLIENT_HEADER, b"").decode("latin-1"), 0)
        await self._control_app({**scope, "headers": headers, "client": client, FROM_PEER: True}, receive, send)

    def _begin(self, exchange: Exchange, said: dict[bytes, bytes]) -> None:
        self._forwarder.counters.inside += 1
        exchange.headers = [header for header in exchange.headers if not header[0].startswith(HEADER)]
        exchange.speak_for(said.get(CLIENT_HEADER, b""))
        name = function_named(exchange.path)
        runtime = self._directory.lookup(name) if name is not None else None
        if name is None:
            exchange.fail(GnomonError(404, "route_not_found", "Replicas send each other requests to functions only."))
        elif runtime is None or runtime.name in self._holdings.serving:
            self._app.begin(exchange)
        else:
            epoch = said.get(EPOCH_HEADER, b"")
            self._forwarder.take(exchange, runtime, asked_epoch=int(epoch) if epoch.isdigit() else 0)


class _Talking:
    """The owner of an exchange at `/gnomon/ownership`."""

    def __init__(self, exchange: Exchange, talk: Talk) -> None:
        self._exchange, self._talk = exchange, talk

    def received(self, body: bytes | memoryview) -> None:
        try:
            answer = self._talk(json.loads(bytes(body)))
        except ValueError:
            self._exchange.fail(GnomonError(400, "invalid_talk", "This is no JSON."))
        except GnomonError as error:
            self._exchange.fail(error)
        else:
            self._exchange.respond(200, b"content-type: application/json\r\n", json.dumps(answer).encode())

    def left(self) -> None:
        """It does not matter: what was said was heard."""


def _stranger() -> GnomonError:
    return GnomonError(
        401, "peer_unknown", "This port is for the replicas of the gateway, which share a secret.", "Use the gateway's own port."
    )
