"""A gateway that shares its functions with other replicas: both listeners and this replica's part, made once and joined.

shared = SharedGateway(app, guard, directory, board, read_peer_secret(path), identity=…, host=…, port=…)
server = GatewayServer(shared.app, …)              # instead of GatewayServer(app, …)
queue = AsyncQueue(…, shared.invoke(Invoker(directory)), …)
start: await shared.start(), server.start()        stop: await shared.leave(), server.stop(), shared.stop()
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from dataclasses import replace

from gnomon_core.addresses import http_url
from gnomon_core.ownership import OwnershipBoard
from gnomon_gateway.api.guard import Guard
from gnomon_gateway.app import GatewayApp
from gnomon_gateway.asynchronous.invocation import Invoke
from gnomon_gateway.functions.function_runtime import FunctionDirectory
from gnomon_gateway.http.connection import Limits
from gnomon_gateway.http.server import GatewayServer
from gnomon_gateway.replicas.calls import SharedInvoker
from gnomon_gateway.replicas.listener import InsideApp, SharedApp
from gnomon_gateway.replicas.peer_secret import PeerSecret
from gnomon_gateway.replicas.peers import Peers
from gnomon_gateway.replicas.replica import ReplicaLife
from gnomon_gateway.replicas.reports import Reports
from gnomon_gateway.replicas.to_leader import ToLeader

LEAVE_TIMEOUT_S = 20.0


class SharedGateway:
    """One replica. `host` and `port` are where it listens for the others; port 0 takes a free one.

    `guard` is the control application's, and is asked before a request is forwarded. `leads` says whether our control application
    is the one that is asked; without it every replica's is. `reports` are what it tells the leader, and hears when it leads.
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
        reports: Reports | None = None,
    ) -> None:
        self.peers = Peers(secret)
        self.life = ReplicaLife(identity or new_identity(), app, directory, board, self.peers)
        self.life.reports = reports or Reports()
        self._directory = directory
        forwarder, holdings = self.life.forwarder, self.life.holdings
        control = ToLeader(app, guard, self.peers, leads=leads, leader=self.life.who_leads)
        self.app = SharedApp(app, directory, holdings, forwarder, control)
        # What comes inside goes no further: it waits until we lead, if somebody takes us for the leader before we are ready.
        led = ToLeader(app, guard, self.peers, leads=leads, leader=lambda: None)
        inside = InsideApp(app, directory, holdings, forwarder, secret=secret, talk=self.life.answer, control_app=led)
        # A connection between replicas is idle for as long as there is nothing to forward; who opens it forgets it first.
        self.inside = GatewayServer(inside, host, port, limits=replace(Limits(), head_lines=Limits().head_lines + 8))

    @property
    def address(self) -> str:
        """The internal listener's, where it is reached at the address that it is bound to."""
        return http_url(self.inside.host, self.inside.port)

    def invoke(self, own: Invoke) -> Invoke:
        """Calls from inside the gateway, wherever the function is."""
        return SharedInvoker(own, self._directory, self.life)

    async def start(self) -> None:
        """Listen for the others and follow the map. Requests wait until there is one."""
        await self.inside.start()
        self.life.address = self.address
        await self.life.start()

    async def leave(self, timeout_s: float = LEAVE_TIMEOUT_S) -> bool:
        """Give every function to the others. Requests that come are forwarded from then on, until the server stops."""
        return await self.life.leave(timeout_s)

    async def stop(self) -> None:
        """End the internal listener. The public one has stopped before."""
        await self.inside.stop()
        await self.life.stop()


def new_identity() -> str:
    """A name for this process: the machine's or pod's, and what tells it from one that is started again there."""
    return f"{socket.gethostname()}-{secrets.token_hex(4)}"
