"""What holds for the latency behind any buffer and any arrivals."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon_planner.buffer import BufferPlan
from gnomon_planner.latency import ExactLatency, ServiceTimes
from gnomon_planner.maps import Map
from gnomon_planner.paper import PaperLatency

rates = st.floats(0.05, 500.0)


@st.composite
def maps(draw: st.DrawFn) -> Map:
    """Poisson, MMPP(2), and MAPs of two and three phases with all moves."""
    order = draw(st.integers(1, 3))
    if order == 1:
        return Map.poisson(draw(rates))
    if draw(st.booleans()):
        return Map.mmpp2((draw(rates), draw(rates)), (draw(rates), draw(rates)))
    d0 = np.array([[0.0 if row == column else draw(rates) for column in range(order)] for row in range(order)])
    d1 = np.array([[draw(rates) for _ in range(order)] for _ in range(order)])
    return Map(d0 - np.diag((d0 + d1).sum(axis=1)), d1)


batches = st.integers(1, 12)
timeouts = st.floats(0.0, 3.0)


@st.composite
def services(draw: st.DrawFn, batch: int) -> ServiceTimes:
    return ServiceTimes.fixed([draw(st.floats(0.0, 0.5)) for _ in range(batch)])


@settings(max_examples=60, deadline=None)
@given(st.data(), maps(), batches, timeouts)
def test_f_rises_from_zero_to_one(data: st.DataObject, process: Map, batch: int, timeout_s: float) -> None:
    service = data.draw(services(batch))
    for latency in (
        ExactLatency(process, BufferPlan(batch, timeout_s), service),
        PaperLatency(process, BufferPlan(batch, timeout_s), service),
    ):
        most = float(service.means.max()) + timeout_s
        found = latency.cdf(np.linspace(-0.01, most + 0.01, 200))
        assert np.diff(found).min() >= -1e-8
        assert found[0] == 0.0
        assert found[-1] == pytest.approx(1.0, abs=1e-9)
        assert latency.percentile(100) <= most + 1e-12


@settings(max_examples=60, deadline=None)
@given(maps(), batches, timeouts)
def test_sizes_and_phases_are_distributions_that_lose_no_request(process: Map, batch: int, timeout_s: float) -> None:
    buffer = ExactLatency(process, BufferPlan(batch, timeout_s), ServiceTimes.fixed([0.0], batch)).buffer
    assert buffer.sizes.sum() == pytest.approx(1.0)
    assert buffer.sizes.min() >= 0.0
    assert buffer.phases.sum() == pytest.approx(1.0)
    # All members of a batch of k have waited at most T by the end, except the first of an incomplete one, counted apart.
    everyone = buffer.members(np.array([buffer.timeout_s]))[0]
    complete = np.arange(1, batch + 1) == batch
    assert everyone == pytest.approx(buffer.sizes * (np.arange(1, batch + 1) - ~complete), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.data(), maps(), batches, timeouts, st.floats(0.5, 99.9))
def test_a_percentile_is_the_least_time_that_reaches_it(
    data: st.DataObject, process: Map, batch: int, timeout_s: float, percent: float
) -> None:
    latency = ExactLatency(process, BufferPlan(batch, timeout_s), data.draw(services(batch)))
    at_s = latency.percentile(percent)
    assert latency.cdf(np.array([at_s]))[0] >= percent / 100.0 - 1e-8
    assert latency.cdf(np.array([at_s - 1e-6 * (1.0 + at_s)]))[0] <= percent / 100.0 + 1e-8


@settings(max_examples=40, deadline=None)
@given(maps(), st.integers(2, 10), timeouts, st.floats(0.01, 100.0))
def test_only_ratios_of_times_matter(process: Map, batch: int, timeout_s: float, factor: float) -> None:
    service = [0.01 * size for size in range(1, batch + 1)]
    here = ExactLatency(process, BufferPlan(batch, timeout_s), ServiceTimes.fixed(service))
    there = ExactLatency(
        process.rescaled(process.rate_rps * factor),
        BufferPlan(batch, timeout_s / factor),
        ServiceTimes.fixed([one / factor for one in service]),
    )
    for percent in (50, 95):
        assert there.percentile(percent) * factor == pytest.approx(here.percentile(percent), rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(rates, st.integers(2, 8), st.floats(0.001, 1.0))
def test_phases_that_differ_in_nothing_are_a_poisson_process(rate_rps: float, batch: int, timeout_s: float) -> None:
    one, two = (
        ExactLatency(process, BufferPlan(batch, timeout_s), ServiceTimes.fixed([0.01], batch))
        for process in (Map.poisson(rate_rps), Map.mmpp2((rate_rps, rate_rps), (3.0, 0.2)))
    )
    times = np.linspace(0.0, timeout_s + 0.011, 50)
    assert two.cdf(times) == pytest.approx(one.cdf(times), abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(maps(), st.integers(2, 8))
def test_a_full_batch_is_certain_where_nobody_stops_waiting(process: Map, batch: int) -> None:
    buffer = ExactLatency(process, BufferPlan(batch, math.inf), ServiceTimes.fixed([0.01], batch)).buffer
    assert buffer.sizes[-1] == pytest.approx(1.0)
