"""Which Host, Origin and Sec-Fetch-Site the control routes take."""

from __future__ import annotations

import pytest

from gnomon_core.errors import GnomonError
from gnomon_gateway.api.origin import host_rule

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


def test_a_listener_on_all_interfaces_answers_to_its_addresses_but_not_to_names() -> None:
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
