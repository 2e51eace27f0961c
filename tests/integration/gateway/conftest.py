"""A running server with real instances, and a client that speaks HTTP/1.1 by hand."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_gateway.api.invocation import GatewayApp
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.function_runtime import FunctionDirectory, FunctionRuntime, InstanceOwner
from gnomon_gateway.http.connection import Limits
from gnomon_gateway.http.server import GatewayServer
from gnomon_gateway.scheduling.registry import scheduling_policy
from gnomon_platforms.local.channel import UnixChannel, channel_pair
from tests.waiting import TIMEOUT_S

SCRIPT = Path(__file__).with_name("scripted_instance.py")
MODEL = ModelSignature("doubler", "7", (TensorSpec("x", "FP32", (2,)),), (TensorSpec("y", "FP32", (2,)),))
MAX_BODY_BYTES = 1_000_000


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


async def not_here(scope: Any, receive: Any, send: Any) -> None:
    """Stands for the control application."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body) + 7).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"control" + body})


class Response:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class Connection:
    """A client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> Response:
        async with asyncio.timeout(TIMEOUT_S):
            text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status, *lines = text.rstrip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return Response(int(status.split()[1]), headers, b"")

    async def answer(self, *, bodiless: bool = False) -> Response:
        async with asyncio.timeout(TIMEOUT_S):
            response = await self.head()
            if "transfer-encoding" in response.headers:
                while chunk := await self.chunk():
                    response.body += chunk
            elif not bodiless and "content-length" in response.headers:
                response.body = await self.reader.readexactly(int(response.headers["content-length"]))
        return response

    async def chunk(self) -> bytes:
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size)
        await self.reader.readexactly(2)
        return data

    async def call(
        self, path: str, body: bytes = b"", method: str = "POST", headers: dict[str, str] | None = None, *, bodiless: bool = False
    ) -> Response:
        lines = [f"{method} {path} HTTP/1.1", "Host: gnomon", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        await self.send("\r\n".join([*lines, "", ""]).encode() + body)
        return await self.answer(bodiless=bodiless)

    async def closed(self) -> bool:
        """True if the server ends the connection; what it still sends is dropped."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                while await self.reader.read(65536):
                    pass
            except ConnectionResetError:
                pass
        return True

    def close(self) -> None:
        self.writer.close()


class Owner(InstanceOwner):
    """Records what the functions' runtimes ask for."""

    def __init__(self) -> None:
        self.demands: list[str] = []
        self.frozen: list[str] = []

    def instance_needed(self, function: str) -> None:
        self.demands.append(function)

    def instance_frozen(self, instance_id: str, reason: str) -> None:
        del reason
        self.frozen.append(instance_id)


class Gateway:
    """The server, its functions, their instances."""

    def __init__(self, diary: Path) -> None:
        self.diary = diary
        self.functions: dict[str, FunctionRuntime] = {}
        self.directory = FunctionDirectory()
        self.owner = Owner()
        self.server: GatewayServer
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._channels: list[UnixChannel] = []
        self._connections: list[Connection] = []

    async def start(self, limits: Limits | None = None) -> None:
        self.server = GatewayServer(GatewayApp(self.directory, not_here, max_body_bytes=MAX_BODY_BYTES), port=0, limits=limits)
        await self.server.start()

    async def deploy(
        self,
        name: str = "f",
        instances: int = 1,
        policy: str = "immediate",
        signature: ModelSignature | None = None,
        **settings: Any,
    ) -> FunctionRuntime:
        values = Settings(**settings)
        runtime = self.functions[name] = FunctionRuntime(
            FunctionKey(name),
            values,
            scheduling_policy(policy, values),
            LearnedLatency(),
            signature=signature,
            owner=self.owner,
        )
        self.directory.add(runtime)
        for _ in range(instances):
            await self.add_instance(name)
        return runtime

    async def add_instance(self, name: str = "f") -> str:
        ours, theirs = channel_pair()
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(SCRIPT), str(theirs.fileno()), str(self.diary), pass_fds=[theirs.fileno()]
        )
        theirs.close()
        hello = asyncio.Event()
        instance_id = f"i{len(self._processes) + 1}"
        runtime = self.functions[name]
        channel = UnixChannel(ours, lambda _: hello.set(), lambda reason: runtime.instance_gone(instance_id, reason))
        self._processes[instance_id] = process
        self._channels.append(channel)
        async with asyncio.timeout(TIMEOUT_S):
            await hello.wait()
        runtime.instance_ready(Instance(instance_id, runtime.name, 1, "here", 1, 0, InstanceState.READY, 0.0), channel)
        return instance_id

    def signal(self, instance_id: str, number: int) -> None:
        os.kill(self._processes[instance_id].pid, number)

    async def connect(self) -> Connection:
        connection = Connection(*await asyncio.open_connection("127.0.0.1", self.server.port))
        self._connections.append(connection)
        return connection

    async def call(self, path: str, body: bytes = b"", method: str = "POST", headers: dict[str, str] | None = None) -> Response:
        """Send a request on a connection of its own."""
        connection = await self.connect()
        response = await connection.call(path, body, method, headers)
        connection.close()
        return response

    def release(self) -> None:
        """Let what executes `/held` come to its end, now and later."""
        self.diary.with_name("released").touch()

    def result_comes(self) -> None:
        """Take the first instance's result in this turn of the loop, which hears of nothing else meanwhile."""
        channel = self._channels[0]
        assert select.select([channel._fd], [], [], 10)[0]
        channel._readable()

    def executed(self) -> list[bytes]:
        return self.diary.read_bytes().splitlines() if self.diary.exists() else []

    async def stop(self) -> None:
        for connection in self._connections:
            connection.close()
        await self.server.stop()
        for runtime in self.functions.values():
            runtime.close()
        for channel in self._channels:
            channel.close()
        for process in self._processes.values():
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
            await process.wait()


@pytest.fixture
async def gateway(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Gateway]:
    gateway = Gateway(tmp_path / "diary")
    await gateway.start(getattr(request, "param", None))
    yield gateway
    await gateway.stop()


@pytest.fixture
def model() -> ModelSignature:
    return MODEL
