"""The map of owners: planned, kept, serialised; and the connections between replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.ownership import OwnershipMap, Replica
from gnomon_gateway.functions.function_runtime import FunctionDirectory
from gnomon_gateway.replicas.assigner import POLL_S, Assigner
from gnomon_gateway.replicas.assignment import Attendance, Sighting, next_map
from gnomon_gateway.replicas.peers import Peers, PeerSecret, read_peer_secret
from gnomon_gateway.replicas.replica import ReplicaAgent, Reports
from tests.ownership_boards import MemoryBoard
from tests.virtual_clock import VirtualClock
from tests.waiting import until


def sighting(name: str, *, leaving: bool = False) -> Sighting:
    return Sighting(name, f"http://{name}:8082", leaving)


def replica(name: str, since: int) -> Replica:
    return Replica(name, f"http://{name}:8082", since)


TWO = OwnershipMap(4, (replica("a", 1), replica("b", 3)))


def test_the_first_map_has_everyone_who_answers() -> None:
    new = next_map(None, [sighting("b"), sighting("a")], ())
    assert new == OwnershipMap(1, (replica("a", 1), replica("b", 1)))


def test_without_anyone_there_is_no_first_map() -> None:
    assert next_map(None, [], ()) is None


def test_nothing_new_makes_no_map() -> None:
    assert next_map(TWO, [sighting("a"), sighting("b")], ()) is None


def test_silent_replica_stays_in_the_map_until_its_timeout() -> None:
    assert next_map(TWO, [sighting("a")], ()) is None
    assert next_map(TWO, [sighting("a")], {"b"}) == OwnershipMap(5, (replica("a", 1),))


def test_new_replica_reports_its_start() -> None:
    assert next_map(TWO, [sighting("c")], ()) == OwnershipMap(5, (*TWO.owners, replica("c", 5)))


def test_replica_declared_gone_returns_as_new() -> None:
    without = next_map(TWO, [sighting("a")], {"b"})
    again = next_map(without, [sighting("a"), sighting("b")], ())
    assert again == OwnershipMap(6, (replica("a", 1), replica("b", 6)))


def test_leaving_replica_owns_nothing() -> None:
    going = next_map(TWO, [sighting("a"), sighting("b", leaving=True)], ())
    assert going == OwnershipMap(5, (replica("a", 1),), (replica("b", 3),))
    assert next_map(going, [sighting("a")], ()) is None
    assert next_map(going, [sighting("a")], {"b"}) == OwnershipMap(6, (replica("a", 1),))


def test_the_last_one_owns_everything_also_while_it_leaves() -> None:
    alone = OwnershipMap(2, (replica("a", 1),))
    assert next_map(alone, [sighting("a", leaving=True)], ()) is None
    followed = next_map(alone, [sighting("a", leaving=True), sighting("b")], ())
    assert followed == OwnershipMap(3, (replica("b", 3),), (replica("a", 1),))


def test_a_map_survives_being_written_down() -> None:
    going = next_map(TWO, [sighting("b", leaving=True)], ())
    assert going is not None
    assert OwnershipMap.from_json(going.to_json()) == going


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"epoch": 0, "owners": [], "leaving": []},
        {"epoch": True, "owners": [], "leaving": []},
        {"epoch": 1 << 32, "owners": [], "leaving": []},
        {"epoch": 1, "owners": [{"id": "a", "address": "http://a"}], "leaving": []},
        {"epoch": 1, "owners": [{"id": "", "address": "http://a", "since": 1}], "leaving": []},
        {"epoch": 1, "owners": ["a"], "leaving": []},
        {"epoch": 1, "owners": 7, "leaving": []},
    ],
)
def test_invalid_owner_map_is_refused(document: object) -> None:
    with pytest.raises(GnomonError) as caught:
        OwnershipMap.from_json(document)
    assert caught.value.code == "invalid_map"


class TestAttendance:
    """The replicas that have gone, and when."""

    addresses = ("http://a:8082", "http://b:8082")

    def gone(self, attendance: Attendance, now_s: float, addresses: tuple[str, ...] = addresses) -> set[str]:
        return attendance.gone(TWO.members, addresses, now_s)

    def test_silence_is_borne_for_a_while(self) -> None:
        attendance = Attendance(silence_s=3.0)
        for name in ("a", "b"):
            attendance.answered(sighting(name), 10.0)
        attendance.answered(sighting("a"), 13.0)
        assert self.gone(attendance, 12.9) == set()
        assert self.gone(attendance, 13.1) == {"b"}

    def test_a_new_leader_is_patient_with_those_it_has_not_heard(self) -> None:
        attendance = Attendance(silence_s=3.0)
        assert self.gone(attendance, 100.0) == set()
        assert self.gone(attendance, 102.9) == set()
        assert self.gone(attendance, 103.1) == {"a", "b"}

    def test_an_address_where_nothing_listens_twice_is_nobodys(self) -> None:
        attendance = Attendance()
        for name in ("a", "b"):
            attendance.answered(sighting(name), 10.0)
        attendance.refused("http://b:8082")
        assert self.gone(attendance, 10.2) == set()
        attendance.refused("http://b:8082")
        assert self.gone(attendance, 10.4) == {"b"}

    def test_a_refusal_that_was_followed_by_an_answer_does_not_count(self) -> None:
        attendance = Attendance()
        attendance.refused("http://b:8082")
        attendance.answered(sighting("b"), 10.0)
        attendance.refused("http://b:8082")
        assert self.gone(attendance, 10.4) == set()

    def test_another_process_at_its_address_is_its_end(self) -> None:
        attendance = Attendance()
        attendance.answered(sighting("a"), 10.0)
        attendance.answered(Sighting("b2", "http://b:8082"), 10.0)
        assert self.gone(attendance, 10.1) == {"b"}
        assert {replica.id for replica in attendance.seen(self.addresses)} == {"a", "b2"}

    def test_an_address_that_is_not_there_any_more_is_nobodys(self) -> None:
        attendance = Attendance()
        for name in ("a", "b"):
            attendance.answered(sighting(name), 10.0)
        assert self.gone(attendance, 10.1, ("http://a:8082",)) == {"b"}
        assert [replica.id for replica in attendance.seen(("http://a:8082",))] == ["a"]

    def test_forgotten_replica_returns_only_by_answering(self) -> None:
        attendance = Attendance()
        attendance.answered(sighting("b"), 10.0)
        attendance.forget({"b"})
        assert attendance.seen(self.addresses) == []
        attendance.answered(sighting("b"), 20.0)
        assert [replica.id for replica in attendance.seen(self.addresses)] == ["b"]


def test_leader_owns_nothing_while_there_is_another_replica() -> None:
    """So that functions need not wait for its Lease to be over when it is killed."""
    first = next_map(None, [sighting("a")], (), "a")
    assert first == OwnershipMap(1, (replica("a", 1),)), "alone it owns everything"
    both = next_map(first, [sighting("a"), sighting("b")], (), "a")
    assert both == OwnershipMap(2, (replica("b", 2),), (replica("a", 1),))
    assert next_map(both, [sighting("a"), sighting("b")], (), "a") is None
    assert next_map(both, [sighting("a")], {"b"}, "a") == OwnershipMap(3, (replica("a", 1),))
    # Another one leads: the first is gone then, for a process that has lost its Lease ends.
    assert next_map(both, [sighting("b")], {"a"}, "b") == OwnershipMap(3, (replica("b", 2),))
    led = OwnershipMap(3, (replica("b", 2), replica("c", 3)), (replica("a", 1),))
    assert next_map(led, [sighting("b"), sighting("c")], {"a"}, "b") == OwnershipMap(4, (replica("c", 3),), (replica("b", 2),))


def test_leaving_leader_gives_its_queues_away() -> None:
    both = OwnershipMap(2, (replica("b", 2),), (replica("a", 1),))
    assert next_map(both, [sighting("a", leaving=True), sighting("b")], (), "a") is None
    assert next_map(both, [sighting("a"), sighting("b", leaving=True)], (), "a") == OwnershipMap(
        3, (replica("a", 1),), (replica("b", 2),)
    )


class Broken(MemoryBoard):
    """Says at the first two looks that it cannot be read."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error, self.looks = error, 0

    def addresses(self) -> Collection[str]:
        self.looks += 1
        if self.looks <= 2:
            raise self.error
        return ()


