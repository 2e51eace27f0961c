"""An address that is none is told as such: the gateway's, and that of a proxy on the way to it."""

from __future__ import annotations

import pytest

from gnomon_cli.client import Gateway
from gnomon_cli.credentials import Credentials
from gnomon_cli.errors import CommandFailed

NOBODY = Credentials()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:99999", "ftp://127.0.0.1", "http:"])
def test_what_is_no_address_of_a_gateway(url: str) -> None:
    with pytest.raises(CommandFailed, match=r"is not an address. Write it as http://HOST:PORT"):
        Gateway(url, NOBODY).call("GET", "/healthz")


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "http://127.0.0.1:99999", "http://[::1"])
def test_what_is_no_address_of_a_proxy(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(CommandFailed, match=r"The proxy that the environment names for http://gateway\.example is not"):
        Gateway("http://gateway.example", NOBODY).call("GET", "/healthz")


def test_a_proxy_may_be_named_without_its_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    """As curl takes it."""
    monkeypatch.setenv("http_proxy", "127.0.0.1:1")
    with pytest.raises(CommandFailed, match=r"Cannot reach http://gateway\.example"):
        Gateway("http://gateway.example", NOBODY).call("GET", "/healthz")
