"""A buffer whose bounds change, and instances that are held: examples by hand, and each request's batch against a plain loop."""

import itertools
import math

import numpy as np
import pytest

from gnomon_core.errors import GnomonError
from gnomon_planner.validation import Bounds, buffered, busy_quantile, instance_waits, rebuffered

ALWAYS = -math.inf


def by_hand(times: list[float], bounds: list[Bounds]) -> tuple[list[float], list[int]]:
    """What is sent when and in which number, event by event: arrivals, changes, and the timer of whoever waits longest."""
    sent: list[float] = []
    sizes: list[int] = []
    waiting: list[float] = []
    now = bounds[0]

    def send(at_s: float) -> None:
        sent.extend([at_s] * len(waiting[: now.batch]))
        sizes.extend([len(waiting[: now.batch])] * len(waiting[: now.batch]))
        del waiting[: now.batch]

    events = sorted(
        [(time_s, 0, place) for place, time_s in enumerate(times)] + [(b.since_s, 1, n) for n, b in enumerate(bounds)]
    )
    for at_s, kind, place in [*events, (math.inf, 2, 0)]:
        while waiting and waiting[0] + now.timeout_s < at_s:
            send(waiting[0] + now.timeout_s)
        if kind == 0:
            waiting.append(times[place])
            if len(waiting) >= now.batch:
                send(at_s)
        elif kind == 1:
            now = bounds[place]
            while waiting and (len(waiting) >= now.batch or waiting[0] + now.timeout_s <= at_s):
                send(at_s)
    return sent, sizes


def test_a_batch_that_is_open_goes_by_the_new_bounds() -> None:
    times = [0.0, 0.1, 0.2]
    longer = rebuffered(times, [Bounds(ALWAYS, 8, 0.5), Bounds(0.3, 8, 1.0)])
    assert longer.wait_s == pytest.approx([1.0, 0.9, 0.8])
    shorter = rebuffered(times, [Bounds(ALWAYS, 8, 0.5), Bounds(0.3, 8, 0.2)])
    assert shorter.wait_s == pytest.approx([0.3, 0.2, 0.1]), "its time was up: it is sent at once"
    smaller = rebuffered(times, [Bounds(ALWAYS, 8, 0.5), Bounds(0.3, 2, 0.5)])
    assert smaller.wait_s == pytest.approx([0.3, 0.2, 0.5]), "two are full at once, the third waits for its own time"
    assert smaller.sizes.tolist() == [2, 2, 1]


@pytest.mark.parametrize("seed", range(8))
def test_buffer_agrees_with_a_plain_loop(seed: int) -> None:
    chance = np.random.default_rng(seed)
    times = np.cumsum(chance.exponential(0.01, 2000)).tolist()
    moments = np.sort(chance.uniform(0.0, times[-1], 60)).tolist()
    sizes, waits = chance.integers(1, 9, 61).tolist(), chance.uniform(0.0, 0.08, 61).tolist()
    bounds = [Bounds(since, size, wait) for since, size, wait in zip([ALWAYS, *moments], sizes, waits, strict=True)]
    found = rebuffered(times, bounds)
    sent, expected = by_hand(times, bounds)
    assert found.wait_s + np.array(times) == pytest.approx(np.array(sent))
    assert found.sizes.tolist() == expected


def test_the_same_bounds_again_change_nothing() -> None:
    times = np.cumsum(np.random.default_rng(3).exponential(0.01, 3000))
    once = buffered(times, 5, 0.05)
    again = rebuffered(times, [Bounds(since, 5, 0.05) for since in (ALWAYS, 3.0, 3.0, 9.5)])
    assert np.array_equal(once.wait_s, again.wait_s)
    assert np.array_equal(once.first, again.first)


@pytest.mark.parametrize("bounds", [[], [Bounds(1.0, 2, 0.1), Bounds(0.5, 2, 0.1)], [Bounds(0.0, 2, 0.1), Bounds(1.0, 0, 0.1)]])
def test_bounds_that_are_none_are_refused(bounds: list[Bounds]) -> None:
    with pytest.raises(GnomonError, match="cannot do that"):
        rebuffered([0.0], bounds)


def test_how_many_batches_are_in_service_at_once() -> None:
    sent, takes = np.array([0.0, 0.1, 0.2]), np.full(3, 0.25)
    assert busy_quantile(sent, takes, (0.0, 1.0)) == 3, "three for 0.05 s"
    assert busy_quantile(sent, takes, (0.0, 1.0), share=0.95) == 2
    assert busy_quantile(sent, takes, (0.5, 1.0)) == 1, "at least one"


def test_a_batch_waits_for_the_first_instance_that_is_free() -> None:
    sent, takes = np.array([0.0, 0.1, 0.2]), np.full(3, 0.25)
    assert instance_waits(sent, takes, [(0.0, 3)]) == pytest.approx([0.0, 0.0, 0.0])
    assert instance_waits(sent, takes, [(0.0, 2)]) == pytest.approx([0.0, 0.0, 0.05])
    assert instance_waits(sent, takes, [(0.0, 1)]) == pytest.approx([0.0, 0.15, 0.3])
    assert instance_waits(sent, takes, [(0.0, 1), (0.12, 2)]) == pytest.approx([0.0, 0.02, 0.05]), "another came at 0.12"
    assert instance_waits(sent, takes, [(0.0, 2), (0.15, 1)]) == pytest.approx([0.0, 0.0, 0.15]), "one goes after its batch"


def test_with_one_instance_waits_are_lindleys() -> None:
    chance = np.random.default_rng(5)
    sent, takes = np.cumsum(chance.exponential(0.1, 500)), chance.uniform(0.0, 0.18, 500)
    waits = [0.0]
    for gap, before in zip(np.diff(sent), itertools.islice(takes, 499), strict=True):
        waits.append(max(0.0, waits[-1] + before - gap))
    assert instance_waits(sent, takes, [(0.0, 1)]) == pytest.approx(waits)
