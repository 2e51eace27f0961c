"""The buffer, event by event: examples by hand, and each request's batch against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest

from gnomon_core.errors import GnomonError
from gnomon_planner.validation import buffered


def by_hand(times: list[float], batch: int, timeout_s: float) -> tuple[list[float], list[int]]:
    waits, sizes, index = [], [], 0
    while index < len(times):
        members = [index]
        while len(members) < batch and members[-1] + 1 < len(times) and times[members[-1] + 1] <= times[index] + timeout_s:
            members.append(members[-1] + 1)
        sent_s = times[members[-1]] if len(members) == batch else times[index] + timeout_s
        waits += [sent_s - times[member] for member in members]
        sizes += [len(members)] * len(members)
        index = members[-1] + 1
    return waits, sizes


def test_a_full_batch_is_sent_by_its_last_request_and_another_by_its_timer() -> None:
    found = buffered([0.0, 0.01, 0.5], batch=2, timeout_s=0.1)
    assert found.latency_s([0.02, 0.03]) == pytest.approx([0.04, 0.03, 0.12])
    assert found.sizes.tolist() == [2, 2, 1]
    assert found.first.tolist() == [0, 2]


def test_a_batch_of_one_waits_for_nothing() -> None:
    assert buffered([0.0, 0.1, 0.1], batch=1, timeout_s=5.0).wait_s.tolist() == [0.0, 0.0, 0.0]


def test_without_a_timeout_only_what_comes_together_goes_together() -> None:
    found = buffered([0.0, 0.0, 0.1], batch=8, timeout_s=0.0)
    assert found.sizes.tolist() == [2, 2, 1]
    assert found.wait_s.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("batch", "timeout_s"), [(1, 0.1), (2, 0.001), (5, 0.05), (8, 0.02), (32, 2.0)])
def test_it_agrees_with_a_plain_loop(batch: int, timeout_s: float) -> None:
    times = np.cumsum(np.random.default_rng(7).exponential(0.01, 3000)).tolist()
    found = buffered(times, batch, timeout_s)
    waits, sizes = by_hand(times, batch, timeout_s)
    assert found.wait_s == pytest.approx(waits)
    assert found.sizes.tolist() == sizes


def test_no_request_is_a_trace_too() -> None:
    assert len(buffered([], 4, 0.1).wait_s) == 0


@pytest.mark.parametrize(("times", "batch", "timeout_s"), [([1.0, 0.0], 2, 0.1), ([0.0], 0, 0.1), ([0.0], 2, -1.0)])
def test_what_no_buffer_does_is_refused(times: list[float], batch: int, timeout_s: float) -> None:
    with pytest.raises(GnomonError, match="cannot do that"):
        buffered(times, batch, timeout_s)
