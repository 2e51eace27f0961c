"""A blocking client of the API server: requests, watches, request counters, and the translation of its errors for users.

`connections` handles kubeconfig and service account, certificates and token renewal. Documents are plain JSON. There are no
retries here: urllib3's are off, because a write that is retried below its caller may be executed twice, and because only the
caller can cancel a back-off. Every request has a timeout for connecting and for each read.

Calls block: make them in threads.

`ApiMetrics` counts requests by verb, resource and outcome. A resize is a PATCH of `pods/resize`, a placement one of `pods`, a
scale-in one of `deployments/scale`. The outcome is the HTTP status, `fenced` for a write that the fence stopped after the
Lease was lost, or `unanswered` for a request without an answer. `cluster_figures` are the metrics of a process's use of the API
server, the same for gateway and autoscaler class:

    gnomon_leading                     1 for the replica that leads, which decides and writes
    gnomon_kubernetes_silence_seconds  seconds since the API server's last answer
    gnomon_kubernetes_requests_total   requests by verb, resource and outcome

`Refused` and `Unreachable` are the errors; `to_gnomon_error` translates them to a `GnomonError` with a hint.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from gnomon_core.errors import GnomonError
from gnomon_core.packaging import how_to_install

if TYPE_CHECKING:
    from prometheus_client import Metric

    from gnomon_platforms.kubernetes.connections import ApiServer


FENCED, UNANSWERED = "fenced", "unanswered"


class ApiMetrics:
    """Request counters by verb, resource and outcome. Thread-safe."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._last_answer_s = now_s()

    def count(self, verb: str, path: str, outcome: int | str) -> None:
        """Count a request to this path: its outcome is a status, `fenced` or `unanswered`."""
        with self._lock:
            self._counts[verb, resource_of(path), str(outcome)] += 1
            if isinstance(outcome, int):
                self._last_answer_s = self._now_s()

    @property
    def counts(self) -> Mapping[tuple[str, str, str], int]:
        """A copy of all counters."""
        with self._lock:
            return dict(self._counts)

    @property
    def silence_s(self) -> float:
        """Seconds since the API server's last answer; since the start if it never answered."""
        return self._now_s() - self._last_answer_s


def resource_of(path: str) -> str:
    """The resource of a path, without namespace and name: `pods`, `pods/resize`."""
    parts = path.strip("/").split("/")
    parts = parts[3:] if parts[0] == "apis" else parts[2:]
    if parts[:1] == ["namespaces"] and len(parts) > 2:  # noqa: PLR2004 - /namespaces/NAME is a namespace itself
        parts = parts[2:]
    return "/".join((*parts[:1], *parts[2:3]))


RBAC = "deploy/openfaas"
MAX_MESSAGE = 500
DENIED = "kubernetes_denied"
"""The error code for a quota that is exceeded, or a missing RBAC permission."""
_WRONG = range(400, 500)
_BUSY = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})


@dataclass(slots=True)
class Refused(Exception):  # noqa: N818 - what the API server has done
    """The API server's answer is not a 2xx. Nothing was changed; after a 5xx, that is uncertain.

    `reason` is the API's (`Conflict`, `AlreadyExists`, `Expired`, …), `causes` are the invalid fields.
    """

    status: int
    reason: str
    message: str
    causes: tuple[str, ...] = ()
    retry_after_s: float | None = None

    def __str__(self) -> str:
        return f"{self.status} {self.reason}: {self.message}"[:MAX_MESSAGE]

    @property
    def conflict(self) -> bool:
        """True if the object has changed since it was read, or exists already: read and decide again."""
        return self.status == HTTPStatus.CONFLICT

    @property
    def missing(self) -> bool:
        return self.status == HTTPStatus.NOT_FOUND

    @property
    def expired(self) -> bool:
        """True if a resourceVersion, or a list's continue token, is too old: list again."""
        return self.status == HTTPStatus.GONE

    @property
    def is_transient(self) -> bool:
        """True if the error is transient: a retry may succeed."""
        return self.status in _BUSY or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR


class Unreachable(Exception):  # noqa: N818 - what the API server is
    """No answer: the connection failed, broke off, or timed out. The request may have been executed."""


