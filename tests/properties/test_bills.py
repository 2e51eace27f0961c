"""What a call is expected to cost is what the measured ones would have cost in the mean."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gnomon_planner.plans import LambdaPrice
from gnomon_planner.service_time import MOST, of_runs

ROUNDING = 1e-9
times = st.floats(0.001, 10.0)
some = st.lists(st.tuples(st.floats(0.5, 4.0), st.integers(1, 120)), min_size=1, max_size=12)


@given(some, times, st.sampled_from([0.001, 0.1]))
def test_the_expected_bill_is_the_mean_of_the_bills_of_the_runs(
    counts: list[tuple[float, int]], median_s: float, step_s: float
) -> None:
    runs = np.repeat([seconds for seconds, _ in counts], [count for _, count in counts])
    price = LambdaPrice("", usd_per_gb_s=1.0, usd_per_call=0.0, billing_step_s=step_s, source="")
    expected = price.mean_per_call(1024.0, np.array([median_s]), of_runs([runs])).item()
    bills = price.per_call(1024.0, median_s * (runs / np.median(runs)))
    off = 0.0 if len(runs) <= MOST else np.ptp(bills) / MOST
    assert abs(expected - bills.mean()) <= off + ROUNDING * bills.max()
