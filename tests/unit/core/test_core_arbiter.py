"""Cores of one node: claims that are kept, and loans for the time of a batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.core_arbiter import CoreArbiter
from gnomon_core.scheduling import economical_batch


def with_borrowers(cores: int, *names: str) -> CoreArbiter:
    arbiter = CoreArbiter(cores)
    for name in names:
        arbiter.claim(name, 1, idle_cores=1)
    return arbiter


def test_a_batch_borrows_what_nobody_has_and_gives_it_back() -> None:
    arbiter = with_borrowers(26, "a")
    assert arbiter.lend("a", 20) == 20
    assert arbiter.free == 6
    arbiter.give_back("a")
    assert arbiter.free == 25
    assert arbiter.lend("a", 40) == 26


def test_instances_of_a_node_have_equal_shares_of_it() -> None:
    arbiter = with_borrowers(26, "a", "b")
    assert arbiter.share("a") == 13
    assert arbiter.lend("a", 26) == 13
    assert arbiter.lend("b", 26) == 13
    arbiter.release("b")
    assert arbiter.share("a") == 26
    assert arbiter.lend("a", 26) == 26


def test_cores_claimed_by_another_instance_are_never_lent() -> None:
    arbiter = with_borrowers(8, "a")
    arbiter.claim("own", 6)
    assert arbiter.lend("a", 8) == 2
    assert arbiter.share("own") == 0
    assert arbiter.lend("own", 6) == 6, "it has its own"


def test_a_node_of_one_core_lends_none() -> None:
    arbiter = with_borrowers(1, "a", "b")
    assert [arbiter.lend(name, 1) for name in "ab"] == [1, 1]


def test_the_end_of_an_instance_returns_its_claim_and_its_loan() -> None:
    arbiter = with_borrowers(8, "a")
    arbiter.lend("a", 8)
    arbiter.release("a")
    assert arbiter.free == 8
    arbiter.give_back("a")
    arbiter.release("a")


def test_an_instance_that_gets_cores_of_its_own_has_no_loan() -> None:
    arbiter = with_borrowers(8, "a")
    arbiter.lend("a", 8)
    arbiter.claim("a", 4)
    assert arbiter.free == 4


def test_idle_instances_leave_their_cores_to_others() -> None:
    busy = {"a", "b"}
    arbiter = CoreArbiter(8, busy.__contains__)
    arbiter.claim("a", 1, idle_cores=1, held_while_idle=False)
    arbiter.claim("b", 1, idle_cores=1, held_while_idle=False)
    arbiter.claim("asked for", 2)
    assert arbiter.lend("a", 8) == 3
    busy.remove("b")
    assert arbiter.lend("a", 8) == 6
    # Its next batch counts at once, on the core that it keeps: the other loan lasts until that batch ends.
    assert arbiter.share("b") == 3
    assert arbiter.lend("b", 8) == 1
    busy.add("b")
    assert arbiter.lend("a", 8) == 3


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 30)), max_size=40))
def test_batches_get_what_their_instance_keeps_and_never_more_than_the_node_has(asked: list[tuple[str, int]]) -> None:
    arbiter, held = with_borrowers(16, *"abcd"), dict.fromkeys("abcd", 1)
    for borrower, cores in asked:
        if cores:
            held[borrower] = arbiter.lend(borrower, cores)
            assert held[borrower] == max(1, min(cores, 4)), "a quarter of the node is always there"
        else:
            arbiter.give_back(borrower)
            held[borrower] = 1
        assert sum(held.values()) == 16 - arbiter.free
        assert arbiter.free >= 0


@pytest.mark.parametrize(
    ("milliseconds", "slo_s", "batch"),
    [
        ((20, 39, 58, 76, 95, 114, 132, 150), 1.0, 4),
        ((20, 21, 22, 23), 1.0, 4),
        ((20, 40, 60, 80), 1.0, 1),
        ((20, 30, 35, 36), 0.03, 2),
        ((20, 30), 0.01, 1),
    ],
)
def test_the_smallest_batch_with_about_the_best_timely_rate(milliseconds: tuple[int, ...], slo_s: float, batch: int) -> None:
    assert economical_batch(lambda size: milliseconds[size - 1] / 1e3, len(milliseconds), slo_s) == batch


def test_without_a_latency_batches_are_of_one() -> None:
    assert economical_batch(lambda _: None, 8, 1.0) == 1
