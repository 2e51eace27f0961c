"""`POST /async-function/{name}[/path]`: check, store, and only then answer 202 with the call's id.

`X-Gnomon-Deadline-Ms` limits each attempt, as it limits the only attempt of a synchronous call.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, parse_key
from gnomon_gateway.api.requests import Handlers, read_body
from gnomon_gateway.asynchronous.callbacks import Callbacks
from gnomon_gateway.asynchronous.calls import Call, Headers, take_deadline
from gnomon_gateway.asynchronous.queue import AsyncQueue
from gnomon_gateway.functions.service import unknown_function
from gnomon_gateway.http.headers import HOP_BY_HOP

MAX_HEADER_BYTES = 32 * 1024
_CALL_ID = re.compile(r"[!-~]{1,128}")
# Headers for this connection or for the gateway, which are not passed to the function.
_OURS = {"content-length", "expect", "x-call-id", "x-callback-url", "x-start-time"}
_NOT_KEPT = frozenset(_OURS | {name.decode() for name in HOP_BY_HOP})


class AsyncEndpoint:
    """The handlers of asynchronous invocation. `now` gives seconds since 1970."""

    def __init__(
        self, queue: AsyncQueue, callbacks: Callbacks, exists: Callable[[FunctionKey], bool], now: Callable[[], float]
    ) -> None:
        self._queue = queue
        self._callbacks = callbacks
        self._exists = exists
        self._now = now

    def handlers(self) -> Handlers:
        return {"/async-function/{name}": {"POST": self.accept}, "/async-function/{name}/{rest:path}": {"POST": self.accept}}

    async def accept(self, request: Request) -> Response:
        function = parse_key(request.path_params["name"])
        if not self._exists(function):
            raise unknown_function(function)
        callback_url = request.headers.get("x-callback-url", "").strip()
        if callback_url:
            self._callbacks.check(callback_url)
        # Validated here and read again at each attempt: an invalid deadline must be refused now, not in the background.
        take_deadline(request.headers.items())
        # Before the body is read, which may be large; `submit` checks again with its size.
        self._queue.check_room()
        body = await read_body(request, self._queue.limits.body_bytes)
        accepted_at = self._now()
        call_id = _call_id(request)
        # Nanoseconds, as OpenFaaS's gateway writes this header.
        start_time = str(int(accepted_at * 1e9))
        call = Call(
            call_id=call_id,
            function=function,
            path=_path_below(request.scope["raw_path"]),
            query=request.scope["query_string"].decode("latin-1"),
            headers=(*_kept_headers(request), ("x-call-id", call_id), ("x-start-time", start_time)),
            body_bytes=len(body),
            callback_url=callback_url,
            accepted_at=accepted_at,
        )
        await self._queue.submit(call, body)
        return Response(status_code=202, headers={"X-Call-Id": call_id, "X-Start-Time": start_time})


def _path_below(raw_path: bytes) -> str:
    """The path after the function's name, still percent-encoded: a decoded line break could inject a header."""
    return "/" + raw_path.decode("latin-1").split("/", 3)[3] if raw_path.count(b"/") > 2 else "/"  # noqa: PLR2004 - /a/name/…


def _call_id(request: Request) -> str:
    """The caller's own call id if it is valid, else a new one."""
    given = request.headers.get("x-call-id", "")
    return given if _CALL_ID.fullmatch(given) else str(uuid.uuid4())


def _kept_headers(request: Request) -> Headers:
    dropped = _NOT_KEPT | {name.strip().lower() for name in request.headers.get("connection", "").split(",")}
    kept = [(name, value) for name, value in request.headers.items() if name not in dropped]
    if sum(len(name) + len(value) for name, value in kept) > MAX_HEADER_BYTES:
        raise GnomonError(
            431, "headers_too_large", f"The headers have more than {MAX_HEADER_BYTES} bytes.", "Send them in the body."
        )
    return kept
