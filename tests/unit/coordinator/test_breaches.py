"""What does not keep to the protocol costs whoever said it."""

from collections.abc import Callable
from typing import Any

import pytest

from gnomon_coordinator.fields import BadMessageError
from gnomon_coordinator.messages import Task
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
    node.coordination.broken("b1", "nonsense", node.now_s)
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
    node.coordination.broken("s1", "nonsense", node.now_s)
    node._carry_out()
    assert node.killed() == ["s1"]
    assert node.sent("b1")[-1] == "unpair"
    assert node.last_told("unpaired")["shadow"] == "s1"
