r"""What a handler is given: the request as an Event, and the Context it runs in.

The names are those of OpenFaaS's python3-http template (`event.body`, `.headers`, `.method`, `.query`, `.path`), where they are
Flask's; the two mappings here answer the same questions without Flask, because a handler's own environment holds only the
handler's requirements.

A member's meta is `method\npath\nquery\nName: value\n…`. Nothing of it is read before the handler asks: a handler that looks only
at the body costs a fraction of a microsecond here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote


class Headers:
    """HTTP headers: looked up in any case, and iterated as (name, value) pairs, as Flask's are."""

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
    """One HTTP request."""

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
        """The query as it was sent."""
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
    """Where the handler runs: the host, the function, the instance, and its time.

    `budget_s` is the time that was left until the earliest deadline of this batch when it was dispatched; None without one.
    """

    __slots__ = ("budget_s", "cores", "function", "hostname", "instance_id")

    def __init__(self, hostname: str, function: str, instance_id: str, cores: int) -> None:
        self.hostname = hostname
        self.function = function
        self.instance_id = instance_id
        self.cores = cores
        self.budget_s: float | None = None
