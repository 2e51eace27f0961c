"""What events mean: the lives of pairs, without a process."""

from collections.abc import Callable
from typing import Any

import pytest

from gnomon_coordinator.effects import Papers
from gnomon_coordinator.messages import BadMessageError, Change, PairSaid, Task
from gnomon_coordinator.pool import REFILL_AFTER_S
from gnomon_coordinator.table import Kind, Status
from gnomon_core.pairs import MAX_SHADOWS

WITH_S1 = PairSaid("s1", (1, 2), (0, 1))
MakeTask = Callable[..., Task]
Node = Any
"""The class PlayedNode of conftest.py, which pytest does not let us import."""


def status(node: Node, instance_id: str) -> Status | None:
    row = node.coordination.table.get(instance_id)
    return None if row is None else row.status


# From a wish to a pair


def test_a_wish_takes_a_container_of_the_pool_loads_it_and_pairs_it(node: Node) -> None:
    node.body()
    node.empty("pool-0-1")
    papers = node.create()
    assert node.assigned() == [("pool-0-1", "s1")]
    assert node.forks() == []
    assert node.last_sent("s1")["do"] == "load"
    assert node.last_sent("s1")["blocks"] == (1, 2)
    assert status(node, "s1") is Status.LOADING
    assert "pool-0-1" not in node.coordination.table
    node.registered()
    assert papers is not None
    assert node.last_told("registered")["shadow"] == "s1"
    [connect] = node.connected()
    assert (connect.body, connect.shadow) == ("b1", "s1")
    assert connect.pair["expected_ms"] == ()
    assert connect.join["body"] == "b1"
    # Four samples of 10 bytes are padded to 64; the last run makes 100 bytes a sample.
    assert (connect.to_bytes, connect.from_bytes) == (64, 448)
    assert status(node, "b1") is Status.PAIRING
    node.say("b1", say="paired", shadow="s1")
    assert status(node, "b1") is status(node, "s1") is Status.PAIRED
    assert node.last_told("paired") == {"event": "paired", "shadow": "s1", "body": "b1", "blocks": [1, 2], "split": [0, 1]}


def test_without_a_container_one_is_forked_for_it(node: Node) -> None:
    node.body()
    node.create()
    [container] = node.forks()
    assert node.coordination.table.get("s1").partner == "b1"
    node.found(container, Kind.EMPTY)
    assert node.assigned() == [(container, "s1")]
    assert node.last_sent("s1")["do"] == "load"


def test_a_container_that_is_not_ready_yet_is_as_good(node: Node) -> None:
    node.body()
    node.coordination.pool.resize(1, node.now_s)
    node.wait(0)
    [container] = node.forks()
    node.found(container, Kind.EMPTY)
    node.create()
    assert node.assigned() == [(container, "s1")]
    node.say("s1", say="empty")
    assert status(node, "s1") is Status.LOADING


def test_a_container_found_after_a_restart_is_asked_first_whether_it_is_still_empty(node: Node) -> None:
    node.body()
    node.found("pool-0-1", Kind.EMPTY)
    node.create()
    assert node.assigned() == []
    node.say("pool-0-1", say="registered", shadow="s9", body="b1", blocks=(1,))
    assert node.killed() == ["pool-0-1"]


def test_each_shadow_gets_a_container_of_its_own(node: Node, task: MakeTask) -> None:
    for number in (1, 2, 3):
        node.body(f"b{number}")
    node.empty("pool-0-1")
    for number in (1, 2, 3):
        node.create(task(f"s{number}", f"b{number}"))
    assert node.assigned() == [("pool-0-1", "s1")]
    assert len(node.forks()) == 2
    for container in reversed(node.forks()):
        node.found(container, Kind.EMPTY)
    assert {shadow for _, shadow in node.assigned()} == {"s1", "s2", "s3"}


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        ({"body": "b9"}, "no Body b9"),
        ({"body": "pool-0-1"}, "no Body"),
        ({"blocks": (6,)}, "no such blocks"),
        ({"blocks": ()}, "no such blocks"),
        ({"shadow": "b1"}, "it has ended"),
    ],
)
def test_a_wish_that_cannot_be_granted_is_refused(node: Node, task: MakeTask, wish: dict[str, Any], why: str) -> None:
    node.body()
    node.empty("pool-0-1")
    node.create(task(**wish))
    assert why in node.last_told("failed")["reason"]
    assert node.assigned() == []
    assert node.forks() == []


