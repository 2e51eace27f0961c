"""Which gateway a command talks to, with which login, and what is said of an address that is not valid."""

import base64
from pathlib import Path

import pytest

from gnomon_cli.client import Gateway
from gnomon_cli.credentials import Credentials, config_file, find, forget, remember
from gnomon_cli.errors import CommandFailed
from gnomon_cli.options import gateway_url

USUAL = "http://127.0.0.1:8080"


@pytest.mark.parametrize(
    ("flag", "stack", "variable", "url"),
    [
        ("", "", "", USUAL),
        ("https://Flag.example/", "http://stack", "http://variable", "https://flag.example"),
        ("", "http://stack:80", "http://variable", "http://stack:80"),
        ("", USUAL, "http://variable", "http://variable"),
        (USUAL, "http://stack", "http://variable", USUAL),
        ("host:9000", "", "", "http://host:9000"),
        ("httpd:9000", "", "", "http://httpd:9000"),
        ("ftp://host", "", "", "ftp://host"),
    ],
)
def test_the_gateways_address(flag: str, stack: str, variable: str, url: str) -> None:
    assert gateway_url(flag, stack, {"OPENFAAS_URL": variable}) == url


def test_logins_of_other_gateways_and_unknown_fields_are_kept(tmp_path: Path) -> None:
    environment = {"OPENFAAS_CONFIG": str(tmp_path)}
    path = config_file(environment)
    path.write_text("auths:\n- gateway: http://other\n  auth: oauth2\n  token: abc\n  options: [{name: a, value: b}]\n")
    remember("http://here", "ada", "pass:word", environment)
    assert find("http://here", "ignored", environment).authorization == "Basic " + base64.b64encode(b"ada:pass:word").decode()
    assert find("http://other", "", environment).authorization == "Bearer abc"
    assert find("http://other", "given", environment).authorization == "Bearer given"
    assert find("http://nobody", "", environment).authorization == ""
    assert forget("http://here", environment)
    assert not forget("http://here", environment)
    assert "options" in path.read_text()


def test_in_ci_the_file_lies_in_the_working_directory() -> None:
    assert config_file({"CI": "true"}) == Path(".openfaas/config.yml")
    assert config_file({"CI": "1", "OPENFAAS_CONFIG": "/x"}) == Path("/x/config.yml")


@pytest.mark.parametrize("text", ["a: [", "auths:\n- {gateway: http://here, auth: basic, token: '***'}"])
def test_a_broken_file_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yml").write_text(text)
    with pytest.raises(CommandFailed, match="og in again"):
        find("http://here", "", {"OPENFAAS_CONFIG": str(tmp_path)})


NOBODY = Credentials()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:99999", "ftp://127.0.0.1", "http:"])
def test_invalid_gateway_addresses_are_refused(url: str) -> None:
    with pytest.raises(CommandFailed, match=r"is not an address. Write it as http://HOST:PORT"):
        Gateway(url, NOBODY).call("GET", "/healthz")


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "http://127.0.0.1:99999", "http://[::1"])
def test_invalid_proxy_addresses_are_refused(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(CommandFailed, match=r"The proxy that the environment names for http://gateway\.example is not"):
        Gateway("http://gateway.example", NOBODY).call("GET", "/healthz")


def test_a_proxy_may_be_named_without_its_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    """As curl takes it."""
    monkeypatch.setenv("http_proxy", "127.0.0.1:1")
    with pytest.raises(CommandFailed, match=r"Cannot reach http://gateway\.example"):
        Gateway("http://gateway.example", NOBODY).call("GET", "/healthz")
