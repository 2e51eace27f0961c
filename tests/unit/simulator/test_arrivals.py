"""Arrivals are where their source says, and the same for the same seed."""

import json
import statistics
from collections import Counter
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_simulator.arrivals import constant, from_trace, poisson, recorded, selected
from gnomon_simulator.events import stream
from gnomon_simulator.traces import Trace


def test_every_bin_gets_its_requests() -> None:
    arrivals = from_trace(Trace(0.5, (3, 0, 2)), stream(1, "arrivals"))
    assert Counter(int(time_s / 0.5) for time_s in arrivals) == {0: 3, 2: 2}
    assert arrivals == sorted(arrivals)


def test_within_a_bin_they_are_uniform() -> None:
    arrivals = from_trace(Trace(10.0, (40_000,)), stream(1, "arrivals"))
    # The mean of 40,000 uniform numbers over 10 s deviates by 0.0144 s (one sigma), their standard deviation is 10/√12.
    assert statistics.fmean(arrivals) == pytest.approx(5.0, abs=0.06)
    assert statistics.pstdev(arrivals) == pytest.approx(2.887, abs=0.03)


def test_a_fraction_of_a_request_comes_with_its_probability() -> None:
    arrivals = from_trace(Trace(1.0, (2.25,) * 4000), stream(1, "arrivals"))
    assert set(Counter(int(time_s) for time_s in arrivals).values()) == {2, 3}
    assert len(arrivals) / 4000 == pytest.approx(2.25, abs=0.03)


def test_poisson_has_its_rate_and_its_spread() -> None:
    arrivals = poisson(50.0, 1000.0, stream(1, "arrivals"))
    seconds = Counter(int(time_s) for time_s in arrivals)
    assert max(arrivals) < 1000.0
    assert len(arrivals) == pytest.approx(50_000, rel=0.02)
    counts = [seconds[second] for second in range(1000)]
    assert statistics.pvariance(counts) / statistics.fmean(counts) == pytest.approx(1.0, abs=0.15)


def test_a_constant_rate_stays_exact_for_hours() -> None:
    arrivals = constant(3.0, 3 * 3600.0)
    assert len(arrivals) == 3 * 3 * 3600
    assert arrivals[3 * 3600 * 2] == 7200.0


@pytest.mark.parametrize(("rate", "duration"), [(0.0, 1.0), (-1.0, 1.0), (float("nan"), 1.0), (1.0, -1.0), (1.0, float("inf"))])
def test_impossible_rates_are_refused(rate: float, duration: float) -> None:
    with pytest.raises(GnomonError):
        constant(rate, duration)


def test_streams_differ_by_purpose_and_by_seed_and_in_nothing_else() -> None:
    assert stream(1, "arrivals").random() == stream(1, "arrivals").random()
    assert len({stream(1, "arrivals").random(), stream(1, "noise").random(), stream(2, "arrivals").random()}) == 3


def test_a_recorded_run_arrives_when_it_was_sent(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    rows = [
        {"format": "gnomon-replay/1"},
        *({"intended_s": time_s, "sent_s": sent} for time_s, sent in [(0.1, 0.2), (0.3, None), (0.0, 0.01)]),
    ]
    record.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert recorded(record) == [0.01, 0.2]
    record.write_text("{}\nx\n")
    with pytest.raises(GnomonError, match="line 2"):
        recorded(record)


def test_a_selected_stretch_begins_at_second_0() -> None:
    assert selected([0.0, 1.0, 2.0, 3.0], 1.0, 2.0) == [0.0, 1.0]