def test_a_body_has_so_many_shadows_and_no_more(node: Node, task: MakeTask) -> None:
    names = [f"s{number}" for number in range(1, MAX_SHADOWS + 1)]
    for name in names:
        node.paired(task(name))
    assert node.coordination.table.get("b1").partners == tuple(names)
    node.create(task("s99"))
    assert f"has {MAX_SHADOWS} Shadows already" in node.last_told("failed")["reason"]


def test_the_papers_are_let_go_when_they_are_not_needed_any_more(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Papers] = []
    monkeypatch.setattr(Papers, "close", lambda papers: closed.append(papers))  # noqa: PLW0108 - bound to the instance
    node.body()
    first = node.create()
    assert closed == []
    second = node.create()
    assert closed == [second]
    node.found(node.forks()[0], Kind.EMPTY)
    node.registered()
    assert closed == [second, first]


# Containers that fail


def test_a_container_that_dies_before_its_load_is_replaced_by_another(node: Node) -> None:
    node.body()
    node.empty("pool-0-1")
    node.create()
    node.gone("pool-0-1")
    assert node.closed() == ["s1"]
    [container] = node.forks()
    node.found(container, Kind.EMPTY)
    node.registered()
    assert node.connected()


def test_three_that_die_are_enough(node: Node) -> None:
    node.body()
    node.create()
    for _ in range(3):
        node.gone(node.forks()[-1])
    assert len(node.forks()) == 3
    assert "3 containers" in node.last_told("failed")["reason"]
    assert "s1" not in node.coordination.table
    assert node.coordination.table.get("b1").partner is None


def test_a_shadow_whose_load_fails_ends_with_its_reason(node: Node) -> None:
    node.body()
    node.empty()
    node.create()
    node.say("s1", say="failed", shadow="s1", reason="no such weights")
    assert node.last_told("ending") == {"event": "ending", "shadow": "s1", "reason": "no such weights"}
    assert node.killed() == ["s1"]
    node.gone("s1")
    assert "s1" not in node.coordination.table


def test_a_load_that_takes_too_long_ends(node: Node) -> None:
    node.body()
    node.empty()
    node.create()
    node.wait(31)
    assert node.killed() == ["s1"]
    assert "its blocks" in node.last_told("ending")["reason"]


# The pool


def test_the_pool_is_filled_and_filled_again(node: Node) -> None:
    node.coordination.pool.resize(2, node.now_s)
    node.wait(0)
    assert len(node.forks()) == 2
    node.wait(1)
    assert len(node.forks()) == 2
    for container in node.forks():
        node.empty(container)
    node.body()
    node.create()
    node.wait(0)
    assert len(node.forks()) == 2
    node.wait(REFILL_AFTER_S)
    assert len(node.forks()) == 3


def test_a_container_that_dies_in_the_pool_is_replaced(node: Node) -> None:
    node.coordination.pool.resize(1, node.now_s)
    node.wait(0)
    node.empty(node.forks()[0])
    node.gone(node.forks()[0])
    node.wait(0)
    assert len(node.forks()) == 2


def test_a_pool_that_cannot_be_filled_is_tried_ever_more_rarely(node: Node) -> None:
    node.coordination.pool.resize(1, node.now_s)
    for _ in range(1000):
        node.wait(0.01)
        for container in node.forks():
            if container in node.coordination._forking:
                node.gone(container)
    assert 5 <= len(node.forks()) <= 10


def test_a_container_that_never_says_that_it_is_ready_is_ended(node: Node) -> None:
    node.found("pool-0-1", Kind.EMPTY)
    node.wait(21)
    assert node.killed() == ["pool-0-1"]


def test_a_smaller_pool_lets_containers_go(node: Node) -> None:
    node.empty("pool-0-1")
    node.wait(0)
    assert node.killed() == ["pool-0-1"]


# Changes


