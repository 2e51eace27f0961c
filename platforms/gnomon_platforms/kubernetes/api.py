"""One request to the API server.

`connections` brings what is hard about it: kubeconfig and service account, certificates, tokens that are renewed. Documents come
and go as plain JSON. Nothing is repeated here: urllib3's own retries are off, because a write that is repeated below its caller
may be carried out twice, and because a pause belongs to who can be stopped. Every request has a time limit for connecting and for
each read.

Calls block: they are made in threads.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from gnomon_core.errors import GnomonError
from gnomon_core.extras import how_to_install
from gnomon_platforms.kubernetes.asked import FENCED, UNANSWERED, Asked
from gnomon_platforms.kubernetes.errors import Refused, Unreachable, refused

if TYPE_CHECKING:
    from gnomon_platforms.kubernetes.connections import ApiServer

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 10.0
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_TYPE = "application/json"
PROGRAM = "gnomon"
"""As the API server knows us: what begins the User-Agent stands in `managedFields`."""
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_READ_BYTES = 64 * 1024
_OK = range(200, 300)

Document = dict[str, Any]
Fence = Callable[[], None]
"""Called right before a write is sent; does not return when it must not be."""


def connect(kubeconfig: Path | None = None, context: str | None = None) -> Api:
    """The API server that a kubeconfig names; without one that of KUBECONFIG, the cluster we run in, or ~/.kube/config.

    Raises:
        GnomonError: 501 `kubernetes_missing_client`; 503 `kubernetes_credentials`.

    """
    try:
        from gnomon_platforms.kubernetes import connections  # noqa: PLC0415 - urllib3 comes with the client

        if kubeconfig is None and "KUBECONFIG" not in os.environ and (here := connections.of_pod(SERVICE_ACCOUNT)) is not None:
            return Api(here)
        from kubernetes import client, config  # noqa: PLC0415 - it takes half a second, which a pod has no use for
    except ImportError:
        raise GnomonError(
            501, "kubernetes_missing_client", "The Kubernetes client is not installed.", how_to_install("kubernetes")
        ) from None
    except (OSError, ValueError) as error:
        raise _no_way(error) from None
    settings = client.Configuration()
    try:
        if kubeconfig is None and "KUBECONFIG" not in os.environ and SERVICE_ACCOUNT.exists():
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
        else:
            file = None if kubeconfig is None else str(kubeconfig)
            config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=file, context=context, client_configuration=settings, persist_config=False
            )
    except (config.ConfigException, OSError, ValueError, TypeError) as error:
        raise _no_way(error) from None
    settings.retries = False
    settings.connection_pool_maxsize = connections.POOL_CONNECTIONS
    settings.socket_options = connections.keepalive()
    return Api(connections.through(client.ApiClient(settings)))


def _no_way(error: Exception) -> GnomonError:
    return GnomonError(
        503,
        "kubernetes_credentials",
        f"There is no way to a cluster: {error}.".replace("..", "."),
        "Set KUBECONFIG to a file that kubectl works with.",
    )


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked. `timeout_s` bounds each read of the answer, `fence` is called right before it is sent."""

    method: str
    path: str
    query: Mapping[str, str] | None = None
    body: Document | None = None
    content_type: str = JSON_TYPE
    timeout_s: float = READ_TIMEOUT_S
    fence: Fence | None = None


class Api:
    """An API server. Calls block, and may be made from several threads."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self.asked = Asked()
        """What was, and how it was answered."""

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Document | None = None,
        content_type: str = JSON_TYPE,
        timeout_s: float = READ_TIMEOUT_S,
        fence: Fence | None = None,
    ) -> Document:
        """One request and its answer.

        Raises:
            Refused: the API server has said no.
            Unreachable: nobody has said anything, or not in time.

        """
        with self._answer(Request(method, path, query, body, content_type, timeout_s, fence)) as response:
            try:
                data = bytes(response.data)
            except Exception as error:
                raise _unreachable(error) from error
            if response.status not in _OK:
                raise refused(response.status, response.headers, data)
            try:
                document = json.loads(data)
            except ValueError as error:
                raise Unreachable(f"an answer that is not JSON, of {len(data)} bytes") from error
        if not isinstance(document, dict):
            raise Unreachable("an answer that is no object")
        return document

    @contextlib.contextmanager
    def stream(self, path: str, query: Mapping[str, str], *, silence_s: float) -> Iterator[Stream]:
        """A watch, until one side ends it. Silence of `silence_s` is the end of it, too.

        Raises:
            Refused, Unreachable: as `call`.

        """
        with self._answer(Request("GET", path, query, timeout_s=silence_s)) as response:
            if response.status not in _OK:
                try:
                    body = bytes(response.data)
                except Exception as error:
                    raise _unreachable(error) from error
                raise refused(response.status, response.headers, body)
            yield Stream(response)

    def close(self) -> None:
        """Close what is kept open."""
        self._server.pool.clear()

    @contextlib.contextmanager
    def _answer(self, request: Request) -> Iterator[Any]:
        import urllib3  # noqa: PLC0415 - as above

        server, headers = self._server, {"Accept": JSON_TYPE, "User-Agent": PROGRAM}
        if (authorization := server.authorization()) is not None:
            headers["Authorization"] = authorization
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        query = f"?{urlencode(request.query)}" if request.query else ""
        try:
            if request.fence is not None:
                request.fence()
        except GnomonError:
            self.asked.count(request.method, request.path, FENCED)
            raise
        try:
            response = server.pool.request(
                request.method,
                f"{server.url}{request.path}{query}",
                body=None if request.body is None else json.dumps(request.body),
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=request.timeout_s),
                retries=False,
                preload_content=False,
            )
        except Exception as error:
            self.asked.count(request.method, request.path, UNANSWERED)
            raise _unreachable(error) from error
        self.asked.count(request.method, request.path, int(response.status))
        try:
            yield response
        finally:
            # A connection whose answer was read to its end is back in the pool already; any other is closed.
            response.close()


class Stream:
    """The answer of a watch. One thread reads it; any thread may end it."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def read(self) -> bytes:
        """What has come, at least a byte; nothing at the end.

        Raises:
            Unreachable: it broke off, or there was silence for too long.

        """
        try:
            return bytes(self._response.read1(_READ_BYTES))
        except Exception as error:
            # Also what http.client raises when it is ended in the midst of a read.
            raise Unreachable(f"{type(error).__name__}: {error}") from error

    def end(self) -> None:
        """Let the reader find the end, now."""
        with contextlib.suppress(Exception):  # it has ended by itself meanwhile
            self._response.shutdown()


def _unreachable(error: Exception) -> Exception:
    """Whatever urllib3 and ssl raise when there is no whole answer; what is none of that goes on as it is."""
    import urllib3  # noqa: PLC0415 - comes with the client

    if isinstance(error, urllib3.exceptions.HTTPError | OSError):
        return Unreachable(f"{type(error).__name__}: {error}")
    return error


__all__ = ["Api", "Document", "Fence", "Refused", "Stream", "Unreachable", "connect"]
