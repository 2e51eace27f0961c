"""What does not keep to the protocol costs whoever said it."""

from collections.abc import Callable
from typing import Any

import pytest

from gnomon_coordinator.effects import Descriptors
from gnomon_coordinator.protocol import BadMessageError, Change, Task
from gnomon_coordinator.table import Status

MakeTask = Callable[..., Task]
Node = Any
"""The class PlayedNode of conftest.py, which pytest does not let us import."""


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
    assert node.status("s1") is Status.PAIRED
    del task


def test_a_hostile_body_serves_on_without_a_shadow(node: Node, task: MakeTask) -> None:
    node.paired()
    node.state.broken("b1", "nonsense", node.now_s)
    node._carry_out()
    assert node.closed() == ["b1"]
    assert node.status("b1") is Status.BARRED
    assert node.sent("s1")[-1] == "stop"
    assert "b1" not in node.killed()
    node.say("b1", say="body")
    node.gone("s1")
    node.create(task("s2"))
    assert "protocol" in node.last_told("failed")["reason"]


def test_a_hostile_shadow_is_ended_and_its_body_told(node: Node) -> None:
    node.paired()
    node.state.broken("s1", "nonsense", node.now_s)
    node._carry_out()
    assert node.killed() == ["s1"]
    assert node.sent("b1")[-1] == "unpair"
    assert node.last_told("unpaired")["shadow"] == "s1"


@pytest.mark.parametrize("said", [(1, 2, 3, 4000), (1, 2, 3, 5), (2, 3), ()])
def test_a_shadow_that_holds_other_blocks_than_it_was_told_has_changed_nothing(node: Node, said: tuple[int, ...]) -> None:
    node.paired()
    change_to(node, (2, 3))
    with pytest.raises(BadMessageError, match="other blocks"):
        node.say("s1", say="changed", blocks=said)
    assert "change" not in node.sent("b1")


@pytest.mark.parametrize("said", [(4000,), (1, 2, 3), (2,), ()])
def test_a_shadow_that_keeps_other_blocks_than_it_was_told_does_not_go_on(node: Node, said: tuple[int, ...]) -> None:
    node.paired()
    change_to(node, (2, 3))
    node.say("s1", say="changed", blocks=(1, 2, 3))
    node.say("b1", say="changed", shadow="s1", blocks=(2, 3))
    # What is missing of it for a whole model is reckoned by its blocks.
    node.state.promote("s1", Descriptors(()), node.now_s)
    with pytest.raises(BadMessageError, match="other blocks"):
        node.say("s1", say="changed", blocks=said)
    assert "promote" not in node.sent("s1")


def change_to(node: Node, blocks: tuple[int, ...]) -> None:
    node.state.change("s1", Change(1, (0,), blocks, (0, 1)), node.now_s)
    node._carry_out()
