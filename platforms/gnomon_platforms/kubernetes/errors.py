"""What the API server refuses, and what a user is told of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from gnomon_core.errors import GnomonError

RBAC = "deploy/openfaas"
MAX_MESSAGE = 500
DENIED = "kubernetes_denied"
"""What a quota, or a right that we have not, comes to."""
_WRONG = range(400, 500)
_BUSY = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})


@dataclass(slots=True)
class Refused(Exception):  # noqa: N818 - what the API server has done
    """The API server has answered, and not with a 2xx. Nothing has changed, but for a 5xx, after which nobody knows.

    `reason` is the API's word (`Conflict`, `AlreadyExists`, `Expired`, …), `causes` are the fields that are wrong.
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
        """Whether it has changed since it was read, or exists already: read again, decide again."""
        return self.status == HTTPStatus.CONFLICT

    @property
    def missing(self) -> bool:
        return self.status == HTTPStatus.NOT_FOUND

    @property
    def expired(self) -> bool:
        """Whether a resource version, or a list's next page, is too old: list again."""
        return self.status == HTTPStatus.GONE

    @property
    def passing(self) -> bool:
        """Whether it may well succeed in a moment."""
        return self.status in _BUSY or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR


class Unreachable(Exception):  # noqa: N818 - what the API server is
    """No answer: the connection failed, broke off, or was silent for too long. What was sent may have been carried out."""


def refused(status: int, headers: Mapping[str, str], body: bytes) -> Refused:
    """Read a Status document, or whatever a proxy in between has said."""
    try:
        document: Any = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        text = body[:MAX_MESSAGE].decode("utf-8", "replace").strip()
        return Refused(status, "", text or "no reason was given", retry_after_s=_seconds(headers.get("Retry-After")))
    return from_status(document, status, headers.get("Retry-After"))


def from_status(document: dict[str, Any], status: int = 500, retry_after: object = None) -> Refused:
    """The same from a Status document, such as an ERROR event of a watch holds."""
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


def told(error: Exception, doing: str) -> GnomonError:
    """What a user is told. `doing` completes "Kubernetes does not let Gnomon …".

    The codes: 503 `kubernetes_unreachable`, `kubernetes_busy`, `kubernetes_credentials`, `kubernetes_denied`; 409
    `kubernetes_conflict`; 404 `kubernetes_missing`; 400 `kubernetes_invalid`; 502 `kubernetes_failed`.
    """
    if not isinstance(error, Refused):
        return GnomonError(
            503,
            "kubernetes_unreachable",
            f"The API server cannot be reached to {doing}: {error}"[:MAX_MESSAGE],
            "Check KUBECONFIG and the network; `gnomon doctor` says more. Functions that run go on serving.",
            retry_after_s=5.0,
        )
    said = f"Kubernetes does not let Gnomon {doing}: {error.message}"[:MAX_MESSAGE]
    if error.passing:
        wait_s = error.retry_after_s or 5.0
        return GnomonError(503, "kubernetes_busy", said, "Try again in a moment.", retry_after_s=wait_s)
    status, code, hint = _meaning(error)
    return GnomonError(status, code, said, hint, retry_after_s=1.0 if error.conflict else None)


def lasts(error: GnomonError) -> bool:
    """Whether what was refused will be again, as far as can be known."""
    return error.status in _WRONG or error.code == DENIED


def _meaning(error: Refused) -> tuple[int, str, str]:
    """Our status and code of a refusal that lasts, and what to do about it."""
    known: dict[int, tuple[int, str, str]] = {
        HTTPStatus.UNAUTHORIZED: (503, "kubernetes_credentials", "The token or certificate is not known: check KUBECONFIG."),
        HTTPStatus.FORBIDDEN: (503, DENIED, f"Give it the role of {RBAC}: kubectl apply -k {RBAC}."),
        HTTPStatus.NOT_FOUND: (404, "kubernetes_missing", "It may just have been removed: list again."),
        HTTPStatus.CONFLICT: (409, "kubernetes_conflict", "Somebody else changes it as well: try again."),
    }
    invalid = 400, "kubernetes_invalid", "Correct " + ("; ".join(error.causes) or "what it names") + "."
    known |= dict.fromkeys(
        (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.REQUEST_ENTITY_TOO_LARGE), invalid
    )
    if error.status == HTTPStatus.FORBIDDEN and "quota" in error.message:
        # Quotas are refused by the same status as rights.
        return 503, DENIED, "Raise the quota."
    return known.get(error.status, (502, "kubernetes_failed", f"The API server's log says more of its {error.status}."))


def _seconds(value: object) -> float | None:
    try:
        return max(0.0, float(str(value))) if value is not None else None
    except ValueError:
        return None
