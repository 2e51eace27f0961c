"""The pool of empty containers, and loads that wait for their turn on a CPU."""

from collections.abc import Callable

from gnomon_coordinator.pool_size import BURST_S, LONGEST_BACKOFF_S, REFILL_AFTER_S, REMEMBERED_S, PoolSize
from gnomon_coordinator.protocol import Task
from gnomon_coordinator.table import Kind, Status
from tests.unit.coordinator.conftest import FakeNode


def test_pool_is_filled_when_its_size_is_set() -> None:
    pool = PoolSize()
    assert pool.missing(0, 10.0) == 0
    assert pool.due_s(0) is None
    pool.resize(3, 10.0)
    assert pool.missing(0, 10.0) == 3
    assert pool.missing(2, 10.0) == 1


def test_pool_yields_cores_to_a_loading_shadow() -> None:
    pool = PoolSize()
    pool.resize(1, 0.0)
    pool.taken(10.0)
    assert pool.missing(0, 10.0) == 0
    assert pool.due_s(0) == 10.0 + REFILL_AFTER_S
    assert pool.missing(0, 10.0 + REFILL_AFTER_S) == 1


def test_a_smaller_one_gives_containers_back() -> None:
    pool = PoolSize()
    pool.resize(3, 0.0)
    pool.resize(1, 0.0)
    assert pool.missing(3, 0.0) == -2


def test_containers_that_cannot_be_made_are_tried_less_and_less_often() -> None:
    pool = PoolSize()
    pool.resize(1, 0.0)
    now_s, pauses = 0.0, []
    for _ in range(10):
        pool.failed(now_s)
        due_s = pool.due_s(0)
        assert due_s is not None
        pauses.append(round(due_s - now_s, 3))
        now_s = due_s
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses[-1] == LONGEST_BACKOFF_S
    pool.filled()
    pool.failed(now_s)
    due_s = pool.due_s(0)
    assert due_s is not None
    assert round(due_s - now_s, 3) == 0.1


def burst(pool: PoolSize, at_s: float, count: int) -> None:
    for number in range(count):
        pool.taken(at_s + 0.01 * number)


def test_pool_keeps_the_containers_that_the_last_burst_could_use() -> None:
    pool = PoolSize()
    pool.resize(1, 0.0, most=4)
    burst(pool, 10.0, 3)
    assert pool.missing(0, 11.0) == 3
    burst(pool, 20.0, 2)
    assert pool.missing(0, 21.0) == 3
    burst(pool, 30.0, 9)
    assert pool.missing(0, 31.0) == 4
    assert pool.due_s(4) == 30.08 + REMEMBERED_S


def test_a_burst_is_forgotten_and_its_containers_are_given_back() -> None:
    pool = PoolSize()
    pool.resize(1, 0.0, most=4)
    burst(pool, 10.0, 3)
    due_s = pool.due_s(3)
    assert due_s is not None
    assert pool.missing(3, due_s - 1.0) == 0
    assert pool.missing(3, due_s) == -2
    assert pool.due_s(3) is None
    assert pool.missing(0, due_s) == 1


def test_shadows_that_begin_one_after_the_other_are_no_burst() -> None:
    pool = PoolSize()
    pool.resize(1, 0.0, most=4)
    for number in range(10):
        pool.taken(2 * BURST_S * number)
    assert pool.missing(0, 100.0) == 1


def test_a_pool_of_none_and_one_without_leave_to_grow_stay_as_they_are() -> None:
    for size in (0, 1):
        pool = PoolSize()
        pool.resize(size, 0.0)
        burst(pool, 10.0, 5)
        assert pool.missing(0, 11.0) == size


def test_a_container_that_dies_before_its_load_is_replaced_by_another(node: FakeNode) -> None:
    node.body()
    node.empty("pool-0-1")
    node.create()
    node.gone("pool-0-1")
    assert node.closed() == ["s1"]
    [container] = node.forks()
    node.found(container, Kind.EMPTY)
    node.registered()
    assert node.connected()


def test_three_that_die_are_enough(node: FakeNode) -> None:
    node.body()
    node.create()
    for _ in range(3):
        node.gone(node.forks()[-1])
    assert len(node.forks()) == 3
    assert "3 containers" in node.last_event("failed")["reason"]
    assert "s1" not in node.state.table
    assert node.state.table.get("b1").partner is None


def test_a_shadow_whose_load_fails_ends_with_its_reason(node: FakeNode) -> None:
    node.body()
    node.empty()
    node.create()
    node.say("s1", say="failed", shadow="s1", reason="no such weights")
    assert node.last_event("ending") == {"event": "ending", "shadow": "s1", "reason": "no such weights"}
    assert node.killed() == ["s1"]
    node.gone("s1")
    assert "s1" not in node.state.table


def test_a_load_that_takes_too_long_ends(node: FakeNode) -> None:
    node.body()
    node.empty()
    node.create()
    node.wait(31)
    assert node.killed() == ["s1"]
    assert "its blocks" in node.last_event("ending")["reason"]


def test_the_pool_is_filled_and_filled_again(node: FakeNode) -> None:
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


