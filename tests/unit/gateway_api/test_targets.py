"""Where callbacks may go. Every row of REFUSED is a way in which a gateway was made to call what its caller could not reach."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.errors import GnomonError
from gnomon_gateway.asynchronous.callbacks import CallbackHosts, Target

HOSTS = CallbackHosts(["hooks.example.org", "hooks.example.org:8443", "203.0.113.9", "127.0.0.1:9000", "[::1]:9000"])


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://hooks.example.org", Target("http", "hooks.example.org", 80, "/")),
        ("https://hooks.example.org/done?x=1&y=%20", Target("https", "hooks.example.org", 443, "/done?x=1&y=%20")),
        ("https://HOOKS.example.org:8443/a", Target("https", "hooks.example.org", 8443, "/a")),
        ("http://203.0.113.9/", Target("http", "203.0.113.9", 80, "/")),
        ("http://127.0.0.1:9000/done", Target("http", "127.0.0.1", 9000, "/done")),
        ("http://[::1]:9000/done", Target("http", "::1", 9000, "/done")),
    ],
)
def test_listed_hosts_are_allowed_at_their_ports(url: str, target: Target) -> None:
    assert HOSTS.target(url) == target


REFUSED = {
    "a host that is not listed": "http://evil.example/",
    "another port of a listed host": "http://hooks.example.org:22/",
    "another port of a listed address": "http://127.0.0.1:9001/",
    "a listed name as a prefix": "http://hooks.example.org.evil.example/",
    "a listed name as a suffix": "http://evilhooks.example.org/",
    "a listed name as the user": "http://hooks.example.org@evil.example/",
    "a listed name with a password": "http://a:b@hooks.example.org/",
    "a listed name behind a fragment": "http://evil.example#@hooks.example.org/",
    "a backslash": "http://hooks.example.org\\@evil.example/",
    "the metadata service": "http://169.254.169.254/latest/meta-data/",
    "loopback": "http://127.0.0.1/",
    "loopback in decimal": "http://2130706433:9000/",
    "loopback in hexadecimal": "http://0x7f000001:9000/",
    "loopback in octal": "http://0177.0.0.1:9000/",
    "loopback abbreviated": "http://127.1:9000/",
    "loopback with leading zeros": "http://127.000.000.001:9000/",
    "loopback as an IPv6-mapped address": "http://[::ffff:127.0.0.1]:9000/",
    "loopback as an IPv6-mapped address in hexadecimal": "http://[::ffff:7f00:1]:9000/",
    "loopback in long IPv6": "http://[0:0:0:0:0:0:0:1]:9000/",
    "an IPv6 address with a zone": "http://[fe80::1%25eth0]:9000/",
    "all interfaces": "http://0.0.0.0:9000/",
    "localhost": "http://localhost:9000/",
    "a trailing dot": "http://hooks.example.org./",
    "full-width letters": "http://hooks。example。org/",
    "file": "file:///etc/passwd",
    "gopher": "gopher://hooks.example.org/",
    "ftp": "ftp://hooks.example.org/",
    "a Unix socket": "http+unix://%2Fvar%2Frun%2Fdocker.sock/",
    "no scheme": "hooks.example.org/",
    "no host": "http:///x",
    "a line break": "http://hooks.example.org/\r\nX: y",
    "a space": "http://hooks.example.org/ x",
    "a port that is none": "http://hooks.example.org:http/",
    "a port that is too large": "http://hooks.example.org:65536/",
    "an escaped host": "http://hooks%2eexample.org/",
    "a very long URL": "http://hooks.example.org/" + "a" * 4096,
    "nothing": "",
}


@pytest.mark.parametrize("url", REFUSED.values(), ids=REFUSED.keys())
def test_everything_else_is_refused_with_the_settings_name(url: str) -> None:
    with pytest.raises(GnomonError) as refused:
        HOSTS.target(url)
    assert (refused.value.status, refused.value.code) == (400, "callback_not_allowed")
    assert "--callback-host" in refused.value.hint


def test_by_default_nothing_is_allowed() -> None:
    with pytest.raises(GnomonError):
        CallbackHosts([]).target("http://hooks.example.org/")


@given(st.text(max_size=80))
def test_no_text_makes_it_fail_otherwise(text: str) -> None:
    for url in (text, f"http://{text}", f"http://hooks.example.org{text}"):
        try:
            target = HOSTS.target(url)
        except GnomonError:
            continue
        assert target.host in {"hooks.example.org", "203.0.113.9", "127.0.0.1", "::1"}


PRIVATE = [
    "127.0.0.1",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.0.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "255.255.255.255",
    "224.0.0.1",
    "192.0.0.170",
    "::",
    "::1",
    "fe80::1",
    "fc00::1",
    "ff02::1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "2002:a00:1::",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_a_listed_name_that_leads_inside_is_refused(address: str) -> None:
    target = HOSTS.target("http://hooks.example.org/")
    with pytest.raises(GnomonError) as refused:
        HOSTS.check_address(target, address)
    assert refused.value.code == "callback_not_allowed"


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::5db8:d822"])
def test_a_public_address_is_not(address: str) -> None:
    HOSTS.check_address(HOSTS.target("http://hooks.example.org/"), address)


def test_an_inside_address_is_allowed_where_the_list_names_it_with_its_port() -> None:
    HOSTS.check_address(HOSTS.target("http://127.0.0.1:9000/"), "127.0.0.1")
    named = CallbackHosts(["worker.internal:9000", "10.0.0.7:9000"])
    named.check_address(named.target("http://worker.internal:9000/"), "10.0.0.7")
    with pytest.raises(GnomonError):
        named.check_address(named.target("http://worker.internal:9000/"), "10.0.0.8")


@pytest.mark.parametrize(
    "entry", ["*.example.org", "http://x.org", "x.org/path", "x.org:port", "a b", "user@x.org", "0x7f.1", "127.1", "é.org"]
)
def test_an_entry_that_is_no_host_is_refused_when_the_gateway_starts(entry: str) -> None:
    with pytest.raises(GnomonError) as refused:
        CallbackHosts([entry])
    assert "--callback-host" in refused.value.message
