"""The table of a coordinator, and how a new coordinator fills it with the instances that it finds."""

from collections.abc import Callable

import pytest

from gnomon_coordinator.effects import Descriptors
from gnomon_coordinator.protocol import PairReport, Task
from gnomon_coordinator.table import Kind, RegistrationTable, Status
from tests.unit.coordinator.conftest import FakeNode

WITH_S1 = PairReport("s1", (1, 2), (0, 1))
MakeTask = Callable[..., Task]


def test_restarted_coordinator_adopts_a_working_pair(next_node: FakeNode, task: MakeTask) -> None:
    node = next_node
    node.found("b1", Kind.BODY)
    node.found("s1", Kind.SHADOW)
    assert node.sent("b1") == node.sent("s1") == ["hello"]
    node.say("s1", say="registered", shadow="s1", body="b1", blocks=(1, 2), paired=True)
    node.create(descriptors=False)
    assert node.connected() == []
    node.say("b1", say="body", pairs=(WITH_S1,))
    assert node.connected() == []
    assert node.last_event("paired")["blocks"] == [1, 2]
    assert node.sent("s1") == node.sent("b1") == ["hello"]
    del task


def test_shadow_claiming_anothers_body_takes_no_place(next_node: FakeNode) -> None:
    node = next_node
    node.found("s1", Kind.SHADOW)
    node.body("b1", WITH_S1)
    node.registered(paired=True)
    node.create(descriptors=False)
    node.found("s9", Kind.SHADOW)
    node.say("s9", say="registered", shadow="s9", body="b1", blocks=(1, 2), paired=True)
    body = node.state.table.get("b1")
    assert body.partners == ("s1",)
    node.wait(11)
    assert node.sent("s9")[-1] == "stop"
    assert node.sent("b1") == ["hello"]


def test_shadow_requested_for_another_body_than_it_claims_is_ended(next_node: FakeNode, task: MakeTask) -> None:
    node = next_node
    node.body("b1")
    node.body("b2")
    node.found("s1", Kind.SHADOW)
    node.say("s1", say="registered", shadow="s1", body="b2", blocks=(1, 2), paired=False)
    node.create(task(), descriptors=False)
    assert node.sent("s1")[-1] == "stop"
    assert "b2" in node.last_event("ending")["reason"]
    assert node.connected() == []


def test_body_report_counts_before_its_shadow_is_requested(next_node: FakeNode) -> None:
    node = next_node
    node.body("b1", WITH_S1)
    node.found("s1", Kind.SHADOW)
    node.registered(paired=True)
    node.say("b1", say="unpaired", shadow="s1", reason="late three times")
    node.create(descriptors=False)
    assert len(node.connected()) == 1, "it is given new buffers"


def test_registered_shadow_is_paired_after_restart(next_node: FakeNode) -> None:
    node = next_node
    node.body()
    node.found("s1", Kind.SHADOW)
    node.create(descriptors=False)
    node.registered()
    assert len(node.connected()) == 1


def test_pair_known_to_one_side_only_is_connected_again(next_node: FakeNode) -> None:
    node = next_node
    node.found("b1", Kind.BODY)
    node.found("s1", Kind.SHADOW)
    node.say("b1", say="body", pairs=(WITH_S1,))
    node.registered()
    node.create(descriptors=False)
    assert node.sent("b1") == ["hello", "unpair"]
    node.say("b1", say="unpaired", shadow="s1", reason="told to")
    assert len(node.connected()) == 1


def test_assigned_container_without_a_load_is_loaded_after_restart(next_node: FakeNode) -> None:
    node = next_node
    node.body()
    node.found("s1", Kind.SHADOW)
    node.say("s1", say="empty")
    node.create()
    assert node.sent("s1") == ["hello", "load"]
    node.registered()
    assert len(node.connected()) == 1


def test_shadow_that_is_not_requested_after_restart_is_ended(next_node: FakeNode) -> None:
    node = next_node
    node.body("b1", WITH_S1)
    node.found("s1", Kind.SHADOW)
    node.registered(paired=True)
    node.wait(11)
    assert node.sent("s1")[-1] == "stop"


def test_request_for_a_lost_shadow_is_reported_as_failed(next_node: FakeNode) -> None:
    next_node.body()
    next_node.create(descriptors=False)
    assert next_node.last_event("failed")["reason"] == "it has ended"


def test_body_reporting_a_lost_shadow_is_unpaired(next_node: FakeNode) -> None:
    next_node.body("b1", PairReport("s7", (1,), (0, 1)))
    assert next_node.sent("b1") == ["hello", "unpair"]


