"""A Map knows its moments: closed forms that textbooks give, and each formula against another way to the same number."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from gnomon_core.errors import GnomonError
from gnomon_planner.maps import Map
from gnomon_planner.numerics import expm_generator, stationary_of
from gnomon_planner.samples import of_times
from gnomon_simulator.markov import markov_arrivals
from tests.processes import superposed

W16 = Map.mmpp2((10.0, 200.0), (0.01, 0.01))


def erlang(steps: int, rate: float) -> Map:
    d0 = rate * (np.eye(steps, k=1) - np.eye(steps))
    d1 = np.zeros((steps, steps))
    d1[-1, 0] = rate
    return Map(d0, d1)


def test_a_poisson_process_has_the_numbers_of_one() -> None:
    poisson = Map.poisson(50.0)
    assert poisson.rate_rps == pytest.approx(50.0)
    assert poisson.moments(3) == pytest.approx([1 / 50, 2 / 50**2, 6 / 50**3])
    assert (poisson.scv, poisson.skewness) == (pytest.approx(1.0), pytest.approx(2.0))
    assert poisson.autocorrelation(1) == pytest.approx(0.0, abs=1e-12)
    assert poisson.dispersion() == pytest.approx(1.0)
    assert poisson.dispersion(3.0) == pytest.approx(1.0)


def test_erlang_gaps_are_regular() -> None:
    process = erlang(4, 8.0)
    assert process.rate_rps == pytest.approx(2.0)
    assert process.scv == pytest.approx(1 / 4)
    assert process.skewness == pytest.approx(2 / math.sqrt(4))
    # A renewal process's counts disperse as its gaps vary.
    assert process.dispersion() == pytest.approx(1 / 4)
    assert process.autocorrelation(3) == pytest.approx(0.0, abs=1e-12)


def test_an_mmpp_has_the_dispersion_of_its_formula() -> None:
    # I(∞) = 1 + 2·π1·π2·(λ1 − λ2)²/((ω1 + ω2)·λ)
    assert W16.dispersion() == pytest.approx(1 + 2 * 0.25 * 190**2 / (0.02 * 105))
    # I(t) = 1 + (I(∞) − 1)·(1 − (1 − e^(−rt))/(rt)) with r = ω1 + ω2
    x = 0.02 * 60.0
    assert W16.dispersion(60.0) == pytest.approx(1 + (W16.dispersion() - 1) * (1 - (1 - math.exp(-x)) / x))


def test_the_phase_at_an_arrival_is_more_often_the_busy_one() -> None:
    assert W16.stationary == pytest.approx([0.5, 0.5])
    assert W16.embedded == pytest.approx([10 / 210, 200 / 210])


def test_correlations_of_two_phases_fall_geometrically() -> None:
    first, second, third = (W16.autocorrelation(lag) for lag in (1, 2, 3))
    assert second / first == pytest.approx(third / second)
    assert W16.autocorrelation(1) < (1 - 1 / W16.scv) / 2


def test_superposition_adds_rates_and_variances() -> None:
    both = superposed(W16, Map.poisson(95.0))
    assert both.rate_rps == pytest.approx(200.0)
    # Var = 105·I(t) + 95
    assert both.dispersion(10.0) == pytest.approx((105 * W16.dispersion(10.0) + 95) / 200)


def test_another_tempo_leaves_the_shape() -> None:
    slow = W16.rescaled(1.0)
    assert slow.rate_rps == pytest.approx(1.0)
    assert slow.scv == pytest.approx(W16.scv)
    assert slow.skewness == pytest.approx(W16.skewness)
    assert slow.autocorrelation(5) == pytest.approx(W16.autocorrelation(5))
    assert slow.dispersion() == pytest.approx(W16.dispersion())


def test_half_of_the_requests_are_half_as_many_and_half_as_bursty() -> None:
    half = W16.thinned(0.5)
    assert half == Map.mmpp2((5.0, 100.0), (0.01, 0.01))
    assert half.rate_rps == pytest.approx(52.5)
    assert half.dispersion() == pytest.approx(1 + (W16.dispersion() - 1) / 2)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.1, math.nan, math.inf])
def test_a_share_of_none_or_of_more_than_there_are_is_refused(share: float) -> None:
    with pytest.raises(GnomonError, match=f"share of {share}") as refused:
        W16.thinned(share)
    assert refused.value.code == "bad_share"


def test_requests_that_a_coin_keeps_are_as_the_thinned_process_says() -> None:
    """Drawn from the whole process and kept by chance, against the thinned one's moments."""
    process, chance = Map.mmpp2((10.0, 120.0), (2.0, 5.0)), np.random.default_rng(6)
    times = markov_arrivals(process, 400_000, chance)
    kept = of_times(times[chance.random(len(times)) < 0.25])
    thinned = process.thinned(0.25)
    assert kept.rate_rps == pytest.approx(thinned.rate_rps, rel=0.02)
    assert kept.gaps is not None
    assert kept.gaps.scv.value == pytest.approx(thinned.scv, rel=0.03)
    assert kept.gaps.correlations[0].value == pytest.approx(thinned.autocorrelation(1), abs=0.01)


