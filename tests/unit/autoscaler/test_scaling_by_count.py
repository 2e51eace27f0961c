"""From a number to actions: where instances are made and which ones end."""

from dataclasses import replace

from gnomon_autoscaler.replica_policy import towards
from gnomon_core.fleet import Instance, InstanceState, Node
from gnomon_core.scaling import CreateBody, DestroyBody, History, Observation
from gnomon_core.settings import Settings


def instance(id_: str, state: InstanceState = InstanceState.READY, **changes: object) -> Instance:
    return replace(Instance(id_, "f.ns", 1, "n1", 1, 100, state, started_s=0.0), **changes)


def seen(*instances: Instance, nodes: tuple[Node, ...] = (), cores: int = 1) -> Observation:
    return Observation(0.0, "f.ns", Settings(cores=cores), instances, nodes, 0, 0, 0.0, 0.0, History(0.5, 0.0))


def test_enough_is_left_alone() -> None:
    assert towards(2, seen(instance("a"), instance("b"))) == ()


def test_draining_instances_do_not_count() -> None:
    assert towards(1, seen(instance("a", InstanceState.DRAINING))) == (CreateBody(1),)


def test_the_youngest_idle_one_ends_first() -> None:
    there = (instance("old"), instance("young", started_s=5.0), instance("youngest", started_s=9.0, busy=True, in_flight=1))
    assert towards(2, seen(*there)) == (DestroyBody("young"),)
    assert towards(1, seen(*there)) == (DestroyBody("young"), DestroyBody("old"))


def test_of_busy_ones_the_one_with_fewest_requests_in_flight_ends_first() -> None:
    there = (instance("a", busy=True, in_flight=8), instance("b", busy=True, in_flight=2))
    assert towards(1, seen(*there)) == (DestroyBody("b"),)


def test_what_still_starts_ends_before_what_serves() -> None:
    there = (instance("serves"), instance("starts", InstanceState.STARTING, started_s=1.0))
    assert towards(1, seen(*there)) == (DestroyBody("starts"),)


def test_never_more_than_there_are() -> None:
    assert towards(0, seen(instance("a"))) == (DestroyBody("a"),)


def test_new_instances_spread_over_the_nodes_with_most_room() -> None:
    nodes = (Node("n1", 4, 1000, 2, 1000), Node("n2", 4, 1000, 4, 1000))
    assert towards(2, seen(nodes=nodes, cores=2)) == (CreateBody(2, "n2"), CreateBody(2, "n1"))


def test_a_node_without_memory_is_passed_over_once_the_need_is_known() -> None:
    nodes = (Node("full", 8, 1000, 8, 50), Node("free", 4, 1000, 4, 1000))
    assert towards(2, seen(instance("a"), nodes=nodes)) == (CreateBody(1, "free"),)


def test_without_room_anywhere_the_platform_is_asked_and_may_refuse() -> None:
    nodes = (Node("n1", 1, 1000, 1, 1000),)
    assert towards(2, seen(nodes=nodes)) == (CreateBody(1, "n1"), CreateBody(1, None))
