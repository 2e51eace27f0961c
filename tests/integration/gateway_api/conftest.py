"""The control application on a real server, in front of a FunctionService that keeps its functions in memory."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import aiohttp
import pytest
import uvicorn
from uvicorn.server import ServerState

from gnomon_core.clock import WallClock, utc_now_s
from gnomon_core.errors import conflict
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.interfaces import Usage
from gnomon_core.pairs import Pair
from gnomon_core.scaling import CreateBody, DecisionRecord
from gnomon_gateway.api.access import BasicAuth, Guard, host_rule
from gnomon_gateway.api.application import control_application
from gnomon_gateway.api.control import Control, Version
from gnomon_gateway.api.models import ModelRoutes
from gnomon_gateway.api.namespaces import Namespaces
from gnomon_gateway.api.requests import Handlers
from gnomon_gateway.api.secrets import Secrets
from gnomon_gateway.asynchronous.callbacks import CallbackHosts, Callbacks
from gnomon_gateway.asynchronous.calls import CallStore, FunctionAnswer, Invocation
from gnomon_gateway.asynchronous.endpoint import AsyncEndpoint
from gnomon_gateway.asynchronous.queue import AsyncCollector, AsyncLimits, AsyncQueue, retry_rule_of
from gnomon_gateway.functions.logs import LogBook
from gnomon_gateway.functions.service import FunctionDetail, FunctionStatus, KnownPolicies, unknown_function
from gnomon_gateway.metrics import (
    ControlCounters,
    FunctionMetrics,
    FunctionReading,
    GatewayCollector,
    Histogram,
    MetricsPage,
    PairMetrics,
)
from gnomon_gateway.store import SqliteStore
from gnomon_profiler.repository import DirectoryRepository
from tests.waiting import until

USER, PASSWORD = "admin", "s3cret"
PAIR = Pair(4, (1, 2), (0, 1, 1, 2))


class MemoryFunctions:
    """A FunctionService without instances: what is wanted is there at once."""

    def __init__(self) -> None:
        self.deployed: dict[FunctionKey, FunctionStatus] = {}
        self.fault: Exception | None = None

    async def deploy(self, spec: FunctionSpec) -> None:
        if self.fault is not None:
            raise self.fault
        if spec.key in self.deployed:
            raise conflict("function_exists", f"{spec.key} exists.")
        wanted = spec.settings.scale.min
        self.deployed[spec.key] = FunctionStatus(spec, 1700000000.5, wanted, wanted)

    async def update(self, spec: FunctionSpec) -> None:
        self.deployed[spec.key] = replace(self._require(spec.key), spec=spec)

    async def remove(self, key: FunctionKey) -> None:
        self._require(key)
        del self.deployed[key]

    async def scale(self, key: FunctionKey, replicas: int) -> None:
        self.deployed[key] = replace(self._require(key), replicas=replicas, available_replicas=replicas)

    def status(self, key: FunctionKey, *, usage: bool = False) -> FunctionStatus | None:
        status = self.deployed.get(key)
        return replace(status, usage=Usage(1.5, 1 << 20)) if status is not None and usage else status

    def detail(self, key: FunctionKey) -> FunctionDetail | None:
        status = self.deployed.get(key)
        if status is None:
            return None
        known = ("fn.openfaas-fn", 3, "node-1")
        body = Instance("b-1", *known, 2, 100, InstanceState.READY, 0.0, busy=True, in_flight=8, partner="s-1", pair=PAIR)
        shadow = Instance("s-1", *known, 4, 40, InstanceState.READY, 0.0, kind=InstanceKind.SHADOW, partner="b-1", pair=PAIR)
        return FunctionDetail(status, "adaptive", (body, shadow), {"b-1": 8}, PairMetrics())

    def list(self, namespace: str) -> Sequence[FunctionStatus]:
        return [self.deployed[key] for key in sorted(self.deployed) if key.namespace == namespace]

    def decisions(self, key: FunctionKey, limit: int) -> Sequence[DecisionRecord] | None:
        if key not in self.deployed:
            return None
        records = [DecisionRecord(1700000000.0 + n, "fixed", n, (CreateBody(2),), f"reason {n}") for n in range(5)]
        return records[::-1][:limit]

    def policies(self) -> KnownPolicies:
        return KnownPolicies({"fixed": "A fixed number.", "kpa": "Knative's."}, {"immediate": "At once."})

    def _require(self, key: FunctionKey) -> FunctionStatus:
        if key not in self.deployed:
            raise unknown_function(key)
        return self.deployed[key]


async def echo(invocation: Invocation) -> FunctionAnswer:
    return FunctionAnswer(200, (("Content-Type", "text/plain"),), invocation.body)


@dataclass
class Gateway:
    """The server that runs, what is behind it, and a client that talks to it."""

    url: str
    port: int
    client: aiohttp.ClientSession
    functions: MemoryFunctions
    logs: LogBook
    namespaces: Namespaces
    queue: AsyncQueue
    callbacks: Callbacks
    healthy: list[bool]
    server: ServerState

    async def call(self, method: str, path: str, json: Any = None, **more: Any) -> tuple[int, Any]:
        """Status and body, read as JSON where it is JSON."""
        async with self.client.request(method, self.url + path, json=json, **more) as response:
            if "json" in response.headers.get("Content-Type", "") and "ndjson" not in response.headers["Content-Type"]:
                return response.status, await response.json()
            return response.status, await response.text()

    async def deploy(self, name: str, **fields: Any) -> None:
        status, body = await self.call(
            "POST", "/system/functions", {"service": name, "image": "functions/alpine:latest", **fields}
        )
        assert status == 202, body

    async def raw(self, request: bytes) -> bytes:
        """The server's answer to these bytes until it closes the connection or sends nothing more."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        async with asyncio.timeout(60):
            answer = await reader.read(65536)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                while chunk := await reader.read(65536):
                    answer += chunk
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return answer


