"""Ways to an API server: a pool of connections, its address, and what each request says of who asks.

    in a pod       address, CA and token as the kubelet has put them there: nothing but urllib3 is imported
    elsewhere      what a kubeconfig names, by the official client, which knows certificates, plug-ins and OIDC

The official client takes 0.6 s of a core and 23 MB to import, most of them for what we never call: too much for a pod that is
promised a twentieth of a core and has to be well in time.

Connections are closed also where the server was killed while they were made:

    connect ▶ the server is killed: reset ▶ wrapped for TLS: refused ▶ urllib3 closes what it has

By then Python has taken the socket into a new one, and leaves that open where a reset is found before the handshake begins (seen
in 3.11): it keeps its descriptor until the garbage collector finds it, which may be minutes later. The frames of the error have
it. A server that restarts meets all who watch, at once, with what nobody has accepted yet.
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
"""The kubelet renews a token when four fifths of its time have passed, which is an hour or more."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """`authorization` is the header of that name for a request now; None for none."""

    pool: PoolManager
    url: str
    authorization: Callable[[], str | None]


class Connection(HTTPSConnection):
    """One that leaves nothing open where it cannot be made."""

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
    """A pool of these."""

    ConnectionCls = Connection


def through(client: ApiClient) -> ApiServer:
    """The server of an official client, with its connections."""
    settings, pool = client.configuration, client.rest_client.pool_manager

    def authorization() -> str | None:
        told: str | None = settings.get_api_key_with_prefix("BearerToken", alias="authorization")
        return told

    return ApiServer(closing(pool), str(settings.host), authorization)


def of_pod(token: Path, environment: Mapping[str, str] = os.environ) -> ApiServer | None:
    """The server of the cluster that this process is a pod of, which has its CA beside the token of the service account.

    None where it is none, or has to go through a proxy.

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
    """What a file has, read again now and then."""

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
    """Let a pool's connections be such ones."""
    ways: Any = pool
    ways.pool_classes_by_scheme = {**ways.pool_classes_by_scheme, "https": Connections}
    return pool


def keepalive() -> list[tuple[int, int, int]]:
    """Let the kernel notice a peer that has vanished while we wait: within 40 s, whatever the read timeout is."""
    return [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES),
    ]
