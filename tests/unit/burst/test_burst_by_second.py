"""`make demo-burst` shows a burst second by second: arrivals, Bodies, Shadows, batches, latency against the objective, memory."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.burst.picture import Seen, draw, table
from benchmarks.burst.seconds import HEADING, by_second, seconds
from benchmarks.burst.watch import Burst, Look, counted
from gnomon_simulator.replay_report import Outcome, Report, Samples

BURST = Burst(before_s=1.0, burst_s=1.0, after_s=1.0)
SLO_S = 0.2


def report(*requests: tuple[float, float | None, int]) -> Report:
    """When each was intended, its latency if it was answered, and with which status."""
    samples = Samples.unsent([intended_s for intended_s, _, _ in requests])
    for index, (intended_s, latency_s, status) in enumerate(requests):
        if latency_s is not None:
            samples.answered_s[index] = intended_s + latency_s
            samples.outcome[index] = Outcome.ANSWERED
            samples.status[index] = status
    return Report("here", 1.0, BURST.duration_s, "2026-01-01T00:00:00+00:00", 0.0, samples)


def look(at_s: float, instances: Mapping[tuple[str, str], int], offloaded: int = 0, batches: int = 0, samples: int = 0) -> Look:
    return Look(at_s, instances, offloaded, batches, samples, 100.0 + at_s)


BODY = ("body", "ready")
RUN = Seen(
    "asyfunc",
    BURST,
    SLO_S,
    report((0.5, 0.1, 200), (1.1, 0.1, 200), (1.2, 0.3, 200), (1.3, 0.01, 503), (1.4, None, 0)),
    [
        look(0.5, {BODY: 1}, batches=1, samples=1),
        look(1.0, {BODY: 1, ("shadow", "starting"): 1}, batches=1, samples=1),
        look(1.5, {BODY: 1, ("body", "starting"): 1, ("shadow", "ready"): 2}, offloaded=3, batches=1, samples=4),
        look(2.5, {BODY: 2, ("shadow", "draining"): 1}, offloaded=4),
    ],
    [],
)


def test_instances_are_counted_by_kind_and_state() -> None:
    bodies = [{"state": "ready", "shadow": "s1", "shadows": ["s1", "s2"]}, {"state": "starting", "shadow": None, "shadows": []}]
    shadows = [{"state": "ready"}, {"state": "ready"}, {"state": "starting"}]
    assert counted({"bodies": bodies, "shadows": shadows}) == {
        ("body", "ready"): 1,
        ("body", "starting"): 1,
        ("shadow", "ready"): 2,
        ("shadow", "starting"): 1,
    }


def test_every_second_has_a_row() -> None:
    assert [second.at_s for second in seconds(RUN)] == [0, 1, 2]
    assert [line.split()[0] for line in by_second(RUN).splitlines()] == [HEADING.split()[0], "0", "1", "2"]


def test_a_second_tells_what_came_and_what_became_of_it() -> None:
    _, burst, after = seconds(RUN)
    assert (burst.asked, burst.late) == (4, 3)
    assert burst.p50_s == pytest.approx(0.1)
    assert burst.p95_s == pytest.approx(0.3)
    assert burst.batch == 2.5
    assert (after.asked, after.late, after.p50_s, after.p95_s, after.batch) == (0, 0, None, None, None)


def test_a_second_tells_what_starts_and_what_drains() -> None:
    assert [(second.bodies, second.shadows) for second in seconds(RUN)] == [("1", "0"), ("1+1", "2+1"), ("2", "0-1")]
    assert [second.offloaded for second in seconds(RUN)] == [0, 3, 1]
    assert [second.memory_mib for second in seconds(RUN)] == [100.5, 101.5, 102.5]


def test_a_policys_line_counts_the_shadows_of_a_body_that_has_two() -> None:
    heading, line = table([RUN]).splitlines()
    # Bodies and Shadows are the fourth and third columns from the right.
    assert heading.split()[-4:] == ["Bodies", "Shadows", "offloaded", "GiB·s"]
    assert line.split()[-4:-1] == ["2", "2", "4"]


def test_a_run_without_looks_is_told_too() -> None:
    blind = Seen("od", BURST, SLO_S, RUN.report, [], [])
    assert [second.bodies for second in seconds(blind)] == ["0", "0", "0"]
    assert len(table([blind]).splitlines()) == 2


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    draw([RUN], "a burst", tmp_path / "burst.png")
    assert (tmp_path / "burst.png").read_bytes().startswith(b"\x89PNG")
