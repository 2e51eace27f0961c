from __future__ import annotations

import re

import pytest

from gnomon_core.errors import GnomonError
from gnomon_gateway.api.access import ROUTES, Access, access
from gnomon_gateway.http.headers import UnfitHeadersError, named_by_connection, new_call_id, read_deadline_s, response_lines


@pytest.mark.parametrize(
    ("path", "method", "expected"),
    [
        ("/function/f", "PATCH", Access.OPEN),
        ("/function/f/a/b", "GET", Access.OPEN),
        ("/async-function/f", "POST", Access.OPEN),
        ("/async-function/f", "GET", None),
        ("/v2/models/m/infer", "POST", Access.OPEN),
        ("/v2/models/m/infer", "GET", None),
        ("/healthz", "GET", Access.OPEN),
        ("/system/functions", "GET", Access.AUTH),
        ("/system/functions", "PATCH", None),
        ("/system/function/f", "GET", Access.AUTH),
        ("/system/function/f/x", "GET", None),
        ("/build", "POST", Access.HMAC),
        ("/function", "GET", None),
        ("/elsewhere", "GET", None),
    ],
)
def test_each_path_and_method_has_one_answer(path: str, method: str, expected: Access | None) -> None:
    assert access(path, method) is expected


def test_open_routes_are_invocation_inference_health_metrics_and_welcome() -> None:
    open_paths = {route.path.split("/")[1] for route in ROUTES if route.access is Access.OPEN}
    assert open_paths == {"function", "async-function", "v2", "healthz", "metrics", ""}


def test_hop_by_hop_and_internal_headers_are_removed() -> None:
    meta = (
        b"Content-Type: text/plain\nConnection: close\nTransfer-Encoding: chunked\nContent-Length: 7\nDate: now\nX-A: 1\nX-A: 2"
    )
    assert response_lines(meta) == b"Content-Type: text/plain\r\nX-A: 1\r\nX-A: 2\r\n"
    assert response_lines(b"") == b""


@pytest.mark.parametrize("meta", [b"X: a\r\nSet-Cookie: b", b"X y: 1", b": 1", b"no colon", b"X: a\x00b", b"X: \x1b[2J"])
def test_a_header_that_would_split_the_answer_is_refused(meta: bytes) -> None:
    with pytest.raises(UnfitHeadersError):
        response_lines(meta)


def test_long_header_blocks_are_checked_too() -> None:
    with pytest.raises(UnfitHeadersError):
        response_lines(b"X: " + b"a" * 1000 + b"\nb\rad: 1")


def test_connection_names_more_hop_by_hop_headers() -> None:
    assert named_by_connection(b"close, X-Mine ,te") == {b"close", b"x-mine", b"te"}


def test_call_ids_differ_and_look_like_uuids() -> None:
    ids = {new_call_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-a[0-9a-f]{3}-[0-9a-f]{12}", call) for call in ids)


@pytest.mark.parametrize(("text", "seconds"), [(b"250", 0.25), (b"0.5", 0.0005), (b"1e3", 1.0)])
def test_a_deadline_is_milliseconds(text: bytes, seconds: float) -> None:
    assert read_deadline_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", [b"", b"soon", b"0", b"-5", b"nan", b"inf", b"1s"])
def test_any_other_deadline_is_a_400(text: bytes) -> None:
    with pytest.raises(GnomonError) as caught:
        read_deadline_s(text)
    assert (caught.value.status, caught.value.code) == (400, "invalid_deadline")
