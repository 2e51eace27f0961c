"""Readers of control requests: bodies, fields, names in paths, and queries.

Bodies are untrusted JSON: bounded, parsed and checked here, as are names in paths, queries and documents. A disk that a request's
files fill is an answer too.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.functions import DEFAULT_NAMESPACE, FunctionKey, parse_key

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
Handlers: TypeAlias = Mapping[str, Mapping[str, Handler]]
"""Path → method → handler."""
MAX_DOCUMENT_BYTES = 1 << 20


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. A body with a larger stated length is not read, and reading stops at the limit.

    Raises:
        GnomonError: 413 `body_too_large`; 400 `incomplete_body` when the client left.

    """
    length = request.headers.get("content-length", "0").strip()
    if not (length.isascii() and length.isdigit()) or int(length) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise _too_large(max_bytes)
    except ClientDisconnect:
        raise bad_request("incomplete_body", "The body ended early.") from None
    return bytes(body)


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object of the body.

    Raises:
        GnomonError: 413 `body_too_large`; 400 `invalid_json`.

    """
    body = await read_body(request, MAX_DOCUMENT_BYTES)
    try:
        document = json.loads(body)
        # A lone surrogate (`"\\ud800"`) is valid JSON but cannot be encoded as UTF-8, to be stored or returned.
        json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise bad_request("invalid_json", f"The body is not JSON: {str(error)[:200]}.", "Send a JSON object.") from None
    if not isinstance(document, dict):
        raise bad_request("invalid_json", "The body is not a JSON object.", "Send a JSON object.")
    return document


def text_field(document: Mapping[str, Any], name: str) -> str:
    """A text that may be absent.

    Raises:
        GnomonError: 400 `invalid_field`.

    """
    value = document.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or "\0" in value:
        raise bad_request("invalid_field", f"{name} is not a text.", f'Send it as {{"{name}": "text"}}.')
    return value


def texts_field(document: Mapping[str, Any], name: str) -> dict[str, str]:
    """An object of texts that may be absent.

    Raises:
        GnomonError: 400 `invalid_field`.

    """
    value = document.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise bad_request("invalid_field", f"{name} is not an object of texts.", f'Send it as {{"{name}": {{"key": "value"}}}}.')
    return value


def namespace_in_query(request: Request) -> str:
    """The namespace that a query names, or the default one."""
    return request.query_params.get("namespace") or DEFAULT_NAMESPACE


def key_in_path(request: Request, namespace: str = "") -> FunctionKey:
    """The function of a path: `name.namespace`, or `name` with the namespace of the query, the document or the default one."""
    wanted = request.query_params.get("namespace") or namespace or DEFAULT_NAMESPACE
    return parse_key(request.path_params["name"], wanted)


def flag_in_query(request: Request, name: str) -> bool:
    """A Boolean query parameter, in the spellings of Go's ParseBool.

    Raises:
        GnomonError: 422 `invalid_query`.

    """
    text = request.query_params.get(name, "")
    if text.lower() in ("1", "t", "true"):
        return True
    if text.lower() in ("", "0", "f", "false"):
        return False
    raise invalid_query(f"{name} is {text[:100]!r}", "Use true or false.")


def invalid_query(problem: str, hint: str) -> GnomonError:
    """422: OpenFaaS's status for a query that cannot be read."""
    return GnomonError(422, "invalid_query", f"In the query, {problem}.", hint)


def _too_large(max_bytes: int) -> GnomonError:
    return GnomonError(413, "body_too_large", f"The body is larger than {max_bytes} bytes.", "Send less.")


_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def full_disk_refuses(what: str) -> Iterator[None]:
    """Turn the error of a full disk into 507 `no_disk` for a "model" or a "build"."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        raise no_disk(what) from error


def no_disk(what: str) -> GnomonError:
    """The answer to who brings this."""
    return GnomonError(
        507, "no_disk", f"The server has not enough disk space for this {what}.", "Make room there, and try again."
    )
