"""A gateway replica as a process of its own: the real servers, the board in a folder, instances over HTTP.

    python -m tests.integration.ownership.gateway_process SETTINGS.json NAME

Tells its port when it serves. On SIGTERM it is not healthy any more, gives its functions away, answers everything and ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.settings import Settings
from gnomon_gateway.api.access import Guard, host_rule
from gnomon_gateway.api.invocation import GatewayApp
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.function_runtime import FunctionDirectory, FunctionRuntime
from gnomon_gateway.http.server import GatewayServer
from gnomon_gateway.replicas.gateway import SharedGateway
from gnomon_gateway.replicas.peers import read_peer_secret
from gnomon_gateway.scheduling.registry import scheduling_policy
from gnomon_platforms.kubernetes.channel import HttpChannel
from tests.ownership_boards import FileBoard

LINGER_S = 0.5
"""Whoever sends here looks at our health more often than that."""


class Process:
    """The replica. Its functions and their instances are in the settings."""

    def __init__(self, settings: dict[str, Any], name: str, session: aiohttp.ClientSession) -> None:
        self.healthy = True
        self.functions: dict[str, FunctionRuntime] = {}
        self.directory = FunctionDirectory()
        self.board = FileBoard(Path(settings["board"]))
        self._settings, self._session = settings, session
        for function, addresses in settings["functions"].items():
            self._deploy(function, addresses)
        app, guard = GatewayApp(self.directory, self._control), Guard(host_rule("127.0.0.1"), None)
        self.shared = SharedGateway(
            app, guard, self.directory, self.board, read_peer_secret(Path(settings["secret"])), identity=name
        )
        self.server = GatewayServer(self.shared.app, port=0)

    def _deploy(self, name: str, addresses: list[str]) -> None:
        values = Settings(deadline_s=self._settings["deadline_s"])
        runtime = FunctionRuntime(FunctionKey(name), values, scheduling_policy("immediate", values), LearnedLatency())
        self.functions[name] = runtime
        self.directory.add(runtime)
        for number, address in enumerate(addresses):
            self._reach(runtime, f"{name}-{number}", address)

    def _reach(self, runtime: FunctionRuntime, instance_id: str, address: str) -> None:
        def lost(reason: str) -> None:
            # Its address stays: it is reached anew, as a platform does that sees its pod.
            runtime.instance_gone(instance_id, reason)
            asyncio.get_running_loop().call_soon(self._reach, runtime, instance_id, address)

        channel = HttpChannel(self._session, address, self._settings["token"], values_s(runtime), lost)
        runtime.instance_ready(Instance(instance_id, runtime.name, 1, "here", 1, 0, InstanceState.READY, 0.0), channel)

    async def _control(self, scope: Any, receive: Any, send: Any) -> None:
        del receive
        status = 404 if scope["path"] != "/healthz" else 200 if self.healthy else 503
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


def values_s(runtime: FunctionRuntime) -> float:
    return runtime.settings.deadline_s


async def run(settings: dict[str, Any], name: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        process = Process(settings, name, session)
        await process.shared.start()
        await process.server.start()
        process.board.announce(name, process.shared.address)
        sys.stdout.write(f"{process.server.port}\n")
        sys.stdout.flush()
        await stop.wait()
        process.healthy = False
        await asyncio.sleep(LINGER_S)
        await process.shared.leave()
        await process.server.stop()
        process.board.withdraw(name)
        await process.shared.stop()
        for runtime in process.functions.values():
            runtime.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    uvloop.run(run(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2]))
