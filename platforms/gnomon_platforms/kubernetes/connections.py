"""Connections to an API server: a connection pool, the server's URL, and the Authorization header.

    in a pod       address, CA and token from the mounted service account: nothing but urllib3 is imported
    elsewhere      the kubeconfig, by the official client, which supports certificates, exec plug-ins and OIDC

Importing the official client takes 0.6 s of a core and 23 MB, most of it for code that is never called: too much for a pod that
requests a twentieth of a core and must become ready in time.

`Connection` fixes a leak of file descriptors if the server is killed while a connection is made:

    connect ▶ the server is killed: reset ▶ wrapped for TLS: refused ▶ urllib3 closes the socket that it knows

By then Python has moved the file descriptor to a new SSLSocket, and leaves that open if it finds a reset before the handshake
(seen in 3.11), until the garbage collector finds it, maybe minutes later. The traceback's frames still refer to the SSLSocket.
When a server restarts, this can happen to all watches at once.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLSocket
from traceback import walk_tb
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies

from urllib3 import PoolManager
from urllib3.connection import HTTPSConnection
from urllib3.connectionpool import HTTPSConnectionPool

from gnomon_core.addresses import host_and_port

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

POOL_CONNECTIONS = 16
KEEPALIVE_S, KEEPALIVE_PROBES = 10, 3
HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
REREAD_TOKEN_S = 60.0
"""Seconds between reads of the token file: the kubelet renews a token after four fifths of its lifetime of an hour or more."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """An API server's address and connection pool. `authorization` returns the Authorization header, None for none."""

    pool: PoolManager
    url: str
    authorization: Callable[[], str | None]


class Connection(HTTPSConnection):
    """An HTTPS connection that leaks no file descriptor if it cannot be established."""

    def connect(self) -> None:
        """Connect.

        Raises:
            OSError, urllib3.exceptions.HTTPError: as urllib3 does.

        """
        try:
            super().connect()
        except BaseException as error:
            for frame, _ in walk_tb(error.__traceback__):
                left = frame.f_locals.get("self")
                if isinstance(left, SSLSocket):
                    left.close()
            raise


class Connections(HTTPSConnectionPool):
    """A pool of `Connection`s."""

    ConnectionCls = Connection


def through(client: ApiClient) -> ApiServer:
    """The server of an official client, with its connection pool and credentials."""
    settings, pool = client.configuration, client.rest_client.pool_manager

    def authorization() -> str | None:
        token: str | None = settings.get_api_key_with_prefix("BearerToken", alias="authorization")
        return token

    return ApiServer(closing(pool), str(settings.host), authorization)


def of_pod(token: Path, environment: Mapping[str, str] = os.environ) -> ApiServer | None:
    """The API server of the cluster that this process runs in as a pod. The CA is next to the service account's `token`.

    None outside of a pod, or if a proxy is configured, which only the official client supports.

    Raises:
        OSError: the service account's files cannot be read.

    """
    host, port = environment.get(HOST), environment.get(PORT)
    if not host or not port or not token.exists() or {"https", "all"} & getproxies().keys():
        return None
    authority = str(token.parent / "ca.crt")
    Path(authority).open("rb").close()
    pool = PoolManager(
        cert_reqs="CERT_REQUIRED", ca_certs=authority, retries=False, maxsize=POOL_CONNECTIONS, socket_options=keepalive()
    )
    return ApiServer(closing(pool), f"https://{host_and_port(host, int(port))}", _Token(token))


class _Token:
    """A bearer token from a file, read again every minute."""

    def __init__(self, path: Path) -> None:
        self._path, self._read_s = path, time.monotonic()
        self._text = self._read()

    def __call__(self) -> str:
        if time.monotonic() - self._read_s >= REREAD_TOKEN_S:
            self._text, self._read_s = self._read(), time.monotonic()
        return self._text

    def _read(self) -> str:
        return f"Bearer {self._path.read_text().strip()}"


def closing(pool: PoolManager) -> PoolManager:
    """Make a pool create `Connection`s."""
    ways: Any = pool
    ways.pool_classes_by_scheme = {**ways.pool_classes_by_scheme, "https": Connections}
    return pool


def keepalive() -> list[tuple[int, int, int]]:
    """Socket options for TCP keep-alive: the kernel detects a dead peer within 40 s, whatever the read timeout is."""
    return [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES),
    ]