def change(node: Node, blocks: tuple[int, ...], split: tuple[int, ...] = (0, 1), cores: int = 1) -> None:
    node.coordination.change("s1", Change(cores, (0,), blocks, split), node.now_s)
    node._carry_out()


def test_new_blocks_reach_the_shadow_first_then_the_body_then_the_old_ones_go(node: Node) -> None:
    node.paired()
    change(node, (2, 3))
    assert node.last_sent("s1")["blocks"] == (1, 2, 3)
    assert "change" not in node.sent("b1")
    node.say("s1", say="changed", blocks=(1, 2, 3))
    assert node.last_sent("b1")["blocks"] == (2, 3)
    node.say("b1", say="changed", shadow="s1", blocks=(2, 3))
    assert node.last_told("paired")["blocks"] == [2, 3]
    assert node.last_sent("s1")["blocks"] == (2, 3)
    node.say("s1", say="changed", blocks=(2, 3))
    assert status(node, "s1") is Status.PAIRED
    assert node.coordination.table.get("b1").blocks == (2, 3)
    assert node.coordination.due_s() is None


def test_another_split_concerns_the_body_alone(node: Node) -> None:
    node.paired()
    before = len(node.sent("s1"))
    change(node, (1, 2), (0, 0, 2))
    assert node.last_sent("b1")["split"] == (0, 0, 2)
    assert len(node.sent("s1")) == before
    node.say("b1", say="changed", shadow="s1", blocks=(1, 2))
    assert node.last_told("paired")["split"] == [0, 0, 2]


def test_a_change_during_a_change_comes_after_it(node: Node) -> None:
    node.paired()
    change(node, (2, 3))
    change(node, (4,))
    for _ in range(2):
        node.say("s1", say="changed", blocks=node.last_sent("s1")["blocks"])
        node.say("b1", say="changed", shadow="s1", blocks=node.last_sent("b1")["blocks"])
        node.say("s1", say="changed", blocks=node.last_sent("s1")["blocks"])
    assert node.coordination.table.get("s1").blocks == (4,)
    assert [
        told["blocks"] for told in (one.message for one in node.done if hasattr(one, "message")) if told.get("event") == "paired"
    ] == [
        [1, 2],
        [2, 3],
        [4],
    ]


def test_a_change_while_it_loads_is_made_when_it_has_loaded(node: Node) -> None:
    node.body()
    node.empty()
    node.create()
    change(node, (3,))
    node.registered()
    assert node.last_sent("s1")["blocks"] == (1, 2, 3)
    node.say("s1", say="changed", blocks=(1, 2, 3))
    [connect] = node.connected()
    assert connect.pair["blocks"] == (3,)
    node.say("b1", say="paired", shadow="s1")
    assert node.last_told("paired")["blocks"] == [3]
    assert node.last_sent("s1")["blocks"] == (3,)


def test_a_larger_batch_gets_larger_buffers(node: Node, task: MakeTask) -> None:
    node.paired()
    node.create(task(max_batch=64), papers=False)
    assert node.sent("b1")[-1] == "unpair"
    assert len(node.connected()) == 1, "the Body would take the end of the old socket for the end of its Shadow"
    node.say("b1", say="unpaired", shadow="s1", reason="told to")
    assert [connect.to_bytes for connect in node.connected()] == [64, 640]
    node.say("b1", say="paired", shadow="s1")
    assert status(node, "b1") is Status.PAIRED


# Several Shadows of one Body


def both(node: Node, task: MakeTask) -> None:
    node.paired()
    node.paired(task("s2"))


def test_a_second_shadow_is_paired_beside_the_first(node: Node, task: MakeTask) -> None:
    both(node, task)
    assert [(connect.body, connect.shadow) for connect in node.connected()] == [("b1", "s1"), ("b1", "s2")]
    assert node.coordination.table.get("b1").partners == ("s1", "s2")
    assert status(node, "b1") is status(node, "s1") is status(node, "s2") is Status.PAIRED
    assert "unpair" not in node.sent("b1"), "the first goes on meanwhile"


