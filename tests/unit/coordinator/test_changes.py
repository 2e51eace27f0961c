"""Other blocks, another split or another size for a Shadow that works."""

from collections.abc import Callable
from typing import Any

from gnomon_coordinator.protocol import Change, Task
from gnomon_coordinator.table import Status

MakeTask = Callable[..., Task]
Node = Any
"""The class PlayedNode of conftest.py, which pytest does not let us import."""


def change(node: Node, blocks: tuple[int, ...], split: tuple[int, ...] = (0, 1), cores: int = 1) -> None:
    node.state.change("s1", Change(cores, (0,), blocks, split), node.now_s)
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
    assert node.status("s1") is Status.PAIRED
    assert node.state.table.get("b1").blocks == (2, 3)
    assert node.state.due_s() is None


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
    assert node.state.table.get("s1").blocks == (4,)
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
    node.create(task(max_batch=64), descriptors=False)
    assert node.sent("b1")[-1] == "unpair"
    assert len(node.connected()) == 1, "the Body would take the end of the old socket for the end of its Shadow"
    node.say("b1", say="unpaired", shadow="s1", reason="told to")
    assert [connect.to_bytes for connect in node.connected()] == [64, 640]
    node.say("b1", say="paired", shadow="s1")
    assert node.status("b1") is Status.PAIRED
