"""A few of the benchmark's cases: the latency behind a buffer against every batch of a run."""

from __future__ import annotations

from benchmarks.buffer import cases, judged


def test_some_of_the_published_comparison() -> None:
    # The benchmark's own judgement, on short runs of a few of its cases.
    for number, case in enumerate(cases(quick=False)[3:180:60]):
        exact, _ = judged(case, number, most_runs=5)
        assert all(off.right for off in exact if off.resolved), case.name
        assert all(abs(off.relative) < 0.1 for off in exact), case.name
