"""The application inside an image: the workload contract of OpenFaaS, and the batch channel, on one HTTP port.

    /, /anything         a single request: a batch of one, outside any gateway's queue
    POST /gnomon/batch   a BATCH frame of gnomon_core.wire, answered with a RESULT frame or a stream of frames; needs the token.
                         One of an older epoch than was seen is refused: the result bears the newest, its members 409 stale_epoch
    POST /gnomon/resize  a RESIZE frame: so many threads from the next batch on; needs the token
    GET /gnomon/pair     upgraded to gnomon-pair/1: a Shadow's work for the Body that asks (gnomon_runtime.pair); needs the token
    /_/health, /_/ready  200, or 503 from SIGTERM on

All routes feed one executor, with as many threads as the application executes batches at once (`hello`): mostly one, because
torch keeps a pool of threads for each thread that calls it. A batch whose time is over when its turn comes is not
run. A stream ends, and its generator is closed, when the caller closes the connection: that of a batch after the part that is
being made then, that of a request of its own when a part cannot be written. Between batches a Body listens to the coordinator of
its node, where its pod has that one's volume (`coordinator_link`).

    gunicorn --config python:gnomon_runtime.gunicorn_config 'gnomon_runtime.http_app:create_app()'
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import Any, NoReturn

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from gnomon_core.coordination import PAIR_PATH, PAIR_PROTOCOL
from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.launch import batch_token, check_batch_token
from gnomon_core.wire import Frame, Kind, Member, WireError, decode, encode, error_result, read_batch, stale_result
from gnomon_runtime.application import Application, ForBodies, launch_from, load_function
from gnomon_runtime.compute_thread import ComputeThread
from gnomon_runtime.coordinator_link import CoordinatorLink, log, socket_from

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
FRAME_TYPE = "application/octet-stream"
EXTENSION = "gnomon"
MAX_BODY_BYTES = 256 << 20
MAX_CORES = 1024
CONNECTION = "gunicorn.socket"


class Service:
    """The loaded function behind its executor, with one readiness and one drain."""

    def __init__(self, application: Application, clock: Callable[[], float] = time.monotonic) -> None:
        self._application = application
        self._clock = clock
        concurrency = int(application.hello().get("concurrency", 1))
        self._executor: ThreadPoolExecutor | ComputeThread = ThreadPoolExecutor(concurrency, "application")
        self._epoch = 0
        self._epochs = threading.Lock()
        self.draining = False

    def coordinate(self, environment: Mapping[str, str]) -> None:
        """Connect to this node's coordinator if the application is a Body. Must be called before the first batch."""
        take_orders = getattr(self._application, "take_orders", None)
        if take_orders is None:
            return
        path = socket_from(environment)
        if path is None:
            log("No volume of the node's coordinator is mounted: this Body works without Shadows.")
            return
        self._executor = ComputeThread("application")
        CoordinatorLink(path, self._executor, take_orders)

    def run(self, batch: Frame, *, of_queue: bool = True) -> Frame | Iterator[Frame]:
        """Run a batch in the executor. Batches outside any gateway's queue have no epoch."""
        answer = self._executor.submit(self._run, batch, self._clock(), of_queue).result()
        return answer if isinstance(answer, Frame) else self._stream(answer)

    def resize(self, cores: int) -> None:
        """Set the number of threads from the next batch on. Runs in the executor: torch's setting is per thread."""
        self._executor.submit(self._application.resize, cores).result()

    def serve_body(self, connection: socket.socket) -> None:
        """Serve the Body at the other end of a connection until either side ends."""
        assert isinstance(self._application, ForBodies)
        self._application.serve_body(connection, lambda task: self._executor.submit(task).result(), lambda: self.draining)

    @property
    def serves_bodies(self) -> bool:
        """True if the application works for Bodies."""
        return isinstance(self._application, ForBodies)

    def _run(self, batch: Frame, received_s: float, of_queue: bool) -> Frame | Iterator[Frame]:  # noqa: FBT001 - by submit
        if of_queue:
            with self._epochs:
                newest = self._epoch = max(self._epoch, batch.epoch)
            if batch.epoch < newest:
                return stale_result(batch, newest)
        if 0 < batch.budget_s < self._clock() - received_s:
            return error_result(batch, GnomonError(504, "deadline_exceeded", "The deadline passed before the batch's turn came."))
        return self._application.run(batch)

    def _stream(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        """Yield the frames, each made in the executor. Other batches may run between two frames."""
        try:
            while (frame := self._executor.submit(next, frames, None).result()) is not None:
                yield frame
        finally:
            close = getattr(frames, "close", None)
            if close is not None:
                self._executor.submit(close).result()


def create_app(environment: Mapping[str, str] = os.environ) -> Flask:
    """Create the Flask application for the function that the environment describes."""
    service = Service(load_function(launch_from(environment)))
    service.coordinate(environment)
    token = batch_token(environment)
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False
    max_body_bytes = int(environment.get("GNOMON_MAX_BODY_BYTES") or MAX_BODY_BYTES)
    app.extensions[EXTENSION] = service

    @app.get("/_/health")
    @app.get("/_/ready")
    def probe() -> Response:
        return Response("draining\n", 503) if service.draining else Response("ok\n")

    @app.post("/gnomon/batch")
    def batch() -> Response:
        check_batch_token(token, request.headers.get("Authorization", ""))
        return _framed(service.run(read_batch(_body(max_body_bytes))))

    @app.post("/gnomon/resize")
    def resize() -> Response:
        check_batch_token(token, request.headers.get("Authorization", ""))
        service.resize(_read_cores(_body(max_body_bytes)))
        return Response(status=204)

    @app.get(PAIR_PATH)
    def pair() -> Response:
        check_batch_token(token, request.headers.get("Authorization", ""))
        if not service.serves_bodies:
            raise GnomonError(404, "no_shadow", "This function is not a Shadow.", "Ask the function gnomon-shadow.")
        if request.headers.get("Upgrade", "") != PAIR_PROTOCOL or CONNECTION not in request.environ:
            raise GnomonError(426, "upgrade_required", f"The connection must be upgraded to {PAIR_PROTOCOL}.")
        return _Upgraded(service)

    @app.route("/", methods=METHODS, provide_automatic_options=False)
    @app.route("/<path:_path>", methods=METHODS, provide_automatic_options=False)
    def alone(_path: str = "") -> Response:
        member = Member(0, 1, _meta(), _body(max_body_bytes))
        return _plain(service.run(Frame(Kind.BATCH, members=(member,)), of_queue=False))

    @app.errorhandler(HTTPException)
    def refused(error: HTTPException) -> Response:
        code = (error.name or "error").lower().replace(" ", "_")
        return _error(GnomonError(error.code or 500, code, error.description or error.name))

    @app.errorhandler(GnomonError)
    def failed(error: GnomonError) -> Response:
        return _error(error)

    return app


class _Upgraded(Response):
    """A response that takes over the connection."""

    def __init__(self, service: Service) -> None:
        super().__init__(status=101)
        self._service = service

    def __call__(self, environ: Mapping[str, Any], _start_response: object) -> NoReturn:
        self._service.serve_body(environ[CONNECTION])
        # gunicorn treats StopIteration as the end of the connection, and writes no response.
        raise StopIteration


def _body(max_bytes: int) -> bytes:
    """The request's body. Flask's own limit would silently truncate a chunked body, so it is not used."""
    length = request.content_length or 0
    body: bytes = b"" if length > max_bytes else request.environ["wsgi.input"].read(max_bytes + 1)
    if max(length, len(body)) > max_bytes:
        raise GnomonError(413, "body_too_large", f"The body has more than {max_bytes} bytes.", "Send less, or a reference to it.")
    return body


def _read_cores(data: bytes) -> int:
    try:
        frame = decode(data)
        cores = frame.head_json().get("cores") if frame.kind is Kind.RESIZE else None
    except (WireError, ValueError) as error:
        raise bad_request("bad_frame", f"The body is no frame: {error}.", "Send one RESIZE frame.") from error
    if type(cores) is not int or not 1 <= cores <= MAX_CORES:
        raise bad_request(
            "bad_cores", "The RESIZE frame has no valid number of cores.", f"Send a RESIZE frame with 1 to {MAX_CORES}."
        )
    return cores


def _meta() -> bytes:
    r"""The request as a member's meta: `method\npath\nquery\nName: value\n…`."""
    path, _, query = request.environ["RAW_URI"].partition("?")
    if not path.startswith("/"):  # a proxy's absolute form: http://host/path
        path = "/" + path.partition("://")[2].partition("/")[2]
    lines = [request.method, path, query, *(f"{name}: {value}" for name, value in request.headers)]
    return "\n".join(lines).encode("latin-1", "replace")


def _framed(answer: Frame | Iterator[Frame]) -> Response:
    if isinstance(answer, Frame):
        return Response(encode(answer), content_type=FRAME_TYPE)
    connection: socket.socket | None = request.environ.get(CONNECTION)
    sent = takewhile(lambda _: not _has_disconnected(connection), answer)
    return _closing(answer, Response(map(encode, sent), content_type=FRAME_TYPE))


def _plain(answer: Frame | Iterator[Frame]) -> Response:
    """The HTTP response to a single request."""
    if isinstance(answer, Frame):
        (member,) = answer.members
        return Response(bytes(member.body), member.code, _headers(member.meta))
    (start,) = next(answer).members
    return _closing(answer, Response(_pieces(answer), start.code, _headers(start.meta)))


def _closing(frames: Iterator[Frame], response: Response) -> Response:
    """Close the handler's stream when the response ends, also if it ends in the middle."""
    response.call_on_close(getattr(frames, "close", lambda: None))
    return response


def _has_disconnected(connection: socket.socket | None) -> bool:
    """True if the client has disconnected: it sends nothing while it waits, so readable means closed."""
    try:
        return connection is not None and not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _pieces(frames: Iterator[Frame]) -> Iterator[bytes]:
    for frame in frames:
        if frame.kind is Kind.STREAM_END and frame.members:
            # A chunked response without its last chunk tells the client that the response is incomplete.
            raise ConnectionError("the handler failed in the middle of its answer")
        yield from (bytes(member.body) for member in frame.members)


def _headers(meta: bytes) -> list[tuple[str, str]]:
    lines = meta.decode("latin-1").split("\n")
    return [(name, value) for name, separator, value in (line.partition(": ") for line in lines) if separator]


def _error(error: GnomonError) -> Response:
    headers = error.headers()
    if error.status == 401:  # noqa: PLR2004 - unauthorized
        headers["WWW-Authenticate"] = "Bearer"
    return Response(error.body(), error.status, headers)