def test_a_body_is_paired_while_one_of_its_shadows_is(node: Node, task: MakeTask) -> None:
    node.paired()
    node.empty("pool-0-2")
    node.create(task("s2"))
    node.registered(task("s2"))
    assert (status(node, "b1"), status(node, "s2")) == (Status.PAIRED, Status.PAIRING)
    node.gone("s1")
    assert status(node, "b1") is Status.PAIRING
    node.gone("s2")
    assert status(node, "b1") is Status.READY


def test_the_end_of_one_shadow_leaves_the_other_at_work(node: Node, task: MakeTask) -> None:
    both(node, task)
    node.destroy("s1")
    assert node.last_sent("b1") == {"do": "unpair", "shadow": "s1"}
    node.say("b1", say="unpaired", shadow="s1", reason="told to")
    node.gone("s1")
    assert node.coordination.table.get("b1").partners == ("s2",)
    assert status(node, "b1") is status(node, "s2") is Status.PAIRED
    assert [one for one in node.told() if one in ("ending", "unpaired")] == ["ending", "unpaired"]


def test_what_a_body_says_concerns_the_shadow_that_it_names(node: Node, task: MakeTask) -> None:
    both(node, task)
    node.say("b1", say="unpaired", shadow="s2", reason="three misses")
    assert node.last_told("unpaired") == {"event": "unpaired", "shadow": "s2", "body": "b1", "reason": "three misses"}
    assert node.sent("s2")[-1] == "stop"
    assert "stop" not in node.sent("s1")
    node.say("b1", say="unpaired", reason="nobody")
    assert status(node, "s1") is Status.PAIRED


def test_shadows_change_one_after_the_other(node: Node, task: MakeTask) -> None:
    both(node, task)
    for shadow in ("s1", "s2"):
        node.coordination.change(shadow, Change(1, (0,), (1, 2), (0, 0, 1)), node.now_s)
        node._carry_out()
        assert (node.last_sent("b1")["do"], node.last_sent("b1")["shadow"]) == ("change", shadow)
        node.say("b1", say="changed", shadow=shadow, blocks=(1, 2))
        assert node.last_told("paired") == {
            "event": "paired",
            "shadow": shadow,
            "body": "b1",
            "blocks": [1, 2],
            "split": [0, 0, 1],
        }


def test_a_body_takes_all_of_its_shadows_along(node: Node, task: MakeTask) -> None:
    both(node, task)
    node.gone("b1")
    assert node.killed() == ["s1", "s2"]


def test_a_restart_finds_both_pairs(next_node: Node, task: MakeTask) -> None:
    node = next_node
    for name in ("s1", "s2"):
        node.found(name, Kind.SHADOW)
    node.body("b1", WITH_S1, PairSaid("s2", (1, 2), (0, 1)))
    for name in ("s1", "s2"):
        node.registered(task(name), paired=True)
        node.create(task(name), papers=False)
    assert node.connected() == []
    assert node.sent("b1") == node.sent("s1") == node.sent("s2") == ["hello"]
    assert node.coordination.table.get("b1").partners == ("s1", "s2")


# Ends


def test_the_body_lets_go_before_the_shadow_stops(node: Node) -> None:
    node.paired()
    node.destroy()
    assert node.sent("b1")[-1] == "unpair"
    assert "stop" not in node.sent("s1")
    node.say("b1", say="unpaired", shadow="s1", reason="told to")
    assert node.last_told("unpaired")["body"] == "b1"
    assert node.sent("s1")[-1] == "stop"
    node.gone("s1")
    assert "s1" not in node.coordination.table
    assert status(node, "b1") is Status.READY


def test_a_body_that_does_not_answer_delays_the_end_by_seconds_only(node: Node) -> None:
    node.paired()
    node.destroy()
    node.wait(5)
    assert node.sent("s1")[-1] == "stop"
    node.wait(2)
    assert node.killed() == ["s1"]


def test_a_body_takes_its_shadow_along(node: Node) -> None:
    node.paired()
    node.gone("b1")
    assert node.killed() == ["s1"]
    node.gone("s1")
    assert len(node.coordination.table) == 0


