"""A machine that was slow for a while: batches become as large again as they were before."""

from __future__ import annotations

from gnomon_gateway.dispatch.latency import KEPT_BATCHES, Curve
from tests.unit.gateway.test_dispatching_pairs import arrive, largest, make, sizes

FORETOLD = {size: 0.02 * size for size in range(1, 9)}


def test_batches_that_were_slow_in_a_bad_moment_are_made_again() -> None:
    """Each size that was slow once was not made again, down to one: and for ever, as nobody measured it."""
    dispatcher, now_s, number = make(), 0.0, 0

    def serve(waiting: int, slower: float) -> None:
        nonlocal now_s, number
        sent = sizes(arrive(dispatcher, waiting, now_s))
        while sent:
            number, now_s = number + 1, now_s + slower * 0.02 * sent[-1]
            sent = sizes(dispatcher.finished("body", number, [200] * sent[-1], now_s))

    def go_on(batches: int) -> None:
        until = number + batches
        while number < until:
            serve(6, 1.0)

    go_on(50)
    assert largest(dispatcher) == 5
    for _ in range(4):
        serve(6, 4.0)
        go_on(20)
    assert largest(dispatcher) <= 3
    go_on(2 * KEPT_BATCHES)
    assert largest(dispatcher) >= 4, "five take the objective to the last digit"


def test_what_was_measured_of_a_size_is_kept_while_it_is_measured_and_where_nothing_else_is_known() -> None:
    used, unknown = Curve(FORETOLD), Curve({})
    for number in range(3 * KEPT_BATCHES):
        size = 4 if number % (KEPT_BATCHES // 2) == 0 else 1
        used.observe(size, 0.1 if size == 4 else 0.02)
    assert used.at(4) == 0.1
    unknown.observe(4, 0.1)
    for _ in range(3 * KEPT_BATCHES):
        unknown.observe(1, 0.02)
    assert unknown.at(4) == 0.1


def test_what_was_slow_once_counts_for_so_many_batches_of_others() -> None:
    curve = Curve(FORETOLD)
    curve.observe(4, 0.5)
    for _ in range(KEPT_BATCHES // 2):
        curve.observe(1, 0.02)
    slow_s = curve.at(4)
    assert slow_s is not None
    assert slow_s > 0.1
    for _ in range(KEPT_BATCHES):
        curve.observe(1, 0.02)
    assert abs((curve.at(4) or 0.0) - 0.08) < 1e-6


def test_sizes_that_are_slow_for_good_are_tried_one_at_a_time() -> None:
    """Whatever is forgotten is tried, and is late: four sizes at once would be a batch of a hundred."""
    curve, late = Curve(FORETOLD), 0
    for number in range(10 * KEPT_BATCHES):
        size = max(size for size in FORETOLD if (curve.at(size) or 0.0) <= 0.2) if number % 2 else 1
        late += size > 4
        curve.observe(size, 0.02 * size if size <= 4 else 0.3)
    assert late <= 4 + 10
    assert late > 4