def test_silent_shadow_is_ended_after_restart(next_node: FakeNode) -> None:
    next_node.body()
    next_node.found("s1", Kind.SHADOW)
    next_node.wait(11)
    assert next_node.killed() == ["s1"]


def test_messages_of_another_epoch_are_ignored(next_node: FakeNode) -> None:
    node = next_node
    node.body()
    node.empty()
    node.create()
    node.say("s1", epoch=1, say="registered", shadow="s1", body="b1", blocks=(1, 2))
    node.say("s1", epoch=3, say="registered", shadow="s1", body="b1", blocks=(1, 2))
    node.say("s1", epoch=9, say="stale")
    assert node.events() == []
    assert node.status("s1") is Status.LOADING


@pytest.mark.parametrize("first", ["its words", "its request"])
def test_shadow_with_blocks_that_its_model_lacks_is_closed_and_ended(next_node: FakeNode, first: str) -> None:
    node = next_node
    node.body("b1", PairReport("s1", (1, 2), (0, 1)))
    node.found("s1", Kind.SHADOW)
    if first == "its request":
        node.create(descriptors=False)
    node.say("s1", say="registered", shadow="s1", body="b1", blocks=(1, 2, 4000), paired=True)
    if first == "its words":
        node.create(descriptors=False)
    node.state.promote("s1", Descriptors(()), node.now_s)
    assert node.killed() == node.closed() == ["s1"]
    assert "block 4000 of 6" in node.last_event("ending")["reason"]
    assert "promote" not in node.sent("s1")
    node.gone("s1")
    assert node.sent("b1")[-1] == "unpair"
    assert node.status("b1") is Status.READY


def table() -> RegistrationTable:
    made = RegistrationTable(7)
    made.insert("b1", Kind.BODY)
    made.insert("b2", Kind.BODY)
    made.insert("s1", Kind.SHADOW)
    made.insert("e1", Kind.EMPTY)
    return made


def test_a_record_says_what_an_instance_is_and_which_coordinator_wrote_it() -> None:
    rows = table()
    row = rows.get("b1")
    assert (row.kind, row.status, row.partner, row.epoch) == (Kind.BODY, Status.SILENT, None, 7)
    assert len(rows) == 4
    assert rows.get("nobody") is None
    assert rows.get(None) is None


def test_partners_name_each_other_and_share_what_they_do() -> None:
    rows = table()
    rows.link("b1", "s1", (1, 2), (0, 1))
    body, shadow = rows.get("b1"), rows.get("s1")
    assert (body.partner, shadow.partner) == ("s1", "b1")
    assert body.blocks == shadow.blocks == (1, 2)
    assert shadow.split == (0, 1)
    rows.link("b1", "s1", (3,), (0, 0))
    assert [row.blocks for row in rows if row.partner] == [(3,), (3,)]


@pytest.mark.parametrize("pair", [("b1", "b2"), ("s1", "b1"), ("e1", "s1"), ("b1", "e1"), ("b1", "nobody")])
def test_only_a_body_and_a_shadow_become_partners(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="not a Body and a Shadow"):
        table().link(*pair, (), ())


def test_a_shadow_has_one_body_and_a_body_several_shadows() -> None:
    rows = table()
    rows.link("b1", "s1", (1,), ())
    with pytest.raises(ValueError, match="another partner"):
        rows.link("b2", "s1", (1,), ())
    rows.insert("s2", Kind.SHADOW)
    rows.link("b1", "s2", (1, 3), ())
    body = rows.get("b1")
    assert (body.partners, body.blocks) == (("s1", "s2"), (1, 3))
    rows.unlink("s2")
    body = rows.get("b1")
    assert (body.partners, body.blocks) == (("s1",), (1,))
    rows.link("b1", "s2", (2,), ())
    rows.unlink("b1")
    assert all(not row.partners and not row.blocks for row in rows)


@pytest.mark.parametrize("who", ["b1", "s1"])
def test_leaving_partner_leaves_the_other_registered(who: str) -> None:
    rows = table()
    rows.link("b1", "s1", (1,), (0, 1))
    removed = rows.remove(who)
    assert removed is not None
    assert removed.partner is not None
    assert [row.partner for row in rows] == [None] * 3
    assert all(not row.blocks for row in rows)
    assert rows.remove(who) is None


def test_an_id_is_taken_once() -> None:
    with pytest.raises(ValueError, match="already"):
        table().insert("e1", Kind.SHADOW)


def test_rows_are_found_by_kind_and_status() -> None:
    rows = table()
    rows.set_status("b2", Status.READY)
    assert [row.id for row in rows.of_kind(Kind.BODY)] == ["b1", "b2"]
    assert [row.id for row in rows.of_kind(Kind.BODY, Status.READY, Status.PAIRED)] == ["b2"]
