"""`gnomon fit-arrivals`, as its user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gnomon_planner.maps import Map
from gnomon_simulator.markov import markov_arrivals

BURSTY = Map.mmpp2((10.0, 200.0), (2.0, 2.0))


def gnomon(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from gnomon_cli.main import main; main()", "fit-arrivals", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def stamps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("arrivals") / "stamps.txt"
    times = markov_arrivals(BURSTY, 30_000, np.random.default_rng(1))
    path.write_text("\n".join(f"{time_s:.9f}" for time_s in times) + "\n")
    return path


def test_fit_is_printed_beside_the_sample(stamps: Path, tmp_path: Path) -> None:
    done = gnomon(stamps, "--out", tmp_path / "map.json")
    assert done.returncode == 0, done.stderr
    for word in ("D0", "D1", "scv", "correlation_lag1", "dispersion_", "MISFIT", "Poisson"):
        assert word in done.stdout
    written = Map.from_json(json.loads((tmp_path / "map.json").read_text()))
    assert written.order == 2
    assert written.scv == pytest.approx(BURSTY.scv, rel=0.1)


def test_json_is_for_programs(stamps: Path) -> None:
    done = gnomon(stamps, "--json", "--duration", "1m")
    document = json.loads(done.stdout)
    assert document["duration_s"] == pytest.approx(60.0, rel=0.05)
    assert Map.from_json(document).rate_rps == pytest.approx(document["arrivals"] / document["duration_s"])


def test_counts_are_read_from_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    counts = np.random.default_rng(3).poisson(20.0, 600)
    path.write_text("t_seconds,count\n" + "".join(f"{second},{count}\n" for second, count in enumerate(counts)))
    document = json.loads(gnomon(path, "--json").stdout)
    assert (document["family"], document["phases"]) == ("Poisson", 1)


@pytest.mark.parametrize(
    ("text", "words"), [("1.0\n", "no gap"), ("2\n1\n", "descend"), ("1\nx\n", "line 2"), ("5\n5\n", "infinite")]
)
def test_unfittable_arrivals_name_the_reason(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "stamps.txt"
    path.write_text(text)
    done = gnomon(path)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
