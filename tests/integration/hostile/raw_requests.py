"""Requests as bytes on a socket: to a path that is dispatched, one that is taken for later, and one that changes something."""

from __future__ import annotations

import pytest

from tests.integration.hostile.conftest import Answer, check_error

HOST = b"Host: 127.0.0.1\r\n"
SECOND = b"GET /second HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
THREE = b"Content-Length: 3\r\n"
CHUNKS = b"3\r\nabc\r\n0\r\n\r\n"
HOT, ASYNC, CONTROL = "/function/echo", "/async-function/echo", "/system/secrets"
targets = pytest.mark.parametrize("target", [HOT, ASYNC, CONTROL])


def post(target: str, head: bytes, body: bytes = b"") -> bytes:
    return f"POST {target} HTTP/1.1\r\n".encode() + HOST + head + b"\r\n" + body


def check_refused(answers: list[Answer], *statuses: int) -> None:
    assert [answer.status for answer in answers] in [[status] for status in statuses]
    check_error(answers[0])
    assert answers[0].headers["connection"] == "close"
