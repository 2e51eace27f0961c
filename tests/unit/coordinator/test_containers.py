"""Containers: those that fail under a Shadow, and those that the pool keeps."""

from typing import Any

from gnomon_coordinator.pool_size import REFILL_AFTER_S
from gnomon_coordinator.table import Kind

Node = Any
"""The class PlayedNode of conftest.py, which pytest does not let us import."""


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
    assert "s1" not in node.state.table
    assert node.state.table.get("b1").partner is None


def test_a_shadow_whose_load_fails_ends_with_its_reason(node: Node) -> None:
    node.body()
    node.empty()
    node.create()
    node.say("s1", say="failed", shadow="s1", reason="no such weights")
    assert node.last_told("ending") == {"event": "ending", "shadow": "s1", "reason": "no such weights"}
    assert node.killed() == ["s1"]
    node.gone("s1")
    assert "s1" not in node.state.table


def test_a_load_that_takes_too_long_ends(node: Node) -> None:
    node.body()
    node.empty()
    node.create()
    node.wait(31)
    assert node.killed() == ["s1"]
    assert "its blocks" in node.last_told("ending")["reason"]


def test_the_pool_is_filled_and_filled_again(node: Node) -> None:
    node.state.pool.resize(2, node.now_s)
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
    node.state.pool.resize(1, node.now_s)
    node.wait(0)
    node.empty(node.forks()[0])
    node.gone(node.forks()[0])
    node.wait(0)
    assert len(node.forks()) == 2


def test_a_pool_that_cannot_be_filled_is_tried_ever_more_rarely(node: Node) -> None:
    node.state.pool.resize(1, node.now_s)
    for _ in range(1000):
        node.wait(0.01)
        for container in node.forks():
            if container in node.state._forking:
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
