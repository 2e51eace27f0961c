"""`gnomon serve --platform knative`: whom it looks after."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnomon_cli.commands.serve_options import knative_gateway_options, knative_options
from gnomon_core.errors import GnomonError

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


def test_one_namespace_has_a_leader_of_its_own() -> None:
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
    assert alone is not None
    assert alone.nodes is None
    told = knative_options({**given, "coordinator_token": token}).scaled.models
    assert told is not None
    assert told.nodes is not None
    assert told.nodes.token == "of the coordinators"


def test_what_lies_between_nodes_is_said_in_the_words_of_every_cluster() -> None:
    with pytest.raises(GnomonError) as refused:
        knative_options({**GIVEN, "namespaces": (), "network_gbps": 0.0})
    assert (refused.value.status, refused.value.code) == (400, "bad_network")