StartGateway = Callable[..., Awaitable[Gateway]]


@pytest.fixture
async def start_gateway(tmp_path: Path) -> AsyncIterator[StartGateway]:
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            *,
            auth: BasicAuth | None = None,
            invoke: Callable[[Invocation], Awaitable[FunctionAnswer]] = echo,
            callbacks: Callbacks | None = None,
            limits: AsyncLimits | None = None,
            more: Handlers = MappingProxyType({}),
        ) -> Gateway:
            callbacks = callbacks or Callbacks(CallbackHosts([]), Random(1))
            return await stack.enter_async_context(_running(tmp_path, auth, invoke, callbacks, limits=limits, more=more))

        yield start


@pytest.fixture
async def gateway(start_gateway: StartGateway) -> Gateway:
    return await start_gateway()


@contextlib.asynccontextmanager
async def _running(
    folder: Path, auth: BasicAuth | None, invoke: Any, callbacks: Callbacks, *, limits: AsyncLimits | None, more: Handlers
) -> AsyncIterator[Gateway]:
    functions, counters, clock = MemoryFunctions(), ControlCounters(), WallClock()
    store = SqliteStore(folder / "gnomon.db")
    logs = LogBook(utc_now_s)
    queue = AsyncQueue(
        CallStore(folder / "calls.db"),
        invoke,
        callbacks,
        lambda key: _rule(functions, key),
        clock=clock,
        rng=Random(1),
        limits=limits,
    )
    await queue.start()
    healthy = [True]
    namespaces = Namespaces(store)
    page = MetricsPage(
        [GatewayCollector(lambda: _readings(functions), counters, Histogram((0.001,))), AsyncCollector(queue, callbacks)]
    )
    control = Control(
        functions=functions,
        namespaces=namespaces,
        secrets=Secrets(store),
        logs=logs,
        metrics=page,
        version=Version("0.1.0", "abc123"),
        now_s=clock.now_s,
        healthy=lambda: healthy[0],
    )
    endpoint = AsyncEndpoint(queue, callbacks, lambda key: key in functions.deployed, utc_now_s)
    models = ModelRoutes(DirectoryRepository(folder / "models"), folder / "uploads")
    # `more` may have routes of models of its own.
    parts = [endpoint.handlers(), {**models.handlers(), **more}]
    application = control_application(control, Guard(host_rule("127.0.0.1"), auth), counters, parts)
    # Made with its protocol's number: asyncio turns Nagle's algorithm off only where it sees that one, and each answer would wait
    # 40 ms for an acknowledgement otherwise.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        async with _serving(application, listener) as server, aiohttp.ClientSession() as client:
            url = f"http://127.0.0.1:{port}"
            yield Gateway(url, port, client, functions, logs, namespaces, queue, callbacks, healthy, server)
            logs.close()
    await queue.stop()
    store.close()


@contextlib.asynccontextmanager
async def _serving(application: Any, listener: socket.socket) -> AsyncIterator[ServerState]:
    """uvicorn's protocol on a listener of ours, without the tenths of a second that its own loop takes to start and end."""
    config = uvicorn.Config(application, log_config=None, lifespan="off", http="httptools", ws="none")
    config.load()
    state = ServerState()
    protocol = config.http_protocol_class
    server = await asyncio.get_running_loop().create_server(
        lambda: protocol(config=config, server_state=state, app_state={}),  # type: ignore[call-arg]
        sock=listener,  # type: ignore[call-arg]
    )
    yield state
    server.close()
    for connection in tuple(state.connections):
        connection.shutdown()
    await until(lambda: not state.connections and not state.tasks)


def _rule(functions: MemoryFunctions, key: FunctionKey) -> Any:
    status = functions.status(key)
    return retry_rule_of(key, status.spec.annotations if status is not None else {})


def _readings(functions: MemoryFunctions) -> list[FunctionReading]:
    return [
        FunctionReading(str(key), status.spec.settings, FunctionMetrics(), status.replicas, status.available_replicas, 0, 0, 0, 0)
        for key, status in functions.deployed.items()
    ]