def test_a_shadow_that_dies_leaves_its_body_alone_and_able_to_have_another(node: Node, task: MakeTask) -> None:
    node.paired()
    node.gone("s1")
    assert node.sent("b1")[-1] == "unpair"
    assert node.last_told("unpaired")["shadow"] == "s1"
    assert status(node, "b1") is Status.READY
    node.say("b1", say="unpaired", shadow="s1", reason="told to")
    node.create(task("s2"))
    assert node.coordination.table.get("b1").partner == "s2"


def test_a_body_that_gives_up_its_shadow_ends_it(node: Node) -> None:
    node.paired()
    node.say("b1", say="unpaired", shadow="s1", reason="three misses")
    assert node.last_told("unpaired")["reason"] == "three misses"
    assert node.sent("s1")[-1] == "stop"


def test_a_wish_ended_before_there_was_a_container_leaves_it_to_the_pool(node: Node) -> None:
    node.body()
    node.create()
    node.destroy()
    assert node.last_told("failed")["reason"] == "asked to"
    node.empty(node.forks()[0])
    assert status(node, node.forks()[0]) is Status.READY


def test_the_end_of_a_shadow_that_nobody_knows_is_told(node: Node) -> None:
    node.destroy("s9")
    assert node.last_told("failed")["shadow"] == "s9"


# After a restart


def test_a_pair_is_found_as_it_is_and_goes_on(next_node: Node, task: MakeTask) -> None:
    node = next_node
    node.found("b1", Kind.BODY)
    node.found("s1", Kind.SHADOW)
    assert node.sent("b1") == node.sent("s1") == ["hello"]
    node.say("s1", say="registered", shadow="s1", body="b1", blocks=(1, 2), paired=True)
    node.create(papers=False)
    assert node.connected() == []
    node.say("b1", say="body", pairs=(WITH_S1,))
    assert node.connected() == []
    assert node.last_told("paired")["blocks"] == [1, 2]
    assert node.sent("s1") == node.sent("b1") == ["hello"]
    del task


def test_a_shadow_that_claims_anothers_body_takes_nobodys_place(next_node: Node) -> None:
    node = next_node
    node.found("s1", Kind.SHADOW)
    node.body("b1", WITH_S1)
    node.registered(paired=True)
    node.create(papers=False)
    node.found("s9", Kind.SHADOW)
    node.say("s9", say="registered", shadow="s9", body="b1", blocks=(1, 2), paired=True)
    body = node.coordination.table.get("b1")
    assert body is not None
    assert body.partners == ("s1",)
    node.wait(11)
    assert node.sent("s9")[-1] == "stop"
    assert node.sent("b1") == ["hello"]


def test_a_shadow_that_is_wanted_for_another_body_than_it_says_is_ended(next_node: Node, task: MakeTask) -> None:
    node = next_node
    node.body("b1")
    node.body("b2")
    node.found("s1", Kind.SHADOW)
    node.say("s1", say="registered", shadow="s1", body="b2", blocks=(1, 2), paired=False)
    node.create(task(), papers=False)
    assert node.sent("s1")[-1] == "stop"
    assert "b2" in node.last_told("ending")["reason"]
    assert node.connected() == []


def test_what_a_body_says_before_its_shadow_is_wished_for_is_news(next_node: Node) -> None:
    node = next_node
    node.body("b1", WITH_S1)
    node.found("s1", Kind.SHADOW)
    node.registered(paired=True)
    node.say("b1", say="unpaired", shadow="s1", reason="late three times")
    node.create(papers=False)
    assert len(node.connected()) == 1, "it is given new buffers"


def test_a_shadow_that_had_registered_is_paired_now(next_node: Node) -> None:
    node = next_node
    node.body()
    node.found("s1", Kind.SHADOW)
    node.create(papers=False)
    node.registered()
    assert len(node.connected()) == 1


def test_a_pair_of_which_only_one_knows_is_made_again(next_node: Node) -> None:
    node = next_node
    node.found("b1", Kind.BODY)
    node.found("s1", Kind.SHADOW)
    node.say("b1", say="body", pairs=(WITH_S1,))
    node.registered()
    node.create(papers=False)
    assert node.sent("b1") == ["hello", "unpair"]
    node.say("b1", say="unpaired", shadow="s1", reason="told to")
    assert len(node.connected()) == 1