@pytest.mark.parametrize("error", [GnomonError(503, "away", "It is away."), OSError(116, "Stale file handle"), KeyError("ip")])
async def test_owner_map_is_read_again(error: Exception) -> None:
    clock, board = VirtualClock(), Broken(error)
    task = asyncio.create_task(Assigner(board, cast("Peers", None), clock, leads=lambda: True).run())
    await clock.advance(5 * POLL_S)
    assert board.looks > 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


NOBODY: Any = cast("Any", None)


async def test_a_word_that_comes_with_a_question_wakes_what_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new owner of a function waits until the others have let go of it; they may say so before they are asked."""
    life = ReplicaAgent("b", NOBODY, FunctionDirectory(), MemoryBoard(), Peers(PeerSecret("between-the-replicas-only")))
    shared = OwnershipMap(1, (Replica("b", "http://b:8082", 1),), (Replica("a", "http://a:8082", 1),))
    life.learn(shared)
    assert [replica.id for replica in life.holdings.unreleased_by("f")] == ["a"]
    woken: list[int] = []
    monkeypatch.setattr(life.forwarder, "changed", lambda: woken.append(1))
    life.answer({"from": "a", "map": shared.to_json(), "draining": []})
    assert life.holdings.unreleased_by("f") == []
    assert woken


class Nobody:
    """No address answers."""

    async def call(self, address: str, *_: Any) -> tuple[int, bytes]:
        raise ConnectionRefusedError(address)


class State:
    """A `StateExchange` that records what it takes; `broken` documents cannot be read."""

    def __init__(self, *, broken: bool = False) -> None:
        self.broken = broken
        self.kept: list[Collection[str]] = []
        self.followed: list[tuple[str, Any]] = []

    def report(self, received: int) -> dict[str, Any]:
        return {"number": received + 1}

    def follow(self, name: str, document: Any) -> None:
        if self.broken:
            int(float("inf"))
        self.followed.append((name, document))

    def take_report(self, replica: str, report: Any) -> None: ...

    def leader_state(self, address: str) -> dict[str, Any]:
        return {"pairs": {"i": 1}, "plans": None, "learned": {"at": address}}

    def keep(self, addresses: Collection[str]) -> None:
        self.kept.append(addresses)


async def test_leader_forgets_replicas_at_addresses_that_are_gone() -> None:
    state, board = State(), MemoryBoard()
    reports = Reports(state)
    for number, address in enumerate(("10.0.0.1", "10.0.0.2", "10.0.0.3"), 1):
        reports.take_report(f"replica-{number}", {"number": number}, address)
    agent = SimpleNamespace(reports=reports, identity="replica-1", address="10.0.0.1")
    board.listening = {"10.0.0.1", "10.0.0.2"}
    leader = Assigner(
        board, cast("Peers", Nobody()), VirtualClock(), leads=lambda: True, agent=cast("ReplicaAgent", agent), poll_s=0.01
    )
    await leader.poll()
    assert reports.received == {"10.0.0.1": 1, "10.0.0.2": 2}
    board.listening = set()
    await leader.poll()
    assert reports.received == {"10.0.0.1": 1}, "one's own is not on the board of every platform"
    assert state.kept == [{"10.0.0.1", "10.0.0.2"}, {"10.0.0.1"}]


def test_replica_follows_the_parts_of_the_leaders_state_that_are_known() -> None:
    state = State()
    replica, question = Reports(state), Reports(State()).leader_state("10.0.0.2")
    replica.follow(question)
    replica.follow({})  # a leader of an earlier version sends no state
    assert state.followed == [("pairs", {"i": 1}), ("learned", {"at": "10.0.0.2"})]


@pytest.mark.parametrize("name", ["pairs", "plans", "learned"])
def test_unreadable_report_is_refused_by_name(name: str) -> None:
    with pytest.raises(GnomonError) as refused:
        Reports(State(broken=True)).follow({name: {}})
    assert (refused.value.status, refused.value.code) == (400, f"invalid_{name}")


GOOD = "c2VjcmV0LW9mLXJlcGxpY2Fz"


def test_only_the_secret_itself_is_let_in() -> None:
    secret = PeerSecret(GOOD)
    assert secret.allows(GOOD.encode())
    for shown in (None, b"", GOOD.encode()[:-1], GOOD.encode() + b"x", GOOD.upper().encode(), b"\xff"):
        assert not secret.allows(shown)


def test_peer_secret_is_read_without_its_line_break(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{GOOD}\n")
    assert read_peer_secret(tmp_path / "secret").allows(GOOD.encode())


@pytest.mark.parametrize("text", ["", "short", "sixteen letters\r\nx-injected: 1", "sechzehn Zeichen lang, ähnlich"])
def test_weak_or_malformed_peer_secret_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "secret").write_text(text, encoding="utf-8")
    with pytest.raises(GnomonError) as caught:
        read_peer_secret(tmp_path / "secret")
    assert caught.value.code == "peer_secret_unfit"
    assert not text or text not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(GnomonError) as caught:
        read_peer_secret(tmp_path / "nowhere")
    assert caught.value.code == "peer_secret_missing"
    assert "nowhere" in caught.value.message


def test_peer_secret_is_not_in_its_repr() -> None:
    assert GOOD not in repr(PeerSecret(GOOD))


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """The address of a replica that answers nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    made = Peers(PeerSecret("between-the-replicas-only"))
    yield made
    made.close()


async def test_kept_connection_is_used_again(peers: Peers, address: str) -> None:
    connection = await peers.open(address)
    peers.keep(connection)
    assert peers.idle(address) is connection
    assert peers.idle(address) is None
    connection.drop()


async def test_address_is_forgotten_with_its_last_connection(peers: Peers, address: str) -> None:
    first, second = await peers.open(address), await peers.open(address)
    peers.keep(first)
    peers.keep(second)
    assert peers.idle(address) is second
    second.drop()
    first.drop()
    await until(lambda: peers._idle == {})
