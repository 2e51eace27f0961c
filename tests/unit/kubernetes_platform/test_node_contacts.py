"""Channels to pods of one node share the time of its last answer, and nothing is kept of nodes without channels."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any, cast

from gnomon_core.clock import VirtualClock
from gnomon_platforms.openfaas.observed import ObservedCluster, OpenFaasOptions


async def test_contact_of_a_node_is_shared_and_forgotten_with_its_last_channel() -> None:
    api = cast("Any", SimpleNamespace(namespace="openfaas-fn"))
    cluster = ObservedCluster(api, OpenFaasOptions(), lambda _: None, leads=True, clock=VirtualClock())
    first, second = cluster.node_contact("node-a"), cluster.node_contact("node-a")
    assert first is second
    assert cluster.node_contact("node-b") is not first
    first.at_s = 7.0
    del first
    gc.collect()
    assert cluster.node_contact("node-a").at_s == 7.0
    del second
    gc.collect()
    assert cluster.node_contact("node-a").at_s == float("-inf")
