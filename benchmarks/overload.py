"""Three times as much as can be served: what still comes back, and how quickly the rest is refused.

    python -m benchmarks.overload [--quick]

On a function that takes 20 ms a batch of up to 16, and on EfficientNet-Lite0 classifying a JPEG in batches of up to 8. For each
system, in the same run: its capacity, which is the highest open-loop rate at which 99 % are answered within the deadline; then
three times that for a minute. Clients leave at the deadline and close their connections. Every system has one worker with one
thread; the generator runs beside it on the same machine and says how late it was. Gnomon and Mosec are told the deadline
(`gnomon/deadline-ms`, `--timeout`); MLServer has no such setting. Nothing is pinned by the benchmark; Gnomon pins its instance
to one core itself.

Goodput is what is answered 200 within the deadline, counted from the intended time. Intervals are over stretches of 10 s.

Then once more with clients that leave long before the deadline that the function knows: `executed_after_leaving` compares the
function's own record of what it executed, and when, with the times at which the clients left.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks import gnomon
from benchmarks.load import Window, capacity, lag_p99_ms, offer, rows, send, windows
from benchmarks.peers import mlserver, mosec
from benchmarks.programs import Endpoint, Pace, start, step
from benchmarks.report import Figure, measured, write
from gnomon_simulator.replay_report import Outcome, Report

OVERLOAD = 3.0
WAIT_MS = 20
"""The peers' longest wait for a full batch. With 1 ms, MLServer's capacity on the 20 ms function is a fourteenth, and Mosec's is
the same."""
PATIENCE = 0.4
"""Impatient clients leave after this share of the deadline."""
NEWS_S = 0.010
"""An execution that began this soon after its client left is not held against the function: the news of it has to travel, and so
has the batch."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A function to overload. The first guess of its capacity only shortens the search."""

    workload: str
    deadline_s: float
    batch: int
    guess_rps: float


SUBJECTS = (Subject("sleep20", 0.25, 16, 500.0), Subject("photo", 0.5, 8, 25.0))


def main(pace: Pace) -> None:
    figures: list[Figure] = []
    for subject in SUBJECTS:
        with gnomon.serving() as ours:
            figures += overload(subject, "gnomon", ours.up(subject.workload), pace)
            if subject.workload == "sleep20":
                figures += impatience(subject, ours, pace)
        for peer, serving in peers(subject).items():
            with gnomon.temporary() as folder, serving(folder) as endpoint:
                figures += overload(subject, peer, endpoint, pace)
    write("overload", figures, repeats=1, packages=("gnomon", "torch"), folder=pace.results)


def peers(subject: Subject) -> Mapping[str, Callable[[Path], AbstractContextManager[Endpoint]]]:
    """The command that serves the subject, by peer."""
    return {
        "mosec": partial(mosec, subject.workload, batch=subject.batch, wait_ms=WAIT_MS, deadline_s=subject.deadline_s),
        "mlserver": partial(mlserver, subject.workload, batch=subject.batch, wait_ms=WAIT_MS),
    }


def overload(subject: Subject, system: str, endpoint: Endpoint, pace: Pace) -> list[Figure]:
    """A system's capacity, and what becomes of three times that."""
    offer(endpoint, subject.guess_rps / 4, 2.0, subject.deadline_s, seed=0)
    able_rps = capacity(endpoint, subject.guess_rps, pace.step_s, subject.deadline_s)
    report = offer(endpoint, OVERLOAD * able_rps, pace.overload_s, subject.deadline_s, seed=1)
    step(f"{system}, {subject.workload}, {OVERLOAD:g} × capacity:\n{report.table()}")
    return judged(f"{subject.workload} ({system})", able_rps, report, goals=system == "gnomon")


def judged(name: str, able_rps: float, report: Report, *, goals: bool) -> list[Figure]:
    """The figures of one overload; the peers' have no goals."""
    parts = windows(report)
    refusing = [part for part in parts if part.refused]
    offered = f"{report.offered_rps:.1f}/s offered, {sum(part.refused for part in parts)} of {len(report.samples)} refused"

    def each(value: Callable[[Window], float]) -> list[float]:
        return [value(part) for part in parts]

    figures = [
        measured(
            f"{name}: goodput_of_capacity",
            each(lambda part: 100 * part.goodput_rps / able_rps),
            "%",
            at_least=90.0 if goals else None,
            detail=f"capacity {able_rps:.1f}/s; {offered}",
        ),
        measured(
            f"{name}: admitted_in_time",
            each(lambda part: 100 * part.in_time),
            "%",
            at_least=99.0 if goals else None,
            detail=f"answered within {1e3 * report.deadline_s:g} ms; 99 % is a p99 within the deadline",
        ),
        measured(f"{name}: answered_p99", each(lambda part: 1e3 * part.answered_p99_s), "ms"),
    ]
    if refusing:
        refused_ms = [1e3 * part.refused_p99_s for part in refusing]
        figures.append(measured(f"{name}: refused_p99", refused_ms, "ms", at_most=10.0 if goals else None))
    figures.append(measured(f"{name}: generator_lag_p99", [lag_p99_ms(report)], "ms"))
    return figures


def impatience(subject: Subject, ours: gnomon.Gnomon, pace: Pace) -> list[Figure]:
    """Clients that leave without a word, and what the function did for them."""
    endpoint = Endpoint("gnomon", f"{ours.url}/function/{subject.workload}", b'{"x": [7], "token": "{token}"}')
    executed(endpoint)
    patience_s = PATIENCE * subject.deadline_s
    rate_rps = OVERLOAD * subject.guess_rps
    report = send(endpoint, rate_rps, pace.overload_s / 4, patience_s, seed=2, check_token=True)
    record = executed(endpoint)
    step(f"clients that leave after {1e3 * patience_s:g} ms:\n{report.table()}")
    begun_s: dict[int, float] = {int(token[8:], 16): at_s - report.started_monotonic_s for token, at_s in record}
    left = {number: row.left_s for number, row in enumerate(rows(report)) if row.outcome == Outcome.GAVE_UP}
    after = [number for number in left.keys() & begun_s.keys() if begun_s[number] > left[number] + NEWS_S]
    said = (
        f"{len(left)} of {len(report.samples)} clients left after {1e3 * patience_s:g} ms, of whom "
        f"{len(left.keys() & begun_s.keys())} were being served; {len(begun_s)} executions"
    )
    return [
        replace(measured("executed_after_leaving", [len(after)], "requests", at_most=0), detail=said),
        replace(
            measured("executed_twice", [len(record) - len(begun_s)], "requests", at_most=0), detail=f"{len(record)} executions"
        ),
    ]


def executed(endpoint: Endpoint) -> list[tuple[str, float]]:
    """The function's record since the last time."""
    with urllib.request.urlopen(f"{endpoint.url}/executed", timeout=60) as answer:
        record: list[tuple[str, float]] = json.load(answer)
    return [(token, at_s) for token, at_s in record if token]


if __name__ == "__main__":
    start(main, __doc__)
