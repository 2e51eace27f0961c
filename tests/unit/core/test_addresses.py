"""Hosts in URLs."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.addresses import bracketed, from_this_machine, host_and_port, http_url, unbracketed

HOSTS = st.ip_addresses().map(str) | st.from_regex(r"[a-z][a-z0-9]{0,8}(\.[a-z]{2,5}){0,3}", fullmatch=True)


@given(HOSTS, st.integers(1, 65535), st.sampled_from(["", "/", "/metrics", "/a/b?c=d"]))
def test_a_url_is_read_as_the_host_and_the_port_that_it_was_made_of(host: str, port: int, path: str) -> None:
    url = http_url(host, port, path)
    parts = urlsplit(url)
    assert (parts.scheme, parts.hostname, parts.port) == ("http", host, port)
    assert url.endswith(path)


@pytest.mark.parametrize(
    ("host", "written"),
    [("10.0.0.1", "10.0.0.1"), ("localhost", "localhost"), ("::1", "[::1]"), ("::ffff:10.0.0.1", "[::ffff:10.0.0.1]")],
)
def test_only_ipv6_stands_in_brackets(host: str, written: str) -> None:
    assert (bracketed(host), host_and_port(host, 80)) == (written, f"{written}:80")


@given(HOSTS)
def test_brackets_change_nothing_where_they_are_already_or_are_not_yet(host: str) -> None:
    written = bracketed(host)
    assert (bracketed(written), unbracketed(written), unbracketed(host)) == (written, host, host)


@pytest.mark.parametrize("written", ["[::1", "::1]", "[::1]:80", "10.0.0.1:80", "[10.0.0.1]", "[]", "http://localhost"])
def test_what_is_no_host_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        unbracketed(written)


@pytest.mark.parametrize(
    ("bound", "reached"), [("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("::1", "::1"), ("10.0.0.1", "10.0.0.1")]
)
def test_what_listens_everywhere_is_reached_over_loopback(bound: str, reached: str) -> None:
    assert from_this_machine(bound) == reached
