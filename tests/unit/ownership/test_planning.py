"""When there is a new map of owners, and what is in it."""

from __future__ import annotations

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.ownership import OwnershipMap, Replica
from gnomon_gateway.replicas.assignment import Attendance, Sighting, next_map


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


def test_one_that_is_silent_stays_until_it_is_gone() -> None:
    assert next_map(TWO, [sighting("a")], ()) is None
    assert next_map(TWO, [sighting("a")], {"b"}) == OwnershipMap(5, (replica("a", 1),))


def test_one_that_comes_says_since_when() -> None:
    assert next_map(TWO, [sighting("c")], ()) == OwnershipMap(5, (*TWO.owners, replica("c", 5)))


def test_one_that_was_taken_for_gone_comes_back_as_new() -> None:
    without = next_map(TWO, [sighting("a")], {"b"})
    again = next_map(without, [sighting("a"), sighting("b")], ())
    assert again == OwnershipMap(6, (replica("a", 1), replica("b", 6)))


def test_one_that_leaves_owns_nothing_and_is_asked_until_it_is_gone() -> None:
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
def test_what_is_no_map_is_refused(document: object) -> None:
    with pytest.raises(GnomonError) as caught:
        OwnershipMap.from_json(document)
    assert caught.value.code == "invalid_map"


class TestAttendance:
    """Who is gone, and when."""

    addresses = ("http://a:8082", "http://b:8082")

    def gone(self, attendance: Attendance, now_s: float, addresses: tuple[str, ...] = addresses) -> set[str]:
        return attendance.gone(TWO.members, addresses, now_s)

    def test_silence_is_borne_for_a_while(self) -> None:
        attendance = Attendance(patience_s=3.0)
        for name in ("a", "b"):
            attendance.answered(sighting(name), 10.0)
        attendance.answered(sighting("a"), 13.0)
        assert self.gone(attendance, 12.9) == set()
        assert self.gone(attendance, 13.1) == {"b"}

    def test_a_new_leader_is_patient_with_those_it_has_not_heard(self) -> None:
        attendance = Attendance(patience_s=3.0)
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
        assert {one.id for one in attendance.seen(self.addresses)} == {"a", "b2"}

    def test_an_address_that_is_not_there_any_more_is_nobodys(self) -> None:
        attendance = Attendance()
        for name in ("a", "b"):
            attendance.answered(sighting(name), 10.0)
        assert self.gone(attendance, 10.1, ("http://a:8082",)) == {"b"}
        assert [one.id for one in attendance.seen(("http://a:8082",))] == ["a"]

    def test_who_was_forgotten_is_not_seen_before_it_answers_again(self) -> None:
        attendance = Attendance()
        attendance.answered(sighting("b"), 10.0)
        attendance.forget({"b"})
        assert attendance.seen(self.addresses) == []
        attendance.answered(sighting("b"), 20.0)
        assert [one.id for one in attendance.seen(self.addresses)] == ["b"]


def test_who_leads_owns_nothing_while_there_is_another() -> None:
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


def test_who_leads_and_leaves_gives_everything_to_those_that_stay() -> None:
    both = OwnershipMap(2, (replica("b", 2),), (replica("a", 1),))
    assert next_map(both, [sighting("a", leaving=True), sighting("b")], (), "a") is None
    assert next_map(both, [sighting("a"), sighting("b", leaving=True)], (), "a") == OwnershipMap(
        3, (replica("a", 1),), (replica("b", 2),)
    )
