"""Of any arrivals, those that are kept by the toss of a coin: as many, and as much less bursty, as probability says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_planner.maps import Map

rates = st.floats(1e-2, 1e2)
shares = st.floats(0.01, 1.0)


@st.composite
def processes(draw: st.DrawFn) -> Map:
    """One to three phases that are all reached, with an arrival or without one; the diagonal of D0 follows."""
    order = draw(st.integers(1, 3))
    moves, arrivals = (np.array(draw(st.lists(rates, min_size=order**2, max_size=order**2))).reshape(order, order) for _ in "01")
    np.fill_diagonal(moves, 0.0)
    np.fill_diagonal(moves, -(moves + arrivals).sum(axis=1))
    return Map(moves, arrivals)


@given(processes(), shares)
def test_a_share_of_the_requests_comes_that_much_more_slowly(process: Map, share: float) -> None:
    assert process.thinned(share).rate_rps == pytest.approx(share * process.rate_rps, rel=1e-9)


@given(processes(), shares, st.floats(0.01, 100.0))
def test_excess_variance_shrinks_with_the_thinning_share(process: Map, share: float, window_s: float) -> None:
    for window in (None, window_s):
        whole = process.dispersion(window)
        assert process.thinned(share).dispersion(window) == pytest.approx(1.0 + share * (whole - 1.0), rel=1e-6, abs=1e-6)


@given(processes(), shares, shares)
def test_a_share_of_a_share_is_a_share(process: Map, first: float, second: float) -> None:
    twice, once = process.thinned(first).thinned(second), process.thinned(first * second)
    assert np.allclose(twice.D0, once.D0, rtol=1e-9, atol=1e-12)
    assert np.allclose(twice.D1, once.D1, rtol=1e-9, atol=1e-12)


@given(processes())
def test_all_of_them_are_the_process_itself(process: Map) -> None:
    assert process.thinned(1.0) == process


@given(rates, shares)
def test_independent_arrivals_stay_independent(rate_rps: float, share: float) -> None:
    thinned = Map.poisson(rate_rps).thinned(share)
    assert thinned.order == 1
    assert thinned.rate_rps == pytest.approx(share * rate_rps)
