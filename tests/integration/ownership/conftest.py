"""Gateway replicas in one process that share instances: each with both listeners, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gnomon_core.clock import WallClock
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.ownership import OwnershipBoard
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature
from gnomon_gateway.api.access import BasicAuth, Guard, Guarded, host_rule
from gnomon_gateway.api.invocation import GatewayApp
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.function_runtime import FunctionDirectory, FunctionRuntime
from gnomon_gateway.http.server import GatewayServer
from gnomon_gateway.replicas.assigner import Assigner
from gnomon_gateway.replicas.assignment import Place
from gnomon_gateway.replicas.gateway import SharedGateway
from gnomon_gateway.replicas.peers import Peers, PeerSecret
from gnomon_gateway.scheduling.registry import scheduling_policy
from gnomon_platforms.local.channel import UnixChannel, channel_pair
from tests.integration.gateway.conftest import Connection, Response, not_here
from tests.ownership_boards import MemoryBoard

SCRIPT = Path(__file__).parents[1] / "gateway" / "scripted_instance.py"
SECRET = PeerSecret("between-the-replicas-only")


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not met():  # noqa: ASYNC110 - what is waited for happens in several processes
            await asyncio.sleep(0.005)


class Replica:
    """A gateway. All of a cluster's know the same functions and instances."""

    def __init__(
        self, name: str, board: OwnershipBoard, auth: BasicAuth | None = None, leads: Callable[[], bool] = lambda: True
    ) -> None:
        self.name = name
        self.functions: dict[str, FunctionRuntime] = {}
        self.directory = FunctionDirectory()
        guard = Guard(host_rule("127.0.0.1", ["gnomon"]), auth)
        app = GatewayApp(self.directory, Guarded(not_here, guard))
        self.shared = SharedGateway(app, guard, self.directory, board, SECRET, identity=name, leads=leads)
        self.server = GatewayServer(self.shared.app, port=0)
        self.connections: list[Connection] = []

    @property
    def holdings(self) -> Any:
        return self.shared.agent.holdings

    @property
    def counters(self) -> Any:
        return self.shared.agent.forwarder.counters

    def serves(self, name: str) -> bool:
        return self.shared.agent.place(f"{name}.openfaas-fn") is Place.HERE

    async def connect(self, *, inside: bool = False) -> Connection:
        port = self.shared.inside.port if inside else self.server.port
        connection = Connection(*await asyncio.open_connection("127.0.0.1", port))
        self.connections.append(connection)
        return connection

    async def call(self, path: str, body: bytes = b"", method: str = "POST", headers: dict[str, str] | None = None) -> Response:
        connection = await self.connect()
        try:
            return await connection.call(path, body, method, headers, bodiless=method == "HEAD")
        finally:
            connection.close()


class Cluster:
    """The replicas, the leader, and the instances."""

    def __init__(self, diary: Path) -> None:
        self.diary = diary
        self.board = MemoryBoard()
        self.replicas: list[Replica] = []
        self.led = True
        self._functions: dict[str, tuple[Settings, ModelSignature | None]] = {}
        self._channels: dict[str, list[tuple[Instance, UnixChannel]]] = {}
        self._processes: list[asyncio.subprocess.Process] = []
        self._peers = Peers(SECRET)
        leader = Assigner(self.board, self._peers, WallClock(), leads=lambda: self.led, poll_s=0.02)
        self._leading = asyncio.get_running_loop().create_task(leader.run())

    async def add(self) -> Replica:
        replica = Replica(f"gateway-{len(self.replicas)}", self.board)
        for name in self._functions:
            self._give(replica, name)
        self.replicas.append(replica)
        await replica.shared.start()
        await replica.server.start()
        self.board.listening.add(replica.shared.address)
        return replica

    async def grow(self, count: int) -> list[Replica]:
        """The first replicas, in one map."""
        self.led = False
        added = [await self.add() for _ in range(count)]
        self.led = True
        await self.settled(count)
        return added

    async def deploy(self, name: str = "f", instances: int = 1, signature: ModelSignature | None = None, **settings: Any) -> None:
        self._functions[name] = Settings(**settings), signature
        self._channels[name] = [await self._instance(name, number) for number in range(instances)]
        for replica in self.replicas:
            self._give(replica, name)

    def remove(self, name: str) -> None:
        """The function is removed at every replica, and its instances end."""
        del self._functions[name]
        for _, channel in self._channels.pop(name):
            channel.close()
        for replica in self.replicas:
            replica.directory.remove(FunctionKey(name))
            replica.functions.pop(name).close()

    async def settled(self, count: int) -> None:
        """Wait until so many replicas share the functions, and all of them know it of each other."""
        await until(partial(self._is_settled, count))

    def _is_settled(self, count: int) -> bool:
        newest = self.board.newest
        if newest is None or len(newest.owners) != count:
            return False
        members = [replica for replica in self.replicas if newest.member(replica.name)]
        return all(member.holdings.map == newest and not member.holdings.unconfirmed() for member in members)

    def owner(self, name: str) -> Replica:
        knows_most = max(self.replicas, key=lambda replica: replica.holdings.epoch)
        found = knows_most.holdings.owner(f"{name}.openfaas-fn")
        return next(replica for replica in self.replicas if found is not None and replica.name == found.id)

    def other(self, name: str) -> Replica:
        """A replica that does not own the function."""
        return next(replica for replica in self.replicas if replica is not self.owner(name))

    def release(self) -> None:
        """Let what executes `/held` come to its end, now and later."""
        self.diary.with_name("released").touch()

    def executed(self) -> list[bytes]:
        return self.diary.read_bytes().splitlines() if self.diary.exists() else []

    async def executing(self, body: bytes) -> None:
        await until(lambda: body in self.executed())

    async def stop(self) -> None:
        self._leading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._leading
        for replica in self.replicas:
            for connection in replica.connections:
                connection.close()
            await replica.server.stop()
        for replica in self.replicas:
            await replica.shared.stop()
            for runtime in replica.functions.values():
                runtime.close()
        self._peers.close()
        for channels in self._channels.values():
            for _, channel in channels:
                channel.close()
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await process.wait()

    def _give(self, replica: Replica, name: str) -> None:
        settings, signature = self._functions[name]
        runtime = FunctionRuntime(
            FunctionKey(name), settings, scheduling_policy("immediate", settings), LearnedLatency(), signature=signature
        )
        replica.functions[name] = runtime
        replica.directory.add(runtime)
        for instance, channel in self._channels[name]:
            runtime.instance_ready(instance, channel)

    async def _instance(self, name: str, number: int) -> tuple[Instance, UnixChannel]:
        ours, theirs = channel_pair()
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(SCRIPT), str(theirs.fileno()), str(self.diary), pass_fds=[theirs.fileno()]
        )
        theirs.close()
        self._processes.append(process)
        hello = asyncio.Event()
        instance_id = f"{name}-{number}"

        def lost(reason: str) -> None:
            for replica in self.replicas:
                replica.functions[name].instance_gone(instance_id, reason)

        channel = UnixChannel(ours, lambda _: hello.set(), lost)
        async with asyncio.timeout(60):
            await hello.wait()
        return Instance(instance_id, f"{name}.openfaas-fn", 1, "here", 1, 0, InstanceState.READY, 0.0), channel


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path / "diary")
    yield cluster
    await cluster.stop()
