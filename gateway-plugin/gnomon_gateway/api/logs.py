"""`/system/logs`: a function's log, one JSON object a line; with `follow`, also each new line."""

from __future__ import annotations

import asyncio
import json

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gnomon_core.clock import parse_time_s, rfc3339
from gnomon_core.functions import parse_key
from gnomon_core.interfaces import LogLine, LogQuery
from gnomon_gateway.api.control import Control
from gnomon_gateway.api.requests import Handlers, flag_in_query, invalid_query, namespace_in_query
from gnomon_gateway.functions.logs import LineSource, Logs
from gnomon_gateway.functions.service import unknown_function

MEDIA_TYPE = "application/x-ndjson"


class LogRoutes:
    """The handler of logs."""

    def __init__(self, control: Control) -> None:
        self._functions = control.functions
        self._logs = Logs(control.logs, control.kept_logs)

    def handlers(self) -> Handlers:
        return {"/system/logs": {"GET": self.read}}

    async def read(self, request: Request) -> Response:
        query, follow = _read_query(request)
        if self._functions.status(query.function) is None:
            raise unknown_function(query.function)
        if follow:
            return LineStream(self._logs.follow(query))
        return Response(b"".join(map(_encode, await self._logs.lines(query))), media_type=MEDIA_TYPE)


class LineStream(Response):
    """A response of log lines, each sent at once, until the source ends or the client disconnects."""

    media_type = MEDIA_TYPE

    def __init__(self, follower: LineSource) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._follower = follower

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        leaving = asyncio.create_task(self._end_when_the_client_leaves(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while (line := await self._follower.next_line()) is not None:
                await send({"type": "http.response.body", "body": _encode(line), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            leaving.cancel()
            self._follower.close()

    async def _end_when_the_client_leaves(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._follower.close()


def _encode(line: LogLine) -> bytes:
    document = {
        "name": line.function.name,
        "namespace": line.function.namespace,
        "instance": line.instance,
        "timestamp": rfc3339(line.at),
        "text": line.text,
    }
    return json.dumps(document).encode() + b"\n"


def _read_query(request: Request) -> tuple[LogQuery, bool]:
    parameters = request.query_params
    name = parameters.get("name", "")
    if not name:
        raise invalid_query("name is missing", "Name a function: ?name=fn.")
    try:
        tail = int(parameters.get("tail") or 0)
    except ValueError:
        raise invalid_query(f"tail is {parameters['tail'][:100]!r}", "Use a whole number; 0 or less means all lines.") from None
    query = LogQuery(
        function=parse_key(name, namespace_in_query(request)),
        instance=parameters.get("instance", ""),
        since=_read_time(parameters.get("since", "")),
        tail=max(tail, 0),
    )
    return query, flag_in_query(request, "follow")


def _read_time(text: str) -> float | None:
    if not text:
        return None
    try:
        return parse_time_s(text, zone_needed=True)
    except ValueError:
        raise invalid_query(f"since is {text[:100]!r}", "Use RFC 3339, such as 2024-05-25T12:00:00Z.") from None
