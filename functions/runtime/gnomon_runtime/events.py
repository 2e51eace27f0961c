r"""A handler's request and response: the Event and Context that it is given, and the member of a RESULT frame made of its result.

The names are those of OpenFaaS's python3-http template (`event.body`, `.headers`, `.method`, `.query`, `.path`), where they are
Flask's; the two mappings here answer the same questions without Flask, because a handler's own environment holds only the
handler's requirements.

A member's meta is `method\npath\nquery\nName: value\n…`. Nothing of it is read before the handler asks: a handler that looks only
at the body costs a fraction of a microsecond here.

A handler returns what OpenFaaS's python3-http template takes, `{"statusCode", "body", "headers"}`, and also plain texts, bytes,
JSON values and Flask's tuples `(body, status)`, `(body, headers)` and `(body, status, headers)`. A body that is a dict or a list
is sent as JSON, text as UTF-8, bytes as they are. Text is `text/plain` unless the handler says otherwise, where Flask says
`text/html`: a function that echoes its input must not turn it into a page.

The meta of a result is its headers, `Name: value\nName: value`. A header that would break a line is refused, so that no input of
a user becomes a header of its own.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote

from gnomon_core.errors import GnomonError
from gnomon_core.wire import Member, error_member


class Headers:
    """HTTP headers: case-insensitive look-up, and iteration over (name, value) pairs, as in Flask."""

    __slots__ = ("_by_name", "_pairs")

    def __init__(self, lines: list[str]) -> None:
        self._pairs = [(name, value) for name, _, value in (line.partition(": ") for line in lines if line)]
        self._by_name: dict[str, list[str]] = {}
        for name, value in self._pairs:
            self._by_name.setdefault(name.lower(), []).append(value)

    def __getitem__(self, name: str) -> str:
        try:
            return self._by_name[name.lower()][0]
        except KeyError:
            raise KeyError(name) from None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._by_name

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __repr__(self) -> str:
        return f"Headers({self._pairs!r})"

    def get(self, name: str, default: Any = None, type: Callable[[str], Any] | None = None) -> Any:  # noqa: A002 - Flask's name
        """The first value, converted by `type` if it can be."""
        return _get(self._by_name.get(name.lower()), default, type)

    def getlist(self, name: str) -> list[str]:
        """Every value of a header."""
        return list(self._by_name.get(name.lower(), ()))

    def keys(self) -> list[str]:
        return [name for name, _ in self._pairs]

    def values(self) -> list[str]:
        return [value for _, value in self._pairs]

    def items(self) -> list[tuple[str, str]]:
        return list(self._pairs)


class Query(Mapping[str, str]):
    """The query string: the first value of each name, or all of them by `getlist`, as Flask's `request.args`."""

    __slots__ = ("_lists",)

    def __init__(self, text: str) -> None:
        self._lists = parse_qs(text, keep_blank_values=True)

    def __getitem__(self, name: str) -> str:
        return self._lists[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lists)

    def __len__(self) -> int:
        return len(self._lists)

    def __repr__(self) -> str:
        return f"Query({self._lists!r})"

    def get(self, name: str, default: Any = None, type: Callable[[str], Any] | None = None) -> Any:  # noqa: A002 - Flask's name
        """The first value, converted by `type` if it can be."""
        return _get(self._lists.get(name), default, type)

    def getlist(self, name: str) -> list[str]:
        """Every value of a name."""
        return list(self._lists.get(name, ()))

    def to_dict(self, flat: bool = True) -> dict[str, Any]:  # noqa: FBT001, FBT002 - Flask's signature
        """A plain dictionary: of the first values, or of the lists of values."""
        return {name: values[0] if flat else list(values) for name, values in self._lists.items()}


def _get(values: list[str] | None, default: Any, convert: Callable[[str], Any] | None) -> Any:
    if not values:
        return default
    if convert is None:
        return values[0]
    try:
        return convert(values[0])
    except (ValueError, TypeError):
        return default


