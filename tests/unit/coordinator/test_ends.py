"""How pairs end, whoever begins it."""

from collections.abc import Callable
from typing import Any

from gnomon_coordinator.protocol import Task
from gnomon_coordinator.table import Status

MakeTask = Callable[..., Task]
Node = Any
"""The class PlayedNode of conftest.py, which pytest does not let us import."""


def test_the_body_lets_go_before_the_shadow_stops(node: Node) -> None:
    node.paired()
    node.destroy()
    assert node.sent("b1")[-1] == "unpair"
    assert "stop" not in node.sent("s1")
    node.say("b1", say="unpaired", shadow="s1", reason="told to")
    assert node.last_told("unpaired")["body"] == "b1"
    assert node.sent("s1")[-1] == "stop"
    node.gone("s1")
    assert "s1" not in node.state.table
    assert node.status("b1") is Status.READY


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
    assert len(node.state.table) == 0


def test_a_shadow_that_dies_leaves_its_body_alone_and_able_to_have_another(node: Node, task: MakeTask) -> None:
    node.paired()
    node.gone("s1")
    assert node.sent("b1")[-1] == "unpair"
    assert node.last_told("unpaired")["shadow"] == "s1"
    assert node.status("b1") is Status.READY
    node.say("b1", say="unpaired", shadow="s1", reason="told to")
    node.create(task("s2"))
    assert node.state.table.get("b1").partner == "s2"


def test_a_body_that_gives_up_its_shadow_ends_it(node: Node) -> None:
    node.paired()
    node.say("b1", say="unpaired", shadow="s1", reason="three misses")
    assert node.last_told("unpaired")["reason"] == "three misses"
    assert node.sent("s1")[-1] == "stop"


def test_destroy_before_a_container_is_forked_leaves_it_to_the_pool(node: Node) -> None:
    node.body()
    node.create()
    node.destroy()
    assert node.last_told("failed")["reason"] == "asked to"
    node.empty(node.forks()[0])
    assert node.status(node.forks()[0]) is Status.READY


def test_destroy_of_an_unknown_shadow_is_answered(node: Node) -> None:
    node.destroy("s9")
    assert node.last_told("failed")["shadow"] == "s9"
