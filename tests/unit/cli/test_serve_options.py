"""The options of `gnomon serve`: hosts, namespaces and models on Knative, and the network between nodes."""

import socket
from pathlib import Path

import click
import pytest

from gnomon_cli.commands.serve import read_options, serve
from gnomon_cli.commands.serve_options import knative_gateway_options, knative_options, read_cluster_options
from gnomon_core.addresses import http_url
from gnomon_core.errors import GnomonError
from gnomon_core.profiles import Network
from gnomon_server.options import ServeOptions
from gnomon_server.process import check_port
from tests.refusals import refused


def told(state: Path, *arguments: str) -> ServeOptions:
    """What `gnomon serve` makes of these arguments."""
    with serve.make_context("serve", ["--state", str(state), "--platform", "openfaas", *arguments]) as context:
        return read_options(**context.params)


@pytest.mark.parametrize("written", ["fd00::1", "[fd00::1]"])
def test_an_address_is_the_same_with_brackets_and_without(written: str, tmp_path: Path) -> None:
    options = told(tmp_path, "--host", written, "--advertise", written)
    assert (options.host, options.cluster.advertise) == ("fd00::1", "fd00::1"), "as sockets take it"
    assert http_url(options.cluster.advertise, 8080) == "http://[fd00::1]:8080"


@pytest.mark.parametrize("written", ["10.0.0.1", "gateway.example", ""])
def test_names_and_other_addresses_are_left_as_they_are(written: str, tmp_path: Path) -> None:
    options = told(tmp_path, "--advertise", written)
    assert options.cluster.advertise == written


@pytest.mark.parametrize("option", ["--host", "--advertise"])
@pytest.mark.parametrize("written", ["10.0.0.1:8080", "[fd00::1]:8080", "[fd00::1", "[gateway]", "http://gateway"])
def test_host_with_a_port_is_refused(option: str, written: str, tmp_path: Path) -> None:
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


GIVEN = {
    "kubeconfig": Path("admin.conf"),
    "policies": (),
    "host": "127.0.0.1",
    "port": 0,
    "models": None,
    "state": None,
    "coordinator_token": None,
    "network_gbps": None,
    "network_rtt_ms": 0.0,
}


def test_without_a_namespace_it_looks_after_all_and_leads_beside_knatives_own() -> None:
    options = knative_options({**GIVEN, "namespaces": ()})
    assert (options.scaled.namespace, options.lease_namespace) == (None, "knative-serving")


def test_each_namespace_has_its_own_leader() -> None:
    options = knative_options({**GIVEN, "namespaces": ("team-a",)})
    assert (options.scaled.namespace, options.lease_namespace) == ("team-a", "team-a")
    assert options.kubeconfig == Path("admin.conf")


def test_several_namespaces_are_refused() -> None:
    with pytest.raises(GnomonError, match="a process serves all namespaces or one"):
        knative_options({**GIVEN, "namespaces": ("team-a", "team-b")})


def test_the_gateway_serves_all_namespaces_or_one() -> None:
    given = {**GIVEN, "page_port": 9090}
    assert knative_gateway_options({**given, "namespaces": ()}).namespace is None
    assert knative_gateway_options({**given, "namespaces": ("team-a",)}).namespace == "team-a"
    with pytest.raises(GnomonError, match="a process serves all namespaces or one"):
        knative_gateway_options({**given, "namespaces": ("team-a", "team-b")})


def test_the_gateway_foretells_batches_where_it_is_told_of_models(tmp_path: Path) -> None:
    given = {**GIVEN, "page_port": 9090, "namespaces": ()}
    assert knative_gateway_options(given).models is None
    assert knative_gateway_options({**given, "models": str(tmp_path), "state": ""}).models is not None


def test_shadows_need_models_to_hold_blocks_of() -> None:
    with pytest.raises(GnomonError, match="--models is missing"):
        knative_options({**GIVEN, "namespaces": (), "coordinator_token": Path("token")})


def test_with_models_and_a_token_the_class_may_ask_nodes_for_shadows(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("of the coordinators\n")
    given = {**GIVEN, "namespaces": (), "models": str(tmp_path), "state": ""}
    alone = knative_options(given).scaled.models
    assert alone.nodes is None
    told = knative_options({**given, "coordinator_token": token}).scaled.models
    assert told.nodes.token == "of the coordinators"


def test_network_options_are_those_of_every_cluster() -> None:
    with refused(400, "bad_network"):
        knative_options({**GIVEN, "namespaces": (), "network_gbps": 0.0})


def declared(gbps: float | None, rtt_ms: float = 0.0) -> Network | None:
    options = read_cluster_options(
        (), kubeconfig=None, cluster_wide=False, advertise="", coordinator_token=None, models_claim=None,
        network_gbps=gbps, network_rtt_ms=rtt_ms, peer_secret=None, inside_port=8082,
    )  # fmt: skip
    return options.network


def test_network_needs_bandwidth_and_round_trip_time() -> None:
    assert declared(None, 0.2) is None
    assert declared(10, 0.2) == Network.of(10, 0.2)


@pytest.mark.parametrize(("gbps", "rtt_ms"), [(0, 0), (-1, 0), (float("inf"), 0), (float("nan"), 0), (10, -1)])
def test_invalid_network_is_refused(gbps: float, rtt_ms: float) -> None:
    with refused(400, "bad_network"):
        declared(gbps, rtt_ms)
