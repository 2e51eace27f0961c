"""What the head of a request must say beyond what the parser asks of it, so that nobody in front of us reads it differently.

One host, a version that we speak, and a body that ends in one of two ways: after its length, or after its last chunk (RFC 9112,
sections 2.3, 3.2 and 6.1). A client that takes us for a proxy says the host with the path, and then that is it. The parser has
refused two lengths, and a length with chunks, by then.
"""

from __future__ import annotations

from collections.abc import Iterable

from gnomon_core.errors import GnomonError
from gnomon_gateway.server.limits import Limits

CHECKED = frozenset({b"host", b"transfer-encoding", b"expect"})
"""The names that `Head.note` wants to see."""
_VERSIONS = ("1.1", "1.0")


class Head:
    """What has been seen of one request's head."""

    __slots__ = ("_encoding", "_expects_continue", "_hosts")

    def __init__(self) -> None:
        self._hosts = 0
        self._encoding = b""
        self._expects_continue = False

    def note(self, name: bytes, value: bytes) -> None:
        """A header of one of the checked names."""
        if name == b"host":
            self._hosts += 1
        elif name == b"transfer-encoding":
            self._encoding += value.strip().lower()
        elif value.lower() == b"100-continue":
            self._expects_continue = True

    def expects_continue(self, version: str) -> bool:
        """Whether the client waits for word before it sends the body. One of HTTP/1.0 would take that for the answer."""
        return self._expects_continue and version != "1.0"

    def fault(self, method: bytes, version: str) -> GnomonError | None:
        """Why the request is refused as a whole; None if it is not."""
        if version not in _VERSIONS:
            return GnomonError(505, "version_not_supported", f"This server does not speak HTTP/{version}.", "Use HTTP/1.1.")
        if self._hosts > 1 or (not self._hosts and version == "1.1"):
            return GnomonError(400, "malformed_request", f"The request has {self._hosts} Host headers.", "Send one.")
        if self._encoding not in (b"", b"chunked"):
            return GnomonError(400, "unknown_encoding", "The Transfer-Encoding is not just chunked.", "Send chunks, or a length.")
        if method == b"CONNECT":
            return GnomonError(405, "method_not_allowed", "This is no proxy.", "Ask for a path.")
        return None


def body_bytes(headers: Iterable[tuple[bytes, bytes]]) -> float:
    """How long the body is by what the head states: endless where it comes in chunks, 0 where there is none."""
    for name, value in headers:
        if name == b"content-length":
            return int(value)
        if name == b"transfer-encoding":
            return float("inf")
    return 0


def is_request_line(received: bytes, method: bytes, target: bytes, version: str, *, anywhere: bool) -> bool:
    """Whether a request's first line was just this: one space between its parts and none behind them (RFC 9112, section 3).

    The parser takes any number of spaces; another server in front of us may read such a line differently. `received` begins with
    the line, perhaps behind empty lines; `anywhere` says that another request ends in it first.
    """
    line = b"%b %b HTTP/%b\r\n" % (method, target, version.encode())
    return received.startswith(line) or received.lstrip(b"\r\n").startswith(line) or (anywhere and line in received)


def in_origin_form(target: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    """The path and query of a request's target.

    One in absolute form, `http://host:8080/path`, has the host as well, which takes the place of what `Host` says (RFC 9112,
    section 3.2.2).
    """
    if target.startswith((b"/", b"*")):
        return target
    scheme, _, rest = target.partition(b"://")
    if scheme.lower() not in (b"http", b"https"):
        return target
    end = next((place for place, byte in enumerate(rest) if byte in b"/?"), len(rest))
    host = rest[:end].rpartition(b"@")[2]
    headers[:] = [(name, host if name == b"host" else value) for name, value in headers]
    return rest[end:] if rest[end : end + 1] == b"/" else b"/" + rest[end:]


def without_offer(method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The head as it would have been without the offer of another protocol."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers if header[0] != b"upgrade"])
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, url, version.encode(), lines)


def malformed() -> GnomonError:
    """400: what the parser stumbled over."""
    return GnomonError(400, "malformed_request", "This is not an HTTP/1.1 request.", "Send one.")


def too_large(limits: Limits) -> GnomonError:
    """431: more than is read of a head."""
    return GnomonError(
        431,
        "head_too_large",
        f"The request line and headers are longer than {limits.head_bytes} bytes or {limits.head_lines} lines.",
        "Send data in the body.",
    )
