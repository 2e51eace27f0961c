"""Errors that reach a user: one class, a stable code, an HTTP status and a sentence that says what to do.

Every error of the platform is JSON `{"error": {"code", "message", "hint"}}` and carries `X-OpenFaaS-Internal: gnomon`, so that a
client, and OpenFaaS's own queue worker, can tell it from an answer of the function.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

INTERNAL_HEADER = "X-OpenFaaS-Internal"
INTERNAL_NAME = "gnomon"


@dataclass(slots=True)
class GnomonError(Exception):
    """An error with all parts of its HTTP response.

    `code` is stable and snake_case; `message` says what is wrong, `hint` what to do about it.
    `retry_after_s` becomes a `Retry-After` header in whole seconds, at least 1.
    """

    status: int
    code: str
    message: str
    hint: str = ""
    retry_after_s: float | None = None

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()

    def body(self) -> bytes:
        """The JSON document of the answer."""
        error = {"code": self.code, "message": self.message}
        if self.hint:
            error["hint"] = self.hint
        return json.dumps({"error": error}, ensure_ascii=False).encode()

    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        headers = {"Content-Type": "application/json", INTERNAL_HEADER: INTERNAL_NAME}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        return headers


def bad_request(code: str, message: str, hint: str = "") -> GnomonError:
    """400: the request can never succeed as it is."""
    return GnomonError(400, code, message, hint)


def not_found(code: str, message: str, hint: str = "") -> GnomonError:
    """404: the name is unknown."""
    return GnomonError(404, code, message, hint)


def conflict(code: str, message: str, hint: str = "") -> GnomonError:
    """409: the object exists already, or another operation on it is in progress."""
    return GnomonError(409, code, message, hint)


def stopping() -> GnomonError:
    """503: the server is stopping. It begins nothing new, and ends what would take long."""
    return GnomonError(503, "stopping", "The server is stopping.", "Try again when it has started again.", retry_after_s=1.0)


def cause_of(error: BaseException) -> str:
    """The operating system's own words for a network error, which clients such as urllib3 wrap several times."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        reason = getattr(inner, "reason", None)
        inner = reason if isinstance(reason, BaseException) else inner.__cause__ or inner.__context__
    return str(error).split(": ", 1)[-1].rstrip(".")