def test_a_container_that_had_a_name_and_no_load_is_loaded(next_node: Node) -> None:
    node = next_node
    node.body()
    node.found("s1", Kind.SHADOW)
    node.say("s1", say="empty")
    node.create()
    assert node.sent("s1") == ["hello", "load"]
    node.registered()
    assert len(node.connected()) == 1


def test_a_shadow_that_nobody_wants_any_more_is_ended(next_node: Node) -> None:
    node = next_node
    node.body("b1", WITH_S1)
    node.found("s1", Kind.SHADOW)
    node.registered(paired=True)
    node.wait(11)
    assert node.sent("s1")[-1] == "stop"


def test_a_shadow_that_is_wanted_and_was_never_there_is_told_as_failed(next_node: Node) -> None:
    next_node.body()
    next_node.create(papers=False)
    assert next_node.last_told("failed")["reason"] == "it has ended"


def test_a_body_that_names_a_shadow_that_is_gone_is_told_to_let_go(next_node: Node) -> None:
    next_node.body("b1", PairSaid("s7", (1,), (0, 1)))
    assert next_node.sent("b1") == ["hello", "unpair"]


def test_a_shadow_that_does_not_speak_any_more_is_ended(next_node: Node) -> None:
    next_node.body()
    next_node.found("s1", Kind.SHADOW)
    next_node.wait(11)
    assert next_node.killed() == ["s1"]


def test_words_for_another_coordinator_are_not_heard(next_node: Node) -> None:
    node = next_node
    node.body()
    node.empty()
    node.create()
    node.say("s1", epoch=1, say="registered", shadow="s1", body="b1", blocks=(1, 2))
    node.say("s1", epoch=3, say="registered", shadow="s1", body="b1", blocks=(1, 2))
    node.say("s1", epoch=9, say="stale")
    assert node.told() == []
    assert status(node, "s1") is Status.LOADING


# What does not keep to the protocol


@pytest.mark.parametrize(
    ("who", "said"),
    [
        ("b1", {"say": "registered", "shadow": "b1", "body": "b1"}),
        ("b1", {"say": "empty"}),
        ("e1", {"say": "body"}),
        ("e1", {"say": "registered", "shadow": "e1", "body": "b1"}),
        ("s1", {"say": "registered", "shadow": "s2", "body": "b1", "blocks": (1, 2)}),
        ("s1", {"say": "registered", "shadow": "s1", "body": "b2", "blocks": (1, 2)}),
        ("s1", {"say": "registered", "shadow": "s1", "body": "b1", "blocks": (1,)}),
        ("s1", {"say": "body"}),
    ],
)
def test_an_instance_speaks_for_itself_and_its_own_pair_only(node: Node, who: str, said: dict[str, Any]) -> None:
    node.body()
    node.body("b2")
    node.empty("e0")
    node.create()
    node.empty("e1")
    with pytest.raises(BadMessageError):
        node.say(who, **said)


def test_a_body_cannot_end_the_pair_of_another(node: Node, task: MakeTask) -> None:
    node.paired()
    node.body("b2")
    for said in ("unpaired", "paired", "failed", "changed"):
        node.say("b2", say=said, shadow="s1")
    assert status(node, "s1") is Status.PAIRED
    del task


def test_a_hostile_body_serves_on_without_a_shadow(node: Node, task: MakeTask) -> None:
    node.paired()
    node.coordination.broken("b1", "nonsense", node.now_s)
    node._carry_out()
    assert node.closed() == ["b1"]
    assert status(node, "b1") is Status.BARRED
    assert node.sent("s1")[-1] == "stop"
    assert "b1" not in node.killed()
    node.say("b1", say="body")
    node.gone("s1")
    node.create(task("s2"))
    assert "protocol" in node.last_told("failed")["reason"]


def test_a_hostile_shadow_is_ended_and_its_body_told(node: Node) -> None:
    node.paired()
    node.coordination.broken("s1", "nonsense", node.now_s)
    node._carry_out()
    assert node.killed() == ["s1"]
    assert node.sent("b1")[-1] == "unpair"
    assert node.last_told("unpaired")["shadow"] == "s1"