def refused(status: int, headers: Mapping[str, str], body: bytes) -> Refused:
    """Read an error answer: a Status document, or a proxy's text."""
    try:
        document: Any = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        text = body[:MAX_MESSAGE].decode("utf-8", "replace").strip()
        return Refused(status, "", text or "no reason was given", retry_after_s=_seconds(headers.get("Retry-After")))
    return from_status(document, status, headers.get("Retry-After"))


def from_status(document: dict[str, Any], status: int = 500, retry_after: object = None) -> Refused:
    """The error of a Status document, such as the one in a watch's ERROR event."""
    details = document.get("details") or {}
    causes = tuple(f"{cause.get('field', '')}: {cause.get('message', '')}".strip(": ") for cause in details.get("causes") or ())
    wait = retry_after if retry_after is not None else details.get("retryAfterSeconds")
    return Refused(
        int(document.get("code") or status),
        str(document.get("reason") or ""),
        str(document.get("message") or "no reason was given"),
        causes,
        _seconds(wait),
    )


def to_gnomon_error(error: Exception, action: str) -> GnomonError:
    """The error for the user. `action` completes "Kubernetes does not let Gnomon …".

    The codes: 503 `kubernetes_unreachable`, `kubernetes_busy`, `kubernetes_credentials`, `kubernetes_denied`; 409
    `kubernetes_conflict`; 404 `kubernetes_missing`; 400 `kubernetes_invalid`; 502 `kubernetes_failed`.
    """
    if not isinstance(error, Refused):
        return GnomonError(
            503,
            "kubernetes_unreachable",
            f"The API server cannot be reached to {action}: {error}"[:MAX_MESSAGE],
            "Check KUBECONFIG and the network; `gnomon doctor` says more. Functions that run go on serving.",
            retry_after_s=5.0,
        )
    message = f"Kubernetes does not let Gnomon {action}: {error.message}"[:MAX_MESSAGE]
    if error.is_transient:
        wait_s = error.retry_after_s or 5.0
        return GnomonError(503, "kubernetes_busy", message, "Try again in a moment.", retry_after_s=wait_s)
    status, code, hint = _meaning(error)
    return GnomonError(status, code, message, hint, retry_after_s=1.0 if error.conflict else None)


def is_permanent(error: GnomonError) -> bool:
    """True if the error is permanent, as far as its status says: a retry would be refused as well."""
    return error.status in _WRONG or error.code == DENIED


def _meaning(error: Refused) -> tuple[int, str, str]:
    """The status, code and hint for a permanent error."""
    meanings: dict[int, tuple[int, str, str]] = {
        HTTPStatus.UNAUTHORIZED: (
            503,
            "kubernetes_credentials",
            "The API server does not accept the token or certificate: check KUBECONFIG.",
        ),
        HTTPStatus.FORBIDDEN: (503, DENIED, f"Give it the role of {RBAC}: kubectl apply -k {RBAC}."),
        HTTPStatus.NOT_FOUND: (404, "kubernetes_missing", "It may just have been removed: list again."),
        HTTPStatus.CONFLICT: (409, "kubernetes_conflict", "Another client has changed the object: try again."),
    }
    invalid = 400, "kubernetes_invalid", "Correct " + ("; ".join(error.causes) or "what the message names") + "."
    meanings |= dict.fromkeys(
        (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.REQUEST_ENTITY_TOO_LARGE), invalid
    )
    if error.status == HTTPStatus.FORBIDDEN and "quota" in error.message:
        # An exceeded quota has the same status as a missing permission.
        return 503, DENIED, "Raise the quota."
    if error.status == HTTPStatus.FORBIDDEN and " denied the request" in error.message:
        # A webhook of the cluster (Gatekeeper) refuses with the same status.
        return 400, "kubernetes_invalid", "A policy of the cluster refuses this: change it as the policy says."
    return meanings.get(
        error.status, (502, "kubernetes_failed", f"The cause of status {error.status} is in the API server's log.")
    )


def _seconds(value: object) -> float | None:
    try:
        return max(0.0, float(str(value))) if value is not None else None
    except ValueError:
        return None


CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 10.0
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_TYPE = "application/json"
PROGRAM = "gnomon"
"""The User-Agent; the API server copies its first part to `managedFields` as the manager."""
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_READ_BYTES = 64 * 1024
_OK = range(200, 300)

Document = dict[str, Any]
Fence = Callable[[], None]
"""Called right before a write is sent; raises, or ends the process, if the write is no longer allowed."""


def connect(kubeconfig: Path | None = None, context: str | None = None) -> Api:
    """Connect to the API server of a kubeconfig; without one to that of KUBECONFIG, the pod's cluster, or ~/.kube/config.

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
        f"No cluster is configured: {error}.".replace("..", "."),
        "Set KUBECONFIG to a file that kubectl works with.",
    )


@dataclass(frozen=True, slots=True)
class Request:
    """A request. `timeout_s` bounds connecting and each read of the answer; `fence` is called right before it is sent."""

    method: str
    path: str
    query: Mapping[str, str] | None = None
    body: Document | None = None
    content_type: str = JSON_TYPE
    timeout_s: float = READ_TIMEOUT_S
    fence: Fence | None = None


class Api:
    """A client of one API server. Calls block. Thread-safe."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self.metrics = ApiMetrics()
        """The request counters."""

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
        """Send one request and return its answer.

        Raises:
            Refused: the answer is not a 2xx.
            Unreachable: there was no answer in time, or it is not a JSON object.

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
        """Open a watch, until one side ends it or nothing arrives for `silence_s`.

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
        """Close the pooled connections."""
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
            self.metrics.count(request.method, request.path, FENCED)
            raise
        try:
            response = server.pool.request(
                request.method,
                f"{server.url}{request.path}{query}",
                body=None if request.body is None else json.dumps(request.body),
                headers=headers,
                timeout=urllib3.Timeout(connect=min(CONNECT_TIMEOUT_S, request.timeout_s), read=request.timeout_s),
                retries=False,
                preload_content=False,
            )
        except Exception as error:
            self.metrics.count(request.method, request.path, UNANSWERED)
            raise _unreachable(error) from error
        self.metrics.count(request.method, request.path, int(response.status))
        try:
            yield response
        finally:
            # A connection whose answer was read to its end is already back in the pool; this closes any other.
            response.close()


class Stream:
    """The answer of a watch. One thread reads; any thread may end it."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def read(self) -> bytes:
        """Wait for data and return it; empty at the end of the watch.

        Raises:
            Unreachable: the connection broke off or timed out.

        """
        try:
            return bytes(self._response.read1(_READ_BYTES))
        except Exception as error:
            # `end` during a read makes http.client raise various errors.
            raise Unreachable(f"{type(error).__name__}: {error}") from error

    def end(self) -> None:
        """Shut the connection down, so that a blocked `read` returns or raises."""
        with contextlib.suppress(Exception):  # it has ended by itself meanwhile
            self._response.shutdown()


def _unreachable(error: Exception) -> Exception:
    """Translate an error of urllib3 or ssl to Unreachable; any other error is returned unchanged."""
    import urllib3  # noqa: PLC0415 - comes with the client

    if isinstance(error, urllib3.exceptions.HTTPError | OSError):
        return Unreachable(f"{type(error).__name__}: {error}")
    return error


def cluster_figures(metrics: ApiMetrics, *, leads: bool) -> Iterator[Metric]:
    """The metrics; `leads` is whether this process decides and writes."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - optional: processes with a metrics page have it

    requests = CounterMetricFamily(
        "gnomon_kubernetes_requests",
        "Requests to the API server by verb, resource and outcome: a status, fenced, or unanswered.",
        labels=["verb", "resource", "outcome"],
    )
    for labels, count in sorted(metrics.counts.items()):
        requests.add_metric(labels, count)
    yield GaugeMetricFamily("gnomon_leading", "1 if this process is the leader, which decides and writes.", value=leads)
    yield GaugeMetricFamily(
        "gnomon_kubernetes_silence_seconds", "Seconds since the API server's last answer.", value=metrics.silence_s
    )
    yield requests


__all__ = ["Api", "ApiMetrics", "Document", "Fence", "Refused", "Stream", "Unreachable", "cluster_figures", "connect"]
