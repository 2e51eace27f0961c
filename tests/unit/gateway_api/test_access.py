"""Logins, where a connection comes from, what each route asks for, and the headers that pass."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_gateway.api.access import (
    ROUTES,
    Access,
    BasicAuth,
    access,
    host_rule,
    is_loopback,
    read_basic_auth,
    require_safe_binding,
)
from gnomon_gateway.http.headers import UnfitHeadersError, named_by_connection, new_call_id, read_deadline_s, response_lines


def header(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


AUTH = BasicAuth("admin", "s3:cr€t")


def test_the_right_user_and_password_are_let_in() -> None:
    assert AUTH.allows(header("admin", "s3:cr€t"))
    assert AUTH.allows(header("admin", "s3:cr€t").replace("Basic", "basic"))


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Basic",
        "Basic ",
        "Basic !!!",
        "Basic " + base64.b64encode(b"admin").decode(),
        "Bearer " + base64.b64encode("admin:s3:cr€t".encode()).decode(),
        header("admin", "s3:cr€"),
        header("admin", "s3:cr€t "),
        header("admin", ""),
        header("", "s3:cr€t"),
        header("Admin", "s3:cr€t"),
        "Basic " + base64.b64encode(b"\xff\xfe:\x00").decode(),
        "Basic é",
    ],
)
def test_anything_else_is_not(authorization: str | None) -> None:
    assert not AUTH.allows(authorization)


def test_neither_user_nor_password_shows_in_the_object() -> None:
    assert "s3" not in repr(vars(AUTH))
    assert "admin" not in repr(vars(AUTH))


def test_basic_auth_is_off_unless_configured(tmp_path: Path) -> None:
    for value in ("", "false", "0", "no"):
        assert read_basic_auth({"basic_auth": value, "secret_mount_path": str(tmp_path)}) is None
    assert read_basic_auth({}) is None


def test_credentials_come_from_openfaas_files_without_their_line_ends(tmp_path: Path) -> None:
    (tmp_path / "basic-auth-user").write_text("admin\n")
    (tmp_path / "basic-auth-password").write_text(" pass word\r\n")
    auth = read_basic_auth({"basic_auth": "true", "secret_mount_path": f"{tmp_path}/"})
    assert auth is not None
    assert auth.allows(header("admin", "pass word"))


@pytest.mark.parametrize("missing", ["basic-auth-user", "basic-auth-password"])
@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_missing_or_empty_file_is_an_error_that_names_it(tmp_path: Path, missing: str, content: str | None) -> None:
    for name in ("basic-auth-user", "basic-auth-password"):
        (tmp_path / name).write_text("x")
    (tmp_path / missing).unlink()
    if content is not None:
        (tmp_path / missing).write_text(content)
    with pytest.raises(GnomonError) as refused:
        read_basic_auth({"basic_auth": "true", "secret_mount_path": str(tmp_path)})
    assert refused.value.code == "credentials_missing"
    assert str(tmp_path / missing) in refused.value.message


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]"])
def test_a_loopback_address_needs_no_credentials(host: str) -> None:
    assert is_loopback(host)
    require_safe_binding(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "example.org", "localhost.example.org", "127.0.0.1.nip.io"])
def test_any_other_address_is_refused_without_them(host: str) -> None:
    with pytest.raises(GnomonError) as refused:
        require_safe_binding(host, None)
    assert refused.value.code == "unsafe_binding"
    assert "basic_auth=true" in refused.value.hint
    require_safe_binding(host, AUTH)


LOCAL = host_rule("127.0.0.1")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8080", "localhost", "LOCALHOST:8080", "[::1]:8080", "[::1]", " localhost:1 "]
)
def test_our_own_names_pass_with_any_port(host: str) -> None:
    LOCAL.check(host, None, None)


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "127.0.0.1@evil.example",
        "evil.example#127.0.0.1",
        "localhost/",
        "localhost:port",
        "localhost,evil.example",
        "[::1",
        "0.0.0.0",
        "192.168.1.5",
        ":8080",
    ],
)
def test_other_names_do_not(host: str | None) -> None:
    with pytest.raises(GnomonError) as refused:
        LOCAL.check(host, None, None)
    assert (refused.value.status, refused.value.code) == (403, "foreign_host")


@pytest.mark.parametrize("allowed", ["Gateway.example", " gateway.example ", "gateway.example:8443"])
def test_an_allowed_name_passes_with_any_port(allowed: str) -> None:
    host_rule("127.0.0.1", [allowed]).check("gateway.example:80", None, None)


def test_an_allowed_address_may_have_brackets() -> None:
    for allowed in ("2001:db8::1", "[2001:db8::1]"):
        host_rule("127.0.0.1", [allowed]).check("[2001:db8::1]:80", None, None)


@pytest.mark.parametrize("allowed", ["https://gateway.example", "gateway.example/", "a b", "a,b", "*", "gätewäy.example"])
def test_an_allowed_host_that_no_request_can_name_is_refused_at_the_start(allowed: str) -> None:
    with pytest.raises(GnomonError, match="--allowed-host has") as refused:
        host_rule("127.0.0.1", [allowed])
    assert (refused.value.status, refused.value.code) == (400, "invalid_setting")


def test_listener_on_all_interfaces_accepts_addresses_but_no_names() -> None:
    rule = host_rule("0.0.0.0", ["gateway.openfaas"])
    for host in ("192.168.1.5:8080", "[2001:db8::1]:8080", "gateway.openfaas:8080", "localhost"):
        rule.check(host, None, None)
    with pytest.raises(GnomonError):
        rule.check("rebound.example", None, None)


def test_the_bound_address_is_ours() -> None:
    host_rule("192.168.1.5").check("192.168.1.5:8080", None, None)


def test_behind_a_gateway_pages_of_its_host_are_ours_and_no_others() -> None:
    behind = host_rule("127.0.0.1", behind=True)
    behind.check("127.0.0.1:8081", "https://faas.example.com", "same-origin", "faas.example.com")
    for rule, origin, forwarded in (
        (behind, "https://evil.example", "faas.example.com"),
        (behind, "https://faas.example.com", None),
        (behind, "https://faas.example.com", "faas.example.com,evil.example"),
        (LOCAL, "https://faas.example.com", "faas.example.com"),
    ):
        with pytest.raises(GnomonError) as refused:
            rule.check("127.0.0.1:8081", origin, None, forwarded)
        assert refused.value.code == "foreign_origin"
    with pytest.raises(GnomonError, match="does not answer to the host"):
        behind.check("faas.example.com", None, None, "faas.example.com")


def test_our_own_pages_pass() -> None:
    LOCAL.check("localhost:8080", "http://localhost:8080", "same-origin")
    LOCAL.check("localhost:8080", "https://LOCALHOST:8080", None)
    LOCAL.check("localhost:8080", None, "none")


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://localhost",
        "http://localhost:3000",
        "null",
        "file://",
        "http://localhost:8080/x",
        "http://[",
        "",
    ],
)
def test_other_pages_do_not(origin: str) -> None:
    with pytest.raises(GnomonError) as refused:
        LOCAL.check("localhost:8080", origin, None)
    assert (refused.value.status, refused.value.code) == (403, "foreign_origin")


@pytest.mark.parametrize("site", ["cross-site", "Cross-Site", "same-site", "", "none,cross-site"])
def test_a_browser_that_says_the_request_is_foreign_is_believed(site: str) -> None:
    with pytest.raises(GnomonError) as refused:
        LOCAL.check("localhost:8080", None, site)
    assert refused.value.code == "foreign_origin"


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