def test_a_map_survives_json() -> None:
    again = Map.from_json(json.loads(json.dumps(W16.to_json())))
    assert again == W16
    assert hash(again) == hash(W16)
    assert again != Map.poisson(105.0)


def test_published_maps_are_read_though_they_were_rounded() -> None:
    # Twitter's hour 4 as BATCH published it: −9.517349 + 0.039149 + 9.4782 = 0, the second row too.
    hour = Map.from_json({"D0": [[-9.517349, 0.0], [0.0, -43.831124]], "D1": [[0.039149, 9.4782], [0.00319, 43.827934]]})
    assert np.abs((hour.D0 + hour.D1).sum(axis=1)).max() < 1e-12
    assert hour.rate_rps == pytest.approx(43.82, rel=1e-3)


@pytest.mark.parametrize(
    ("d0", "d1", "words"),
    [
        ([[-1.0]], [[2.0]], "sums to"),
        ([[-1.0, 0.0]], [[1.0, 0.0]], "shapes"),
        ([[float("nan")]], [[1.0]], "NaN"),
        ([[-1.0, 1.0], [-1.0, -1.0]], [[0.0, 0.0], [1.0, 1.0]], "negative"),
        ([[-1.0, 0.0], [0.0, -1.0]], [[1.0, 0.0], [0.0, 1.0]], "reached"),
        ([[-1.0, 1.0], [1.0, -1.0]], [[0.0, 0.0], [0.0, 0.0]], "Nothing ever arrives"),
        ([[0.0]], [[0.0]], "never left"),
        ([["a"]], [[1.0]], "not matrices"),
        ([[-1e300]], [[1e300]], "largest rate of 1e.300"),
        ([[-1e-300]], [[1e-300]], "largest rate of 1e-300"),
    ],
)
def test_what_is_no_map_is_refused_with_the_reason(d0: object, d1: object, words: str) -> None:
    with pytest.raises(GnomonError, match=words) as refused:
        Map.from_json({"D0": d0, "D1": d1})
    assert refused.value.code == "bad_map"


def test_a_number_that_is_too_large_is_refused_as_well() -> None:
    with pytest.raises(GnomonError, match="not matrices of numbers"):
        Map.from_json({"D0": [[-(10**400)]], "D1": [[10**400]]})


@pytest.mark.parametrize("document", [None, [], {"D0": [[-1.0]]}])
def test_a_document_without_matrices_is_refused(document: object) -> None:
    with pytest.raises(GnomonError, match="missing"):
        Map.from_json(document)


def test_a_map_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        W16.D0[0, 0] = 5.0


@pytest.mark.parametrize("time_s", [0.0, 1e-6, 0.3, 50.0, 1e5])
def test_the_exponential_of_two_states_is_known(time_s: float) -> None:
    generator = np.array([[-2.0, 2.0], [0.5, -0.5]])
    fade = math.exp(-2.5 * time_s)
    expected = np.array([[0.2 + 0.8 * fade, 0.8 - 0.8 * fade], [0.2 - 0.2 * fade, 0.8 + 0.2 * fade]])
    assert expm_generator(generator, time_s) == pytest.approx(expected, rel=1e-9)


def test_stationary_distributions_keep_their_digits() -> None:
    stiff = np.array([[-1e-9, 1e-9, 0.0], [1.0, -1e6 - 1.0, 1e6], [1e-3, 0.0, -1e-3]])
    theta = stationary_of(stiff)
    assert theta @ stiff == pytest.approx(np.zeros(3), abs=1e-15)
    assert theta.sum() == pytest.approx(1.0)
    assert (theta > 0).all()


def test_the_planner_imports_without_torch_or_scipy() -> None:
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    code = "import sys, pkgutil, importlib, gnomon_planner as p\n"
    code += "[importlib.import_module(m.name) for m in pkgutil.walk_packages(p.__path__, 'gnomon_planner.')]\n"
    code += "assert not {'torch', 'scipy'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
