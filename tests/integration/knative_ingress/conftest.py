"""A real HAProxy, and real servers behind it: what a request meets on its way, without a cluster."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from gnomon_platforms.knative.ingress.backends import Endpoint, Gateway, ServiceFacts, ServicePort, SliceFacts, StillView
from gnomon_platforms.knative.ingress.config import Binds, Limits
from gnomon_platforms.knative.ingress.model import Ingress
from gnomon_platforms.knative.ingress.proxy import Proxy, ProxyOptions
from gnomon_platforms.knative.ingress.routing import routing

NAMESPACE = "default"


@pytest.fixture(scope="session", autouse=True)
def haproxy() -> str:
    found = shutil.which("haproxy")
    if found is None:
        pytest.skip("there is no haproxy here: apt-get install haproxy")
    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for the path of a socket."""
    made = Path(tempfile.mkdtemp(prefix="gnomon-"))
    yield made
    shutil.rmtree(made)


@dataclass
class Setup:
    """A proxy, and the services it may lead to."""

    proxy: Proxy
    binds: Binds
    services: dict[tuple[str, str], ServiceFacts] = field(default_factory=dict)
    slices: dict[str, SliceFacts] = field(default_factory=dict)
    revisions: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    certificates: dict[tuple[str, str], str] = field(default_factory=dict)
    gateway: Gateway = field(default_factory=Gateway)

    def serve_at(self, name: str, *ports: int, h2c: bool = False) -> None:
        """Let a Service have these endpoints on this machine: its port 80 is each of them."""
        key = (NAMESPACE, name)
        self.services[key] = ServiceFacts(key, (ServicePort("http", 80, h2c),))
        for slice_name in [one for one in self.slices if one.startswith(f"{name}/")]:
            del self.slices[slice_name]
        for port in ports:
            self.slices[f"{name}/{port}"] = SliceFacts(key, (("http", port),), ("127.0.0.1",))

    def view(self) -> StillView:
        """All of it, as it is now."""
        return StillView(
            dict(self.services), tuple(self.slices.values()), dict(self.revisions), dict(self.certificates), self.gateway
        )

    async def apply(self, *ingresses: Ingress) -> None:
        """Serve these, and nothing else."""
        await self.proxy.apply(routing(ingresses, self.view()))

    def client(self, bind: str) -> aiohttp.ClientSession:
        """A client that takes every host to be at this socket."""
        return aiohttp.ClientSession(connector=aiohttp.UnixConnector(bind.removeprefix("unix@")))


@pytest.fixture
async def setup(folder: Path) -> AsyncIterator[Setup]:
    binds = Binds(*(f"unix@{folder}/{name}.sock" for name in ("http", "https", "local", "probe-http", "probe-local")))
    proxy = Proxy(ProxyOptions(folder / "proxy", binds=binds, limits=Limits(old_worker_s=30.0)))
    yield Setup(proxy, binds)
    await proxy.close()


@dataclass
class Backends:
    """Servers on ports of this machine, each with its name in its answers."""

    runners: list[web.AppRunner] = field(default_factory=list)
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def begin(self, name: str, *, delay_s: float = 0.0) -> int:
        """Begin one; its port. It answers its name, echoes WebSockets, and remembers the headers it was sent."""

        async def answer(request: web.Request) -> web.StreamResponse:
            self.seen.append((name, dict(request.headers)))
            self.asked.set()
            if request.headers.get("Upgrade", "").lower() == "websocket":
                return await self._echo(request, name)
            await asyncio.sleep(delay_s)
            return web.Response(text=name)

        application = web.Application()
        application.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.runners.append(runner)
        port: int = runner.addresses[0][1]
        return port

    @staticmethod
    async def _echo(request: web.Request, name: str) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(f"{message.data} {name}")
        return socket


@pytest.fixture
async def backends() -> AsyncIterator[Backends]:
    made = Backends()
    yield made
    for runner in made.runners:
        await runner.cleanup()


@pytest.fixture
def unused() -> Callable[[], Endpoint]:
    """An address where nobody listens."""

    def make() -> Endpoint:
        return Endpoint("127.0.0.1", 1 + secrets.randbelow(8))

    return make
