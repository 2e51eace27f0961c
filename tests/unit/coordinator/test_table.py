"""The function registration table."""

import pytest

from gnomon_coordinator.table import Kind, RegistrationTable, Status


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
