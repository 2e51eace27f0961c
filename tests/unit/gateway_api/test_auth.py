"""Who may use control routes."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_gateway.api.auth import BasicAuth, is_loopback, read_basic_auth, require_safe_binding


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


def test_it_is_off_unless_the_variable_says_so(tmp_path: Path) -> None:
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
