"""The arrival processes of the evaluation."""

import pytest

from benchmarks.reports.evaluation.loads import MMPPS, arrivals


@pytest.mark.parametrize("load", MMPPS)
def test_every_seed_of_a_short_run_has_requests_and_the_same_ones_again(load: str) -> None:
    """Off stays last 60 s on average: a run of two minutes is off throughout for every seventh seed of `on-off`."""
    for seed in range(1, 31):
        [times] = arrivals(load, 2.0, 120.0, seed)
        assert times
        assert times[-1] < 120.0
        assert arrivals(load, 2.0, 120.0, seed) == [times]
