"""What a trace says: textbook numbers, deviations that mean what they say, and refusals with the reason."""

from __future__ import annotations

import numpy as np
import pytest

from gnomon_core.errors import GnomonError
from gnomon_planner.maps import Map
from gnomon_planner.samples import of_counts, of_map, of_times


def poisson_times(seed: int, count: int = 20_000, rate: float = 50.0) -> list[float]:
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count)).tolist()


def test_a_poisson_trace_looks_like_one() -> None:
    sample = of_times(poisson_times(1))
    assert sample.rate_rps == pytest.approx(50.0, rel=0.02)
    assert sample.gaps is not None
    for found, expected in ((sample.gaps.scv, 1.0), (sample.gaps.skewness, 2.0), *((c, 0.0) for c in sample.gaps.correlations)):
        assert abs(found.value - expected) < 4 * found.deviation
    for dispersion in sample.dispersions:
        assert abs(dispersion.value - 1.0) < 4 * dispersion.deviation


def test_deviations_are_those_of_repeated_samples() -> None:
    samples = [of_times(poisson_times(seed, 4000)) for seed in range(40)]
    scvs = [sample.gaps.scv for sample in samples if sample.gaps]
    spread = float(np.std([estimate.value for estimate in scvs]))
    assert float(np.mean([estimate.deviation for estimate in scvs])) == pytest.approx(spread, rel=0.4)
    dispersions = [sample.dispersions[5] for sample in samples]
    spread = float(np.std([estimate.value for estimate in dispersions]))
    assert float(np.mean([estimate.deviation for estimate in dispersions])) == pytest.approx(spread, rel=0.4)


def test_equal_gaps_do_not_vary() -> None:
    sample = of_times([0.1 * index for index in range(1000)])
    assert sample.rate_rps == pytest.approx(10.0)
    assert sample.gaps is not None
    assert sample.gaps.scv.value == 0.0
    assert sample.gaps.correlations[0].value == 0.0


def test_scale_changes_nothing_but_the_rate() -> None:
    times = np.array(poisson_times(5, 3000))
    slow, quick = of_times(times * 1000.0 + 5e5), of_times(times)
    assert slow.rate_rps == pytest.approx(quick.rate_rps / 1000.0)
    assert slow.gaps is not None
    assert quick.gaps is not None
    assert slow.gaps.scv.value == pytest.approx(quick.gaps.scv.value, rel=1e-6)
    assert slow.gaps.skewness.value == pytest.approx(quick.gaps.skewness.value, rel=1e-6)


def test_counts_have_windows_and_no_gaps() -> None:
    counts = np.random.default_rng(2).poisson(52.0, 3600)
    sample = of_counts(counts.tolist(), 1.0)
    assert sample.gaps is None
    assert sample.rate_rps == pytest.approx(52.0, rel=0.01)
    assert sample.windows_s == (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
    assert sample.dispersions[0].value == pytest.approx(1.0, abs=0.1)


def test_a_bin_more_or_less_fine_sees_the_same_dispersion() -> None:
    fine = np.random.default_rng(4).poisson(5.0, 40_000).astype(float)
    coarse = fine.reshape(-1, 10).sum(axis=1)
    one, two = of_counts(fine, 0.1), of_counts(coarse, 1.0)
    for window_s in (1.6, 6.4):
        of_fine = dict(zip(one.windows_s, one.dispersions, strict=True))[window_s]
        of_coarse = min(zip(two.windows_s, two.dispersions, strict=True), key=lambda pair: abs(pair[0] - window_s))[1]
        assert of_fine.value == pytest.approx(of_coarse.value, abs=0.25)


def test_a_map_is_described_at_the_windows_and_lags_of_the_sample() -> None:
    sample = of_times(poisson_times(1))
    model = of_map(Map.poisson(sample.rate_rps), sample)
    assert model.rate_rps == pytest.approx(sample.rate_rps)
    assert [estimate.value for estimate in model.dispersions] == pytest.approx([1.0] * len(sample.windows_s))


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([], "no gap"),
        ([1.0], "no gap"),
        ([1.0, 1.0, 1.0], "infinite"),
        ([1.0, 3.0, 2.0], "descend after number 2"),
        ([0.0, float("nan")], "NaN"),
        ([0.0, float("inf")], "infinite"),
        ([0.0, 1e308], "span 1e.308 s"),
        (["a", "b"], "numbers"),
    ],
)
def test_time_stamps_that_are_none_are_refused(times: list[float], words: str) -> None:
    with pytest.raises(GnomonError, match=words) as refused:
        of_times(times)
    assert refused.value.code == "bad_arrivals"


@pytest.mark.parametrize(
    ("counts", "bin_s", "words"),
    [
        ([], 1.0, "no bin"),
        ([0.0, 0.0], 1.0, "rate is 0"),
        ([1.0, -1.0], 1.0, "negative"),
        ([1.0, float("nan")], 1.0, "NaN"),
        ([1.0], 0.0, "bin of 0"),
        ([1e200, 2e200] * 100, 1.0, "up to 2e.200 in 200 bins"),
        ([1.0, 2.0], 1e300, "bins of 1e.300 s"),
    ],
)
def test_counts_that_are_none_are_refused(counts: list[float], bin_s: float, words: str) -> None:
    with pytest.raises(GnomonError, match=words):
        of_counts(counts, bin_s)
