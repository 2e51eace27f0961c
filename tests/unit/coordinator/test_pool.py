"""How many empty containers, and when the next."""

from gnomon_coordinator.pool_size import BURST_S, LONGEST_BACKOFF_S, REFILL_AFTER_S, REMEMBERED_S, PoolSize


def test_it_is_filled_at_once_when_its_size_is_set() -> None:
    pool = PoolSize()
    assert pool.missing(0, 10.0) == 0
    assert pool.due_s(0) is None
    pool.resize(3, 10.0)
    assert pool.missing(0, 10.0) == 3
    assert pool.missing(2, 10.0) == 1


def test_it_leaves_the_cores_to_the_shadow_that_loads() -> None:
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


def test_after_a_burst_as_many_containers_are_kept_as_it_could_have_used() -> None:
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
