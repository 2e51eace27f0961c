"""Several Shadows of one Body."""

from collections.abc import Callable
from typing import Any

from gnomon_coordinator.protocol import Change, PairReport, Task
from gnomon_coordinator.table import Kind, Status

WITH_S1 = PairReport("s1", (1, 2), (0, 1))
MakeTask = Callable[..., Task]
Node = Any
"""The class PlayedNode of conftest.py, which pytest does not let us import."""


def both(node: Node, task: MakeTask) -> None:
    node.paired()
    node.paired(task("s2"))


def test_a_second_shadow_is_paired_beside_the_first(node: Node, task: MakeTask) -> None:
    both(node, task)
    assert [(connect.body, connect.shadow) for connect in node.connected()] == [("b1", "s1"), ("b1", "s2")]
    assert node.state.table.get("b1").partners == ("s1", "s2")
    assert node.status("b1") is node.status("s1") is node.status("s2") is Status.PAIRED
    assert "unpair" not in node.sent("b1"), "the first goes on meanwhile"


def test_a_body_is_paired_while_one_of_its_shadows_is(node: Node, task: MakeTask) -> None:
    node.paired()
    node.empty("pool-0-2")
    node.create(task("s2"))
    node.registered(task("s2"))
    assert (node.status("b1"), node.status("s2")) == (Status.PAIRED, Status.PAIRING)
    node.gone("s1")
    assert node.status("b1") is Status.PAIRING
    node.gone("s2")
    assert node.status("b1") is Status.READY


def test_the_end_of_one_shadow_leaves_the_other_at_work(node: Node, task: MakeTask) -> None:
    both(node, task)
    node.destroy("s1")
    assert node.last_sent("b1") == {"do": "unpair", "shadow": "s1"}
    node.say("b1", say="unpaired", shadow="s1", reason="told to")
    node.gone("s1")
    assert node.state.table.get("b1").partners == ("s2",)
    assert node.status("b1") is node.status("s2") is Status.PAIRED
    assert [one for one in node.told() if one in ("ending", "unpaired")] == ["ending", "unpaired"]


def test_what_a_body_says_concerns_the_shadow_that_it_names(node: Node, task: MakeTask) -> None:
    both(node, task)
    node.say("b1", say="unpaired", shadow="s2", reason="three misses")
    assert node.last_told("unpaired") == {"event": "unpaired", "shadow": "s2", "body": "b1", "reason": "three misses"}
    assert node.sent("s2")[-1] == "stop"
    assert "stop" not in node.sent("s1")
    node.say("b1", say="unpaired", reason="nobody")
    assert node.status("s1") is Status.PAIRED


def test_shadows_change_one_after_the_other(node: Node, task: MakeTask) -> None:
    both(node, task)
    for shadow in ("s1", "s2"):
        node.state.change(shadow, Change(1, (0,), (1, 2), (0, 0, 1)), node.now_s)
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
    node.body("b1", WITH_S1, PairReport("s2", (1, 2), (0, 1)))
    for name in ("s1", "s2"):
        node.registered(task(name), paired=True)
        node.create(task(name), descriptors=False)
    assert node.connected() == []
    assert node.sent("b1") == node.sent("s1") == node.sent("s2") == ["hello"]
    assert node.state.table.get("b1").partners == ("s1", "s2")
