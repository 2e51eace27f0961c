"""How an error is said over HTTP/1.1, and what is said to a client whose body is not taken or who met a fault of ours."""

from __future__ import annotations

from http import HTTPStatus

from gnomon_core.errors import GnomonError

STATUS_LINES = tuple(
    b"HTTP/1.1 %d %s\r\n" % (code, HTTPStatus(code).phrase.encode() if code in list(HTTPStatus) else b"Unknown")
    for code in range(1000)
)


def error_lines(error: GnomonError) -> bytes:
    """The header lines of an error's answer."""
    return b"".join([b"%b: %b\r\n" % (name.lower().encode(), value.encode()) for name, value in error.headers().items()])


def too_large(limit_bytes: int) -> GnomonError:
    """413: more than is taken."""
    return GnomonError(
        413,
        "body_too_large",
        f"The body is larger than {limit_bytes} bytes.",
        "Send less, or a reference to where the data is; the operator's `gnomon serve --max-body` bounds it.",
    )


def too_many_bodies(limit_bytes: int) -> GnomonError:
    """503: others are being received."""
    return GnomonError(
        503,
        "too_many_bodies",
        f"Large bodies are being received that hold {limit_bytes} bytes together.",
        "Send it again later.",
        retry_after_s=1.0,
    )


def internal_error() -> GnomonError:
    """500: a fault of ours, told to the log and not to the client."""
    return GnomonError(500, "internal_error", "The gateway failed at this request.", "Its log says why.")
