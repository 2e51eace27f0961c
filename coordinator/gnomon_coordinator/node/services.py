"""The plugin's gRPC services, for the kubelet of this node: one socket to be found by, one to be asked on.

The services run on threads of gRPC's; what they do to volumes is done on the event loop, one request after the other, where
everything of this process lives. Messages are read and written by `csi`; gRPC only carries bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import grpc

from gnomon_coordinator.node import volumes as csi
from gnomon_coordinator.node.volumes import RefusedError, Volumes
from gnomon_core.protobuf import WireFormatError

THREADS = 4
PATIENCE_S = 30.0
"""The kubelet itself gives up after two minutes."""
END_S = 1.0

_LOG = logging.getLogger("gnomon.node")
Result = TypeVar("Result")
Answer = Callable[[bytes], bytes]


class Services:
    """Registration on one socket, Identity and Node on the other. Made on the event loop."""

    def __init__(self, node: str, volumes: Volumes, socket: Path, registration: Path) -> None:
        """`socket` is the driver's, `registration` the one in the kubelet's plugins_registry: both as the kubelet sees them."""
        self._node = node
        self._volumes = volumes
        self._socket = socket
        self._registration = registration
        self._loop = asyncio.get_running_loop()
        self._servers: list[grpc.Server] = []

    def start(self) -> None:
        """Serve, and then be found: a kubelet that has found us asks at once.

        Raises:
            OSError: a socket cannot be made.

        """
        identity = {
            "GetPluginInfo": _fixed(csi.plugin_info(importlib.metadata.version("gnomon"))),
            "GetPluginCapabilities": _fixed(csi.NOTHING),
            "Probe": _fixed(csi.ready(is_ready=True)),
        }
        node: dict[str, Answer] = {
            "NodeGetInfo": _fixed(csi.node_info(self._node)),
            "NodeGetCapabilities": _fixed(csi.NOTHING),
            "NodePublishVolume": self._publish,
            "NodeUnpublishVolume": self._unpublish,
        }
        self._serve(self._socket, {csi.IDENTITY: identity, csi.NODE: node})
        registration = {"GetInfo": _fixed(csi.registration(str(self._socket))), "NotifyRegistrationStatus": _told}
        self._serve(self._registration, {csi.REGISTRATION: registration})

    async def stop(self) -> None:
        """Be found no more, and finish what is under way."""
        for server, socket in zip(reversed(self._servers), (self._registration, self._socket), strict=True):
            await asyncio.to_thread(server.stop(END_S).wait)
            socket.unlink(missing_ok=True)
        self._servers.clear()

    def _serve(self, socket: Path, services: dict[str, dict[str, Answer]]) -> None:
        socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        # One that a predecessor has left. The kubelet watches the folder: a new socket is a new plugin.
        with contextlib.suppress(FileNotFoundError):
            socket.unlink()
        server = grpc.server(ThreadPoolExecutor(THREADS, thread_name_prefix="csi"))
        server.add_generic_rpc_handlers(tuple(_handler(name, methods) for name, methods in services.items()))
        try:
            server.add_insecure_port(f"unix:{socket}")
        except RuntimeError as error:
            raise OSError(f"{socket} cannot be listened on: {error}") from error
        server.start()
        self._servers.append(server)

    def _publish(self, data: bytes) -> bytes:
        wanted = csi.Publish.read(data)
        self._on_loop(lambda: self._volumes.publish(wanted))
        return csi.NOTHING

    def _unpublish(self, data: bytes) -> bytes:
        wanted = csi.Unpublish.read(data)
        self._on_loop(lambda: self._volumes.unpublish(wanted))
        return csi.NOTHING

    def _on_loop(self, act: Callable[[], Result]) -> Result:
        async def acting() -> Result:
            return act()

        return asyncio.run_coroutine_threadsafe(acting(), self._loop).result(PATIENCE_S)


def _handler(service: str, methods: dict[str, Answer]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        service, {name: grpc.unary_unary_rpc_method_handler(partial(_answered, answer)) for name, answer in methods.items()}
    )


def _answered(answer: Answer, data: bytes, context: grpc.ServicerContext) -> bytes:
    try:
        return answer(data)
    except RefusedError as error:
        _LOG.warning("%s: %s", error.code, error)
        context.abort(grpc.StatusCode[error.code], str(error))
    except WireFormatError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is no message: {error}")
    raise AssertionError("abort raises")


def _fixed(response: bytes) -> Answer:
    return lambda _: response


def _told(data: bytes) -> bytes:
    taken, reason = csi.registered(data)
    if taken:
        _LOG.info("the kubelet has registered %s", csi.NAME)
    else:
        _LOG.error("the kubelet refuses %s: %s", csi.NAME, reason)
    return csi.NOTHING