class Event:
    """An HTTP request."""

    __slots__ = ("_body", "_headers", "_meta", "_parts", "_query")

    def __init__(self, meta: bytes, body: bytes | memoryview) -> None:
        self._meta = meta
        self._body = body
        self._parts: list[str] | None = None
        self._headers: Headers | None = None
        self._query: Query | None = None

    @property
    def body(self) -> bytes:
        """The body's bytes."""
        body = self._body
        if not isinstance(body, bytes):
            body = self._body = bytes(body)
        return body

    @property
    def method(self) -> str:
        return self._line(0)

    @property
    def path(self) -> str:
        """The path below the function, beginning with `/`, decoded."""
        path = self._line(1)
        return unquote(path) if "%" in path else path

    @property
    def query_string(self) -> str:
        """The raw query string."""
        return self._line(2)

    @property
    def query(self) -> Query:
        if self._query is None:
            self._query = Query(self._line(2))
        return self._query

    @property
    def headers(self) -> Headers:
        if self._headers is None:
            self._line(0)
            self._headers = Headers((self._parts or [])[3:])
        return self._headers

    def _line(self, index: int) -> str:
        parts = self._parts
        if parts is None:
            # Latin-1 is how HTTP/1 carries header bytes; it decodes anything.
            parts = self._parts = self._meta.decode("latin-1").split("\n")
        return parts[index] if index < len(parts) else ""


class Context:
    """The execution context of a handler: host, function, instance, cores and remaining time.

    `budget_s` is the time that was left until the earliest deadline of this batch when it was dispatched; None without one.
    """

    __slots__ = ("budget_s", "cores", "function", "hostname", "instance_id")

    def __init__(self, hostname: str, function: str, instance_id: str, cores: int) -> None:
        self.hostname = hostname
        self.function = function
        self.instance_id = instance_id
        self.cores = cores
        self.budget_s: float | None = None


TEXT = b"Content-Type: text/plain; charset=utf-8"
JSON = b"Content-Type: application/json"
BYTES = b"Content-Type: application/octet-stream"

ANSWER_KEYS = frozenset({"statusCode", "body", "headers"})
LOWEST_STATUS, HIGHEST_STATUS = 200, 599
PAIR, TRIPLE = 2, 3
# One encoder for all answers: json.dumps with other than default options makes a new encoder for each call.
_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class WrongAnswerError(TypeError):
    """The handler returned something that is no HTTP answer. Its text is for the handler's author."""


def member_of(result: Any) -> Member:
    """The member that answers a request with `result`.

    Raises:
        WrongAnswerError: the result cannot be sent as an HTTP answer.

    """
    kind = type(result)
    if kind is str:
        return Member(200, 1, TEXT, result.encode())
    if kind is bytes:
        return Member(200, 1, BYTES, result)
    return assemble(*parts_of(result))


def assemble(status: int, body: Any, headers: Any) -> Member:
    """The member with this status, body and headers; the pieces of a stream are joined."""
    data, content_type = (b"".join(map(encode_chunk, body)), TEXT) if is_stream(body) else encode_body(body)
    return Member(status, 1, header_lines(headers, content_type), data)


def parts_of(result: Any) -> tuple[int, Any, Any]:
    """Status, body and headers of a handler's result, in any of the accepted forms."""
    if isinstance(result, dict):
        if result and result.keys() <= ANSWER_KEYS:
            return _status(result.get("statusCode", 200)), result.get("body"), result.get("headers")
        return 200, result, None
    if isinstance(result, tuple):
        return _parts_of_tuple(result)
    if hasattr(result, "get_data") and hasattr(result, "status_code"):
        return _status(result.status_code), result.get_data(), list(result.headers)
    return 200, result, None


def _parts_of_tuple(result: tuple[Any, ...]) -> tuple[int, Any, Any]:
    if len(result) == TRIPLE:
        return _status(result[1]), result[0], result[2]
    if len(result) == PAIR:
        body, second = result
        return (200, body, second) if isinstance(second, dict | list) else (_status(second), body, None)
    raise WrongAnswerError(f"a tuple of {len(result)}; return (body, status), (body, headers) or (body, status, headers)")


