"""Connections to an API server that are closed also where it was killed while they were made.

    connect ▶ the server is killed: reset ▶ wrapped for TLS: refused ▶ urllib3 closes what it has

By then Python has taken the socket into a new one, and leaves that open where a reset is found before the handshake begins (seen
in 3.11): it keeps its descriptor until the garbage collector finds it, which may be minutes later. The frames of the error have
it. A server that restarts meets all who watch, at once, with what nobody has accepted yet.
"""

from __future__ import annotations

from ssl import SSLSocket
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from urllib3.connection import HTTPSConnection
from urllib3.connectionpool import HTTPSConnectionPool

if TYPE_CHECKING:
    from kubernetes.client import ApiClient


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


def closing(client: ApiClient) -> ApiClient:
    """Let this client's connections be such ones."""
    manager: Any = client.rest_client.pool_manager
    manager.pool_classes_by_scheme = {**manager.pool_classes_by_scheme, "https": Connections}
    return client
