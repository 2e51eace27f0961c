"""Which of the nodes that it may be on an instance gets, and why none where it gets none."""

from dataclasses import replace

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Node
from gnomon_platforms.kubernetes.nodes import Given, Room, choose, place_shadow

GIB = 2**30


def room(name: str, cores: float, memory_bytes: int, pods: int = 10, **others: int) -> Room:
    return Room(Node(name, 8, 8 * GIB, cores, memory_bytes, pairs=False), pods, others)


ROOMS = [room("a", 2.0, GIB), room("b", 6.0, GIB), room("c", 7.0, 0), room("d", 8.0, GIB, pods=0), room("e", 1.0, GIB, gpu=2)]
EVERY = {"a", "b", "c", "d", "e"}


def asks(cores: float, memory_bytes: int = 0, **others: int) -> Given:
    return Given("", cores, memory_bytes, 1, tuple(others.items()))


def test_the_node_with_most_cores_left_is_chosen_among_those_that_fit() -> None:
    assert choose(ROOMS, EVERY, asks(1.0, GIB), None) == "b"
    assert choose(ROOMS, EVERY, asks(1.0), None) == "c"
    assert choose(ROOMS, {"a"}, asks(1.0), None) == "a"
    assert choose(ROOMS, EVERY, asks(1.0), "a") == "a"
    assert choose(ROOMS, EVERY, asks(1.0, gpu=1), None) == "e"
    assert choose(ROOMS, EVERY, replace(asks(8.0), pods=0), None) == "d"


def test_where_the_pod_does_not_fit_on_the_node_that_was_named_another_one_gets_it() -> None:
    """A policy names the node with most cores. It knows neither constraints nor memory, pods and devices."""
    assert choose(ROOMS, EVERY - {"c"}, asks(1.0), "c") == "b"
    assert choose(ROOMS, EVERY, asks(1.0, GIB), "c") == "b"
    assert choose(ROOMS, EVERY, asks(1.0), "d") == "c"
    assert choose(ROOMS, EVERY, asks(1.0, gpu=2), "c") == "e"
    assert choose(ROOMS, EVERY, asks(3.0), "a") == "c"


@pytest.mark.parametrize(
    ("allowed", "wanted", "named", "says"),
    [
        (EVERY, asks(1.0), "elsewhere", "There is no node 'elsewhere'"),
        (set[str](), asks(1.0), None, "No node takes this function."),
        (EVERY, asks(8.5), None, ": 8.5 cores (8 at most)."),
        (EVERY, asks(1.0, 2 * GIB), None, ": 2048 MiB (1024 at most)."),
        (EVERY, asks(0.1, gpu=3), None, ": 3 gpu (2 at most)."),
        (EVERY, asks(0.1, GIB, tpu=1), "a", ": 1 tpu (0 at most)."),
        ({"d"}, asks(0.1), None, ": 1 pods (0 at most)."),
        (EVERY, asks(9.0, gpu=3), None, ": 9 cores (8 at most), 3 gpu (2 at most)."),
        (EVERY, asks(2.0, gpu=1), None, "No node has all of it left together: 2 cores, 1 pods, 1 gpu."),
    ],
)
def test_a_refusal_says_what_is_lacking(allowed: set[str], wanted: Given, named: str | None, says: str) -> None:
    with pytest.raises(GnomonError) as refused:
        choose(ROOMS, allowed, wanted, named)
    assert (refused.value.status, refused.value.code) == (503, "no_capacity")
    assert says in str(refused.value)


def test_a_shadow_on_another_node_is_where_its_function_may_be() -> None:
    nodes = [
        Node(name, 8, GIB, free, GIB, pairs=name != "cold") for name, free in (("full", 0), ("n2", 2), ("n3", 3), ("cold", 9))
    ]
    everywhere = {node.name for node in nodes}
    assert place_shadow(nodes, everywhere, 4, "n2") == "n2", "who names it knows its cores"
    assert place_shadow(nodes, everywhere, 1, "n9") == "n9", "that there is none is found out elsewhere"
    # Such as the control plane's, which has a pool as well: not there, and not where no Shadow can be made.
    assert place_shadow(nodes, everywhere - {"n2"}, 2, "n2") == "n3"
    with pytest.raises(GnomonError) as caught:
        place_shadow(nodes, {"full", "cold"}, 1, "n2")
    assert (caught.value.status, caught.value.code) == (503, "no_capacity")
