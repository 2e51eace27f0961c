"""What goes back for an infer request: status, header lines and body, the model's or ours.

Errors are `{"error": "…"}` with the same status codes and headers as elsewhere.
"""

from __future__ import annotations

import json

from gnomon_core.errors import GnomonError
from gnomon_core.signature import ModelSignature
from gnomon_core.wire import Member
from gnomon_gateway.headers import refusal_lines
from gnomon_gateway.server.refusals import error_lines
from gnomon_gateway.v2.infer import Infer, write_answer

_OK = 200
_JSON = b"content-type: application/json\r\n"


def answer(infer: Infer, signature: ModelSignature, name: str, member: Member) -> tuple[int, bytes, bytes | memoryview]:
    """Of a model's function by this name."""
    if member.code != _OK:
        return member.code, _JSON + refusal_lines(member), error_body(_error_text(bytes(member.body)))
    try:
        written = write_answer(infer, signature, name, memoryview(member.body))
    except GnomonError as error:
        return refusal(error)
    lines = _JSON
    if written.header_bytes is not None:
        lines = b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n" % written.header_bytes
    return _OK, lines, written.parts[0] if len(written.parts) == 1 else b"".join(written.parts)


def refusal(error: GnomonError) -> tuple[int, bytes, bytes]:
    """Of ours."""
    return error.status, error_lines(error), error_body(str(error))


def error_body(text: str) -> bytes:
    """V2's error document. What cannot be written, which a function's own error may hold, is a question mark."""
    return json.dumps({"error": text}, ensure_ascii=False).encode(errors="replace")


def _error_text(body: bytes) -> str:
    """What a member's own error says: the sentence of a Gnomon error document, or the text as it is."""
    try:
        error = json.loads(body)["error"]
        return f"{error['message']} {error.get('hint', '')}".strip() if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")
