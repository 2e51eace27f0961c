"""`python -m benchmarks.parity --quick` measures a profile, runs a policy live, simulates it, and compares the two."""

import json
import subprocess
import sys

import pytest

from benchmarks.programs import QUICK_RESULTS, ROOT

LIMIT_S = 300


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
def test_a_brief_cell_has_both_sides_and_every_verdict() -> None:
    command = [sys.executable, "-m", "benchmarks.parity", "--quick", "--policies", "od", "--stretches", "calm"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=LIMIT_S)
    document = json.loads((QUICK_RESULTS / "parity.json").read_text(encoding="utf-8"))
    (cell,) = document["cells"]
    assert [verdict["name"] for verdict in cell["verdicts"]] == ["late", "mean", "p95", "memory × time", "decisions"]
    ours, theirs = cell["live"], cell["simulated"]
    assert ours["requests"] == theirs["requests"] > 100
    for side in (ours, theirs):
        assert sum(run["seconds"] for run in side["decided"]) == cell["seconds"]
    # The handler sleeps 135 ms for one request: no answer of either side is sooner.
    assert min(ours["mean_s"], theirs["mean_s"]) > 0.135
    assert ours["memory_gb_s"] > 0.0
    assert "calm | od" in (QUICK_RESULTS / "parity.md").read_text(encoding="utf-8")
