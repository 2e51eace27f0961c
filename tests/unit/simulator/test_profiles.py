"""A profile says how long a batch takes, and how much that varies."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_simulator.events import stream
from gnomon_simulator.profiles import Noise, constant, read_profile

DOCUMENT: dict[str, Any] = {
    "variant": "v",
    "load_s": 0.5,
    "memory_bytes": 7,
    "latency_s": {"2": {"8": 0.4, "1": 0.1, "4": 0.25}},
    "noise": {"kind": "lognormal", "cv": 0.2},
}


def write(folder: Path, document: object) -> Path:
    path = folder / "profile.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(("batch", "seconds"), [(1, 0.1), (2, 0.15), (4, 0.25), (6, 0.325), (8, 0.4), (16, 0.8)])
def test_between_batches_on_a_line_and_beyond_in_proportion(tmp_path: Path, batch: int, seconds: float) -> None:
    profile = read_profile(write(tmp_path, DOCUMENT))
    assert profile.seconds("v", 2, batch) == pytest.approx(seconds)


def test_cores_that_were_not_measured_are_not_guessed(tmp_path: Path) -> None:
    profile = read_profile(write(tmp_path, DOCUMENT))
    assert profile.seconds("v", 1, 1) is None
    assert (profile.load_s, profile.memory_bytes, profile.noise) == (0.5, 7, Noise("lognormal", 0.2))


@pytest.mark.parametrize(
    "change",
    [
        {"latency_s": {}},
        {"latency_s": {"1": {}}},
        {"latency_s": {"1": {"1": 0}}},
        {"latency_s": {"1": {"0": 0.1}}},
        {"latency_s": {"x": {"1": 0.1}}},
        {"latency_s": [1]},
        {"noise": {"kind": "odd"}},
        {"load_s": "slow"},
    ],
)
def test_a_wrong_profile_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(GnomonError, match=r"profile\.json"):
        read_profile(write(tmp_path, DOCUMENT | change))


@pytest.mark.parametrize(("noise", "cv"), [(Noise("lognormal", 0.3), 0.3), (Noise("exponential"), 1.0)])
def test_noise_has_mean_1_and_its_spread(noise: Noise, cv: float) -> None:
    factor, chance = noise.factor(), stream(1, "execution")
    assert factor is not None
    drawn = [factor(chance) for _ in range(20_000)]
    assert statistics.fmean(drawn) == pytest.approx(1.0, rel=0.02)
    assert statistics.pstdev(drawn) == pytest.approx(cv, rel=0.05)


def test_no_noise_draws_nothing() -> None:
    assert Noise().factor() is None
    assert Noise("lognormal", 0.0).factor() is None


def test_a_constant_service_time_is_one_request_after_the_other() -> None:
    assert constant("v", 0.02).seconds("v", 1, 5) == pytest.approx(0.1)
