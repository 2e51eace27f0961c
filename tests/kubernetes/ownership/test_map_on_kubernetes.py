"""The map of owners in a ConfigMap of a real apiserver, and the gateway's pods there."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from kubernetes import client

from gnomon_core.clock import WallClock
from gnomon_core.errors import GnomonError
from gnomon_core.ownership import OwnershipMap, Replica
from gnomon_gateway.replicas.assigner import Assigner
from gnomon_gateway.replicas.peers import Peers, PeerSecret
from gnomon_platforms.kubernetes.client import Api
from gnomon_platforms.kubernetes.connections import through
from gnomon_platforms.kubernetes.lease import Tenure
from gnomon_platforms.kubernetes.ownership import KEY, NAME, ConfigMapBoard
from gnomon_platforms.kubernetes.writes import Writer
from tests.cluster.client import Cluster
from tests.integration.ownership.conftest import Replica as Gateway

FIRST = OwnershipMap(1, (Replica("a", "http://10.0.0.1:8082", 1),))
SECRET = PeerSecret("between-the-replicas-only")


@dataclass
class Place:
    """A namespace, what writes to it, and the board in it."""

    namespace: str
    core: Any
    writer: Writer
    board: ConfigMapBoard

    def pod(self, name: str, address: str, **labels: str) -> None:
        metadata = {"name": name, "labels": {"app": "gateway", **labels}}
        self.core.create_namespaced_pod(
            self.namespace, {"metadata": metadata, "spec": {"containers": [{"name": "gateway", "image": "gateway:1"}]}}
        )
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        self.core.patch_namespaced_pod_status(name, self.namespace, {"status": status})

    async def until(self, met: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not met():  # noqa: ASYNC110 - the apiserver has no event of ours
                await asyncio.sleep(0.02)


@pytest.fixture
async def place(control_plane: Cluster) -> AsyncIterator[Place]:
    namespace = f"owners-{secrets.token_hex(4)}"
    control_plane.core.create_namespace({"metadata": {"name": namespace}})
    # Nobody else makes the account here: pods are refused without it.
    control_plane.core.create_namespaced_service_account(namespace, {"metadata": {"name": "default"}})
    api = Api(through(control_plane.api))
    writer = Writer(api, WallClock(), random.Random(1))
    board = ConfigMapBoard(api, writer, namespace, "app=gateway", port=8082)
    await board.start()
    yield Place(namespace, control_plane.core, writer, board)
    await board.stop()
    writer.close()


async def test_each_map_follows_the_one_before_it(place: Place) -> None:
    board, seen = place.board, list[int]()
    assert await board.read() is None
    stop = board.watch(lambda new: seen.append(new.epoch))
    assert await board.publish(FIRST)
    assert await board.read() == FIRST
    assert not await board.publish(FIRST)
    assert not await board.publish(replace(FIRST, epoch=3))
    assert await board.publish(replace(FIRST, epoch=2))
    await place.until(lambda: seen == [1, 2])
    stop()
    # Who begins to look later is told of the newest.
    later: list[int] = []
    board.watch(lambda new: later.append(new.epoch))
    assert later == [2]


async def test_of_two_who_believe_that_they_lead_one_publishes(place: Place) -> None:
    mine, theirs = replace(FIRST, epoch=1), replace(FIRST, epoch=1, owners=(Replica("b", "http://10.0.0.2:8082", 1),))
    assert sorted(await asyncio.gather(place.board.publish(mine), place.board.publish(theirs))) == [False, True]


async def test_foreign_entries_of_the_map_are_kept_or_replaced(place: Place) -> None:
    await place.board.publish(FIRST)
    place.core.patch_namespaced_config_map(NAME, place.namespace, {"metadata": {"labels": {"ours": "yes"}}})
    assert await place.board.publish(replace(FIRST, epoch=2))
    found = place.core.read_namespaced_config_map(NAME, place.namespace)
    assert found.metadata.labels == {"ours": "yes"}
    place.core.patch_namespaced_config_map(NAME, place.namespace, {"data": {KEY: "broken"}})
    assert await place.board.read() is None
    assert await place.board.publish(replace(FIRST, epoch=3))
    place.core.delete_namespaced_config_map(NAME, place.namespace)
    assert await place.board.publish(replace(FIRST, epoch=4))
    assert (await place.board.read()) == replace(FIRST, epoch=4)


async def test_former_leader_publishes_no_map(place: Place, control_plane: Cluster) -> None:
    tenure = Tenure(gone=lambda _: None)
    writer = Writer(Api(through(control_plane.api)), WallClock(), random.Random(1), tenure.check)
    board = ConfigMapBoard(Api(through(control_plane.api)), writer, place.namespace, "app=gateway")
    with pytest.raises(GnomonError) as refused:
        await board.publish(FIRST)
    assert refused.value.code == "not_leading"
    assert await board.read() is None
    writer.close()


async def test_the_replicas_are_the_pods_that_have_an_address(place: Place) -> None:
    place.pod("one", "10.0.0.1")
    place.pod("six", "fd00::6")
    place.pod("other", "10.0.0.9", app="another")
    place.core.create_namespaced_pod(
        place.namespace,
        {
            "metadata": {"name": "pending", "labels": {"app": "gateway"}},
            "spec": {"containers": [{"name": "gateway", "image": "gateway:1"}]},
        },
    )
    both = {"http://10.0.0.1:8082", "http://[fd00::6]:8082"}
    await place.until(lambda: set(place.board.addresses()) == both)
    place.core.patch_namespaced_pod_status("six", place.namespace, {"status": {"phase": "Failed"}})
    await place.until(lambda: set(place.board.addresses()) == {"http://10.0.0.1:8082"})
    place.core.delete_namespaced_pod("one", place.namespace, body=client.V1DeleteOptions(grace_period_seconds=0))
    await place.until(lambda: not place.board.addresses())


async def test_gateways_share_functions_by_it(place: Place) -> None:
    """Two replicas at the addresses of pods: found, asked, in the map; one goes, and the map follows."""
    gateways = [Gateway(f"gateway-{number}", place.board) for number in range(2)]
    # Each of a loopback address of its own, at one port, as pods are.
    for number, gateway in enumerate(gateways):
        gateway.shared.inside.host = f"127.0.8.{number + 1}"
        gateway.shared.inside.port = 0 if number == 0 else gateways[0].shared.inside.port
        await gateway.shared.start()
    port = gateways[0].shared.inside.port
    board = ConfigMapBoard(place.writer._api, place.writer, place.namespace, "app=gateway", port=port)  # the port that was free
    await board.start()
    peers = Peers(SECRET)
    leading = asyncio.create_task(Assigner(board, peers, WallClock(), leads=lambda: True, poll_s=0.05).run())
    for number, gateway in enumerate(gateways):
        place.pod(gateway.name, f"127.0.8.{number + 1}")
    try:
        await place.until(lambda: all(gateway.holdings.map is not None for gateway in gateways))
        await place.until(lambda: [len(gateway.holdings.map.owners) for gateway in gateways] == [2, 2])
        leaves = asyncio.create_task(gateways[0].shared.leave(20))
        assert await leaves
        assert [owner.id for owner in gateways[1].holdings.map.owners] == ["gateway-1"]
        assert (await board.read()) == gateways[1].holdings.map
    finally:
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        for gateway in gateways:
            await gateway.shared.stop()
        peers.close()
        await board.stop()
