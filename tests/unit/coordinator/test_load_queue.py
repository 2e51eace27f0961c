"""Loads in turn: Shadows that share a CPU load one after another, others at once."""

from collections.abc import Callable
from typing import Any

from gnomon_coordinator.protocol import Task
from gnomon_coordinator.table import Kind, Status

MakeTask = Callable[..., Task]
Node = Any
"""The class PlayedNode of conftest.py, which pytest does not let us import."""


def burst(node: Node, *requests: Task) -> None:
    """Containers are ready, and all of these are requested at once, each by a Body of its own."""
    for number, _ in enumerate(requests):
        node.empty(f"pool-0-{number}")
    for request in requests:
        node.body(request.body)
        node.create(request)


def loads(node: Node, *shadows: str) -> list[str]:
    """Those of the Shadows that have been told to load."""
    return [shadow for shadow in shadows if node.sent(shadow) == ["load"]]


def test_loads_on_one_cpu_run_in_the_order_of_their_requests(node: Node, task: MakeTask) -> None:
    first, second, third = (task(f"s{number}", f"b{number}") for number in (1, 2, 3))
    burst(node, first, second, third)
    assert len(node.assigned()) == 3, "all of them have their containers at once"
    assert loads(node, "s1", "s2", "s3") == ["s1"]
    assert [node.status(f"s{number}") for number in (1, 2, 3)] == [Status.LOADING] * 3
    node.registered(first)
    node.wait(0)
    assert loads(node, "s2", "s3") == ["s2"]
    node.registered(second)
    node.wait(0)
    assert loads(node, "s3") == ["s3"]


def test_loads_on_different_cpus_do_not_wait_for_each_other(node: Node, task: MakeTask) -> None:
    burst(node, task("s1", "b1", cpus=(0,)), task("s2", "b2", cpus=(1,)), task("s3", "b3", cpus=(0, 2)))
    assert loads(node, "s1", "s2", "s3") == ["s1", "s2"]


def test_long_load_runs_in_parallel_with_the_next_one(node: Node, task: MakeTask) -> None:
    burst(node, task("s1", "b1"), task("s2", "b2"))
    node.wait(0.049)
    assert loads(node, "s2") == []
    assert node.state.due_s() <= node.now_s + 0.001 + 1e-9, "the loop wakes for the end of the turn"
    node.wait(0.001)
    assert loads(node, "s2") == ["s2"]
    assert node.state.due_s() > node.now_s, "and does not spin afterwards"


def test_shadow_waiting_for_two_cpus_is_not_overtaken_on_the_free_one(node: Node, task: MakeTask) -> None:
    burst(node, task("s1", "b1", cpus=(0,)), task("s2", "b2", cpus=(0, 1)), task("s3", "b3", cpus=(1,)))
    assert loads(node, "s1", "s2", "s3") == ["s1"]


def test_a_turn_passes_on_when_its_shadow_ends(node: Node, task: MakeTask) -> None:
    burst(node, task("s1", "b1"), task("s2", "b2"))
    node.gone("pool-0-0")
    node.wait(0)
    assert loads(node, "s2") == ["s2"], "whoever lost its container waits for another"


def test_shadow_ended_in_the_queue_never_loads(node: Node, task: MakeTask) -> None:
    first = task("s1", "b1")
    burst(node, first, task("s2", "b2"), task("s3", "b3"))
    node.destroy("s2")
    assert "s2" in node.killed()
    node.registered(first)
    node.wait(0)
    assert loads(node, "s2", "s3") == ["s3"]


def test_request_changed_in_the_queue_is_loaded_as_changed(node: Node, task: MakeTask) -> None:
    first = task("s1", "b1")
    burst(node, first, task("s2", "b2", blocks=(1, 2)))
    node.create(task("s2", "b2", blocks=(3, 4)))
    node.registered(first)
    node.wait(0)
    assert node.last_sent("s2")["blocks"] == (3, 4)


def test_a_container_that_was_forked_for_its_shadow_does_not_wait(node: Node, task: MakeTask) -> None:
    burst(node, task("s1", "b1"))
    node.body("b2")
    node.create(task("s2", "b2"))
    [container] = node.forks()
    node.found(container, Kind.EMPTY)
    assert loads(node, "s1", "s2") == ["s1", "s2"]
