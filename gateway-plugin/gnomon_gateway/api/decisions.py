"""`/gnomon/functions/{name}/decisions` and `/gnomon/policies`: decisions with their reasons, and the known policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gnomon_core.clock import rfc3339
from gnomon_core.errors import bad_request
from gnomon_core.scaling import DecisionRecord, action_to_json
from gnomon_gateway.api.control import Control, Handlers, unknown_function
from gnomon_gateway.api.documents import key_in_path

DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000


class DecisionRoutes:
    """The handlers of decisions and policies."""

    def __init__(self, control: Control) -> None:
        self._functions = control.functions

    def handlers(self) -> Handlers:
        return {
            "/gnomon/functions/{name}/decisions": {"GET": self.decisions},
            "/gnomon/policies": {"GET": self.policies},
        }

    async def decisions(self, request: Request) -> Response:
        limit = _read_limit(request.query_params.get("limit", str(DEFAULT_LIMIT)))
        key = key_in_path(request)
        records = self._functions.decisions(key, limit)
        if records is None:
            raise unknown_function(key)
        return JSONResponse([_document(record) for record in records])

    async def policies(self, _: Request) -> Response:
        known = self._functions.policies()
        return JSONResponse({"scaling": _listed(known.scaling), "scheduling": _listed(known.scheduling)})


def _read_limit(text: str) -> int:
    try:
        limit = int(text)
    except ValueError:
        limit = 0
    if not 1 <= limit <= MAX_LIMIT:
        raise bad_request("invalid_query", f"limit is {text[:100]!r}.", f"Use a whole number from 1 to {MAX_LIMIT}.")
    return limit


def _document(record: DecisionRecord) -> dict[str, Any]:
    return {
        "at": rfc3339(record.at),
        "policy": record.policy,
        "reason": record.reason,
        "desired": record.desired,
        "error": record.error,
        "repeats": record.repeats,
        "actions": [action_to_json(action) for action in record.actions],
    }


def _listed(policies: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "description": policies[name]} for name in sorted(policies)]
