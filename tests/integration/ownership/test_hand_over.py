"""A function's queue goes from one replica to another: first the old owner has nothing in flight, then the new one begins."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from gnomon_core.ownership import MAX_EPOCH, OwnershipMap, Replica
from gnomon_core.wire import Frame, Kind, Member
from gnomon_gateway.replicas.assignment import Place, owner
from tests.integration.ownership.conftest import until


def replicas(count: int) -> list[Replica]:
    return [Replica(f"gateway-{number}", "", 1) for number in range(count)]


def moving() -> str:
    """A function that goes from gateway-0 to the third replica when that comes."""
    names = (f"f{number}" for number in range(1000))
    return next(name for name in names if [_owner(name, 2), _owner(name, 3)] == ["gateway-0", "gateway-2"])


def _owner(name: str, count: int) -> str:
    found = owner(f"{name}.openfaas-fn", replicas(count))
    assert found is not None
    return found.id


async def test_the_new_owner_waits_for_the_last_answer_of_the_old_one(cluster: Any) -> None:
    name = moving()
    await cluster.deploy(name)
    old, other = await cluster.grow(2)
    path = f"/function/{name}"
    held = asyncio.ensure_future(old.call(f"{path}/held", b"held"))
    await cluster.executing(b"held")
    # These wait in the old owner's queue, because its only instance is busy.
    waiting = [asyncio.ensure_future(replica.call(path, replica.name.encode())) for replica in (old, other)]
    await until(lambda: old.functions[name].dispatcher.in_system == 3)

    new = await cluster.add()
    await until(lambda: new.holdings.epoch == 2 == old.holdings.epoch)
    late = asyncio.ensure_future(new.call(path, b"late"))
    await until(lambda: new.shared.agent.forwarder.waiting == 3)
    # All three that had not begun wait at the new owner, which does not begin.
    assert old.holdings.status().draining == {f"{name}.openfaas-fn"}
    assert new.shared.agent.place(f"{name}.openfaas-fn") is Place.WAITS
    assert cluster.executed() == [b"held"]

    cluster.release()
    assert (await held).body == b"held"
    assert [(await reply).body for reply in waiting] == [b"gateway-0", b"gateway-1"]
    assert (await late).body == b"late"
    assert cluster.owner(name) is new
    assert sorted(cluster.executed()) == sorted([b"held", b"gateway-0", b"gateway-1", b"late"])
    assert old.holdings.status().draining == set()
    # What was given back is no answer of the old owner's.
    assert old.functions[name].metrics.invocations == 1
    assert new.functions[name].metrics.invocations == 3


async def test_functions_that_do_not_move_are_not_held_up(cluster: Any) -> None:
    moves, stays = (
        moving(),
        next(name for name in (f"g{n}" for n in range(99)) if _owner(name, 3) == _owner(name, 2) == "gateway-0"),
    )
    await cluster.deploy(moves)
    await cluster.deploy(stays)
    old, _ = await cluster.grow(2)
    held = asyncio.ensure_future(old.call(f"/function/{moves}/held", b"held"))
    await cluster.executing(b"held")
    new = await cluster.add()
    await until(lambda: new.holdings.epoch == 2 == old.holdings.epoch)
    assert (await new.call(f"/function/{stays}", b"at once")).body == b"at once"
    assert not held.done()
    cluster.release()
    assert (await held).status == 200


async def test_a_body_that_is_still_coming_when_the_queue_moves_is_not_lost(cluster: Any) -> None:
    name = moving()
    await cluster.deploy(name)
    old, _ = await cluster.grow(2)
    assert (await old.call(f"/function/{name}", b"before")).status == 200
    connection = await old.connect()
    await connection.send(b"POST /function/%b HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\nhalf" % name.encode())
    await until(lambda: any(connection.phase == 2 for connection in old.server._connections()))  # it has the head
    new = await cluster.add()
    await cluster.settled(3)
    assert (await new.call(f"/function/{name}", b"after")).status == 200
    await connection.send(b"half")
    assert (await connection.answer()).body == b"halfhalf"
    assert cluster.executed() == [b"before", b"after", b"halfhalf"]
    assert new.functions[name].metrics.invocations == 2


async def test_leaving_owner_loses_no_request(cluster: Any) -> None:
    names = [f"f{number}" for number in range(4)]
    for name in names:
        await cluster.deploy(name)
    first, second = await cluster.grow(2)
    ended = asyncio.Event()
    answers: list[bytes] = []
    sent: list[bytes] = []

    async def client(number: int) -> None:
        rounds = 0
        while not ended.is_set():
            rounds += 1
            body = b"%d-%d" % (number, rounds)
            sent.append(body)
            replica = first if (rounds + number) % 2 and not first.shared.agent.leaving else second
            response = await replica.call(f"/function/{names[number]}/sleep/2", body)
            assert (response.status, response.body) == (200, body)
            answers.append(body)

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(client(number))
        await until(lambda: len(answers) > 60)
        assert await first.shared.leave(20)
        assert not first.holdings.is_owner
        before = len(answers)
        await until(lambda: len(answers) > before + 60)
        ended.set()
    assert sorted(answers) == sorted(sent) == sorted(cluster.executed())
    assert all(cluster.owner(name) is second for name in names)


async def test_the_last_one_leaves_at_once_and_owns_to_its_end(cluster: Any) -> None:
    await cluster.deploy("f")
    [alone] = await cluster.grow(1)
    assert await alone.shared.leave(20)
    assert (await alone.call("/function/f", b"x")).body == b"x"


async def test_without_a_leader_the_last_map_holds(cluster: Any) -> None:
    await cluster.deploy("f")
    await cluster.grow(2)
    cluster.led = False
    # One that comes meanwhile waits for a leader, and forwards all the same.
    third = await cluster.add()
    await until(lambda: third.holdings.epoch == 1)
    for replica in cluster.replicas:
        assert (await replica.call("/function/f", replica.name.encode())).body == replica.name.encode()
    assert cluster.board.listening
    cluster.led = True
    await cluster.settled(3)


async def test_request_a_dead_owner_never_received_goes_to_the_next_owner(cluster: Any) -> None:
    await cluster.deploy("f")
    await cluster.grow(2)
    gone, left = cluster.owner("f"), cluster.other("f")
    cluster.led = False
    await gone.shared.stop()  # nothing listens at its address any more
    waiting = asyncio.ensure_future(left.call("/function/f", b"patient"))
    await until(lambda: left.counters.unreached >= 2)
    assert cluster.executed() == []
    cluster.led = True
    response = await waiting
    assert (response.status, response.body) == (200, b"patient")
    assert cluster.executed() == [b"patient"]
    assert cluster.owner("f") is left


async def test_request_a_dead_owner_may_have_executed_answers_502(cluster: Any) -> None:
    await cluster.deploy("f")
    await cluster.grow(2)
    gone, left = cluster.owner("f"), cluster.other("f")
    lost = asyncio.ensure_future(left.call("/function/f/held", b"lost"))
    await cluster.executing(b"lost")
    for connection in gone.shared.inside._connections():  # as the kernel does when a process ends
        connection.transport.abort()
    response = await lost
    assert (response.status, json.loads(response.body)["error"]["code"]) == (502, "replica_lost")
    assert response.headers["x-openfaas-internal"] == "gnomon"
    cluster.release()
    assert (await left.call("/function/f", b"next")).body == b"next"
    assert cluster.executed() == [b"lost", b"next"]


@pytest.mark.parametrize("earlier", [[], [b"earlier"]], ids=["new", "deployed again"])
async def test_stale_owner_learns_of_its_successor_from_an_instance(cluster: Any, earlier: list[bytes]) -> None:
    await cluster.deploy("f")
    await cluster.grow(2)
    for body in earlier:
        assert (await cluster.owner("f").call("/function/f", body)).status == 200
        cluster.remove("f")
        await cluster.deploy("f")
    cluster.led = False
    owns, successor = cluster.owner("f"), cluster.other("f")
    assert (await owns.call("/function/f", b"first")).status == 200
    # It is out of the map, as one that was frozen: its place on the board's watchers' list brought it nothing.
    newest = cluster.board.newest
    cluster.board.newest = OwnershipMap(newest.epoch + 4, tuple(owner for owner in newest.owners if owner.id == successor.name))
    successor.shared.agent.learn(cluster.board.newest)
    assert (await successor.call("/function/f", b"second")).status == 200
    assert owns.serves("f")
    waiting = [asyncio.ensure_future(owns.call("/function/f", b"%d" % number)) for number in range(3)]
    assert [(await reply).body for reply in waiting] == [b"0", b"1", b"2"]
    assert owns.holdings.map == cluster.board.newest
    assert sorted(cluster.executed()) == [b"0", b"1", b"2", *earlier, b"first", b"second"]
    assert successor.functions["f"].metrics.invocations == 4
    # An instance that refuses has not failed.
    assert owns.functions["f"].ready == 1


async def test_instance_that_claims_a_false_epoch_affects_only_itself(cluster: Any) -> None:
    """The map was lost with its board while instances lived on; or the instance lies."""
    await cluster.deploy("f")
    await cluster.deploy("g")
    await cluster.grow(2)
    [(_, channel)] = cluster._channels["f"]  # the instance's own
    done: asyncio.Future[Frame | None] = asyncio.get_running_loop().create_future()
    channel.run(Frame(Kind.BATCH, 99, MAX_EPOCH, 0.0, b"", [Member(0, 1, b"POST\n/\n\n", b"theirs")]), done.set_result)
    assert (await done) is not None
    for replica in cluster.replicas:
        for name in ("f", "g"):
            assert (await replica.call(f"/function/{name}", name.encode())).body == name.encode()
    assert sorted(cluster.executed()) == [b"f", b"f", b"g", b"g", b"theirs"]
    assert cluster.owner("f").holdings.epoch < MAX_EPOCH


async def test_a_frozen_replica_that_was_taken_for_gone_finds_its_place_again(cluster: Any) -> None:
    await cluster.deploy("f")
    await cluster.grow(2)
    cluster.led = False
    was, becomes = cluster.owner("f"), cluster.other("f")
    newest = await cluster.board.read()
    without = OwnershipMap(2, tuple(owner for owner in newest.owners if owner.id != was.name))
    # It learns of both at once, as one that was frozen for a while.
    again = OwnershipMap(3, tuple(sorted((*without.owners, replace(newest.member(was.name), since=3)))))
    becomes.shared.agent.learn(without)
    assert (await becomes.call("/function/f", b"by the other")).body == b"by the other"
    assert await cluster.board.publish(without)
    assert await cluster.board.publish(again)
    assert (await was.call("/function/f", b"by it again")).body == b"by it again"
    assert cluster.owner("f") is was
    assert cluster.executed() == [b"by the other", b"by it again"]


@pytest.mark.parametrize("count", [3])
async def test_each_of_many_functions_is_served_by_exactly_one(cluster: Any, count: int) -> None:
    await cluster.deploy("f")
    await cluster.grow(count)
    for number in range(50):
        function = f"function-{number}.openfaas-fn"
        places = [replica.shared.agent.place(function) for replica in cluster.replicas]
        assert places.count(Place.HERE) == 1
        assert {place.id for place in places if isinstance(place, Replica)} == {
            replica.name for replica, place in zip(cluster.replicas, places, strict=True) if place is Place.HERE
        }


async def test_new_leader_restores_a_lost_map_from_the_replicas(cluster: Any) -> None:
    await cluster.deploy("f")
    await cluster.grow(2)
    cluster.led = False
    epoch = cluster.board.newest.epoch
    cluster.board.newest = None
    third = await cluster.add()
    cluster.led = True
    await cluster.settled(3)
    assert cluster.board.newest.epoch == epoch + 1
    assert (await third.call("/function/f", b"x")).body == b"x"