def test_a_container_that_dies_in_the_pool_is_replaced(node: FakeNode) -> None:
    node.state.pool.resize(1, node.now_s)
    node.wait(0)
    node.empty(node.forks()[0])
    node.gone(node.forks()[0])
    node.wait(0)
    assert len(node.forks()) == 2


def test_a_pool_that_cannot_be_filled_is_tried_ever_more_rarely(node: FakeNode) -> None:
    node.state.pool.resize(1, node.now_s)
    for _ in range(1000):
        node.wait(0.01)
        for container in node.forks():
            if container in node.state._forking:
                node.gone(container)
    assert 5 <= len(node.forks()) <= 10


def test_a_container_that_never_says_that_it_is_ready_is_ended(node: FakeNode) -> None:
    node.found("pool-0-1", Kind.EMPTY)
    node.wait(21)
    assert node.killed() == ["pool-0-1"]


def test_a_smaller_pool_lets_containers_go(node: FakeNode) -> None:
    node.empty("pool-0-1")
    node.wait(0)
    assert node.killed() == ["pool-0-1"]


MakeTask = Callable[..., Task]


def request_all(node: FakeNode, *requests: Task) -> None:
    """Containers are ready, and all of these are requested at once, each by a Body of its own."""
    for number, _ in enumerate(requests):
        node.empty(f"pool-0-{number}")
    for request in requests:
        node.body(request.body)
        node.create(request)


def loads(node: FakeNode, *shadows: str) -> list[str]:
    """The load orders that Shadows have got."""
    return [shadow for shadow in shadows if node.sent(shadow) == ["load"]]


def test_loads_on_one_cpu_run_in_the_order_of_their_requests(node: FakeNode, task: MakeTask) -> None:
    first, second, third = (task(f"s{number}", f"b{number}") for number in (1, 2, 3))
    request_all(node, first, second, third)
    assert len(node.assigned()) == 3, "all of them have their containers at once"
    assert loads(node, "s1", "s2", "s3") == ["s1"]
    assert [node.status(f"s{number}") for number in (1, 2, 3)] == [Status.LOADING] * 3
    node.registered(first)
    node.wait(0)
    assert loads(node, "s2", "s3") == ["s2"]
    node.registered(second)
    node.wait(0)
    assert loads(node, "s3") == ["s3"]


def test_loads_on_different_cpus_do_not_wait_for_each_other(node: FakeNode, task: MakeTask) -> None:
    request_all(node, task("s1", "b1", cpus=(0,)), task("s2", "b2", cpus=(1,)), task("s3", "b3", cpus=(0, 2)))
    assert loads(node, "s1", "s2", "s3") == ["s1", "s2"]


def test_long_load_runs_in_parallel_with_the_next_one(node: FakeNode, task: MakeTask) -> None:
    request_all(node, task("s1", "b1"), task("s2", "b2"))
    node.wait(0.049)
    assert loads(node, "s2") == []
    assert node.state.due_s() <= node.now_s + 0.001 + 1e-9, "the loop wakes for the end of the turn"
    node.wait(0.001)
    assert loads(node, "s2") == ["s2"]
    assert node.state.due_s() > node.now_s, "and does not spin afterwards"


def test_shadow_waiting_for_two_cpus_is_not_overtaken_on_the_free_one(node: FakeNode, task: MakeTask) -> None:
    request_all(node, task("s1", "b1", cpus=(0,)), task("s2", "b2", cpus=(0, 1)), task("s3", "b3", cpus=(1,)))
    assert loads(node, "s1", "s2", "s3") == ["s1"]


def test_a_turn_passes_on_when_its_shadow_ends(node: FakeNode, task: MakeTask) -> None:
    request_all(node, task("s1", "b1"), task("s2", "b2"))
    node.gone("pool-0-0")
    node.wait(0)
    assert loads(node, "s2") == ["s2"], "whoever lost its container waits for another"


def test_shadow_ended_in_the_queue_never_loads(node: FakeNode, task: MakeTask) -> None:
    first = task("s1", "b1")
    request_all(node, first, task("s2", "b2"), task("s3", "b3"))
    node.destroy("s2")
    assert "s2" in node.killed()
    node.registered(first)
    node.wait(0)
    assert loads(node, "s2", "s3") == ["s3"]


def test_request_changed_in_the_queue_is_loaded_as_changed(node: FakeNode, task: MakeTask) -> None:
    first = task("s1", "b1")
    request_all(node, first, task("s2", "b2", blocks=(1, 2)))
    node.create(task("s2", "b2", blocks=(3, 4)))
    node.registered(first)
    node.wait(0)
    assert node.last_sent("s2")["blocks"] == (3, 4)


def test_a_container_that_was_forked_for_its_shadow_does_not_wait(node: FakeNode, task: MakeTask) -> None:
    request_all(node, task("s1", "b1"))
    node.body("b2")
    node.create(task("s2", "b2"))
    [container] = node.forks()
    node.found(container, Kind.EMPTY)
    assert loads(node, "s1", "s2") == ["s1", "s2"]
