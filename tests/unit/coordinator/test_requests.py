"""From a request to a pair: a container is taken or forked, loads its blocks and works with the Body."""

from collections.abc import Callable
from typing import Any

import pytest

from gnomon_coordinator.effects import Descriptors
from gnomon_coordinator.protocol import Task
from gnomon_coordinator.table import Kind, Status
from gnomon_core.pairs import MAX_SHADOWS

MakeTask = Callable[..., Task]
Node = Any
"""The class PlayedNode of conftest.py, which pytest does not let us import."""


def test_request_takes_a_pool_container_loads_it_and_pairs_it(node: Node) -> None:
    node.body()
    node.empty("pool-0-1")
    descriptors = node.create()
    assert node.assigned() == [("pool-0-1", "s1")]
    assert node.forks() == []
    assert node.last_sent("s1")["do"] == "load"
    assert node.last_sent("s1")["blocks"] == (1, 2)
    assert node.status("s1") is Status.LOADING
    assert "pool-0-1" not in node.state.table
    node.registered()
    assert descriptors is not None
    assert node.last_told("registered")["shadow"] == "s1"
    [connect] = node.connected()
    assert (connect.body, connect.shadow) == ("b1", "s1")
    assert connect.pair["expected_ms"] == ()
    assert connect.join["body"] == "b1"
    # Four samples of 10 bytes are padded to 64; the last run makes 100 bytes a sample.
    assert (connect.to_bytes, connect.from_bytes) == (64, 448)
    assert node.status("b1") is Status.PAIRING
    node.say("b1", say="paired", shadow="s1")
    assert node.status("b1") is node.status("s1") is Status.PAIRED
    assert node.last_told("paired") == {"event": "paired", "shadow": "s1", "body": "b1", "blocks": [1, 2], "split": [0, 1]}


def test_without_a_container_one_is_forked_for_it(node: Node) -> None:
    node.body()
    node.create()
    [container] = node.forks()
    assert node.state.table.get("s1").partner == "b1"
    node.found(container, Kind.EMPTY)
    assert node.assigned() == [(container, "s1")]
    assert node.last_sent("s1")["do"] == "load"


def test_a_container_that_is_not_ready_yet_is_as_good(node: Node) -> None:
    node.body()
    node.state.pool.resize(1, node.now_s)
    node.wait(0)
    [container] = node.forks()
    node.found(container, Kind.EMPTY)
    node.create()
    assert node.assigned() == [(container, "s1")]
    node.say("s1", say="empty")
    assert node.status("s1") is Status.LOADING


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
    ("requested", "why"),
    [
        ({"body": "b9"}, "no Body b9"),
        ({"body": "pool-0-1"}, "no Body"),
        ({"blocks": (6,)}, "no such blocks"),
        ({"blocks": ()}, "no such blocks"),
        ({"shadow": "b1"}, "it has ended"),
    ],
)
def test_impossible_request_is_refused_with_the_reason(node: Node, task: MakeTask, requested: dict[str, Any], why: str) -> None:
    node.body()
    node.empty("pool-0-1")
    node.create(task(**requested))
    assert why in node.last_told("failed")["reason"]
    assert node.assigned() == []
    assert node.forks() == []


def test_a_body_has_so_many_shadows_and_no_more(node: Node, task: MakeTask) -> None:
    names = [f"s{number}" for number in range(1, MAX_SHADOWS + 1)]
    for name in names:
        node.paired(task(name))
    assert node.state.table.get("b1").partners == tuple(names)
    node.create(task("s99"))
    assert f"has {MAX_SHADOWS} Shadows already" in node.last_told("failed")["reason"]


def test_descriptors_are_closed_once_they_are_not_needed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Descriptors] = []
    monkeypatch.setattr(Descriptors, "close", lambda descriptors: closed.append(descriptors))  # noqa: PLW0108 - bound to the instance
    node.body()
    first = node.create()
    assert closed == []
    second = node.create()
    assert closed == [second]
    node.found(node.forks()[0], Kind.EMPTY)
    node.registered()
    assert closed == [second, first]
