"""What an operator declares to lie between a cluster's nodes, in the simulator's words."""

from __future__ import annotations

import pytest

from gnomon_cli.commands.serve_options import read_cluster_options
from gnomon_core.errors import GnomonError
from gnomon_core.profiles import Network


def declared(gbps: float | None, rtt_ms: float = 0.0) -> Network | None:
    options = read_cluster_options(
        (), kubeconfig=None, cluster_wide=False, advertise="", coordinator_token=None, models_claim=None,
        network_gbps=gbps, network_rtt_ms=rtt_ms, peer_secret=None, inside_port=8082,
    )  # fmt: skip
    return options.network


def test_it_is_a_bandwidth_and_a_way_there_and_back_and_nothing_by_itself() -> None:
    assert declared(None, 0.2) is None
    assert declared(10, 0.2) == Network.of(10, 0.2)


@pytest.mark.parametrize(("gbps", "rtt_ms"), [(0, 0), (-1, 0), (float("inf"), 0), (float("nan"), 0), (10, -1)])
def test_what_is_no_network_is_refused(gbps: float, rtt_ms: float) -> None:
    with pytest.raises(GnomonError) as caught:
        declared(gbps, rtt_ms)
    assert (caught.value.status, caught.value.code) == (400, "bad_network")
