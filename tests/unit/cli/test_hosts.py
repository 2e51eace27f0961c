"""Hosts on the command line: an IPv6 address may stand in brackets, as it does in URLs, or not."""

from __future__ import annotations

import socket
from pathlib import Path

import click
import pytest

from gnomon_cli.commands.serve import read_options, serve
from gnomon_core.addresses import http_url
from gnomon_core.errors import GnomonError
from gnomon_server.options import ServeOptions
from gnomon_server.process import check_port


def told(state: Path, *arguments: str) -> ServeOptions:
    """What `gnomon serve` makes of these arguments."""
    with serve.make_context("serve", ["--state", str(state), "--platform", "openfaas", *arguments]) as context:
        return read_options(**context.params)


@pytest.mark.parametrize("written", ["fd00::1", "[fd00::1]"])
def test_an_address_is_the_same_with_brackets_and_without(written: str, tmp_path: Path) -> None:
    options = told(tmp_path, "--host", written, "--advertise", written)
    assert options.cluster is not None
    assert (options.host, options.cluster.advertise) == ("fd00::1", "fd00::1"), "as sockets take it"
    assert http_url(options.cluster.advertise, 8080) == "http://[fd00::1]:8080"


@pytest.mark.parametrize("written", ["10.0.0.1", "gateway.example", ""])
def test_names_and_other_addresses_are_left_as_they_are(written: str, tmp_path: Path) -> None:
    options = told(tmp_path, "--advertise", written)
    assert options.cluster is not None
    assert options.cluster.advertise == written


@pytest.mark.parametrize("option", ["--host", "--advertise"])
@pytest.mark.parametrize("written", ["10.0.0.1:8080", "[fd00::1]:8080", "[fd00::1", "[gateway]", "http://gateway"])
def test_what_has_a_port_or_is_no_host_is_refused(option: str, written: str, tmp_path: Path) -> None:
    with pytest.raises(click.BadParameter, match="is no host"):
        told(tmp_path, option, written)


@pytest.mark.skipif(not socket.has_ipv6, reason="the machine knows no IPv6")
def test_where_nobody_can_listen_is_named_as_it_is_written() -> None:
    """2001:db8::/32 is for documents: no machine has an address of it."""
    with pytest.raises(GnomonError, match=r"Cannot listen on \[2001:db8::1\]:8080: "):
        check_port("2001:db8::1", 8080)


@pytest.mark.parametrize(("written", "largest"), [("200Mi", 200 << 20), ("1000000", None), ("1Gi", None), ("many", None)])
def test_the_largest_body_is_an_amount_of_memory_within_bounds(written: str, largest: int | None, tmp_path: Path) -> None:
    if largest is not None:
        assert told(tmp_path, "--max-body", written).max_body_bytes == largest
        return
    with pytest.raises(click.BadParameter):
        told(tmp_path, "--max-body", written)
    assert told(tmp_path).max_body_bytes == 64 << 20