def _status(value: Any) -> int:
    try:
        status = int(value)
    except (TypeError, ValueError):
        status = 0
    if not LOWEST_STATUS <= status <= HIGHEST_STATUS:
        raise WrongAnswerError(f"a status of {value!r}; return a number from {LOWEST_STATUS} to {HIGHEST_STATUS}")
    return status


def encode_body(body: Any) -> tuple[bytes, bytes]:
    """A body's bytes, and the header line of the type that they have unless the handler names one."""
    if isinstance(body, str):
        return body.encode(), TEXT
    if isinstance(body, bytes):
        return body, BYTES
    if body is None:
        return b"", TEXT
    if isinstance(body, dict | list):
        try:
            return _to_json(body).encode(), JSON
        except (TypeError, ValueError) as error:
            raise WrongAnswerError(f"a body that is not JSON: {error}") from error
    if isinstance(body, bool | int | float):
        return str(body).encode(), TEXT
    if isinstance(body, bytearray | memoryview):
        return bytes(body), BYTES
    raise WrongAnswerError(f"a body of type {type(body).__name__}; return a str, bytes, dict or list")


def header_lines(headers: Any, content_type: bytes) -> bytes:
    """The meta of an answer: the handler's headers, and the content type if they hold none."""
    if not headers:
        return content_type
    lines: list[str] = []
    typed = False
    for name, value in _pairs(headers):
        line = f"{name}: {value}"
        if not isinstance(name, str) or not name or ":" in name or "\n" in line or "\r" in line or "\0" in line:
            raise WrongAnswerError(f"a header {name!r} that cannot be sent")
        typed = typed or name.lower() == "content-type"
        lines.append(line)
    try:
        encoded = "\n".join(lines).encode("latin-1")
    except UnicodeEncodeError as error:
        raise WrongAnswerError("a header with a character that HTTP cannot carry; encode it") from error
    return encoded if typed else b"\n".join((content_type, encoded))


def _pairs(headers: Any) -> Iterable[tuple[Any, Any]]:
    """Names and values; a list of values is a header for each, as Flask sends it for OpenFaaS's template: several cookies."""
    try:
        for name, value in headers.items() if isinstance(headers, Mapping) else headers:
            yield from ((name, one) for one in (value if isinstance(value, list | tuple) else (value,)))
    except (TypeError, ValueError) as error:
        raise WrongAnswerError("headers that are neither a dict nor a list of pairs") from error


def is_stream(body: Any) -> bool:
    """True if a body is a stream: a generator or another iterator."""
    return hasattr(type(body), "__next__")


def encode_chunk(chunk: Any, *, server_sent_events: bool = False) -> bytes:
    r"""A piece of a streamed answer: text or bytes as they are, a dict or a list as a line of NDJSON.

    With `server_sent_events` a dict or a list is an event of its own, `data: {…}\n\n` (WHATWG HTML, section 9.2.5): a bare JSON
    line would be a field that every client ignores.
    """
    data, _ = encode_body(chunk)
    if not isinstance(chunk, dict | list):
        return data
    return b"data: " + data + b"\n\n" if server_sent_events else data + b"\n"


def failed(error: BaseException) -> Member:
    """The answer to a request whose handler failed. The traceback goes to the function's log only.

    A handler that raises `GnomonError` chooses the status and the message itself.
    """
    if isinstance(error, GnomonError):
        return error_member(error)
    if isinstance(error, WrongAnswerError):
        sys.stderr.write(f"The handler returned {error}.\n")
        answer = GnomonError(500, "wrong_answer", f"The handler returned {error}.", "Correct handler.py.")
    else:
        sys.stderr.write("".join(traceback.format_exception(error)))
        name = type(error).__name__
        answer = GnomonError(500, "handler_failed", f"The handler raised {name}.", "The traceback is in the function's log.")
    return error_member(answer)
