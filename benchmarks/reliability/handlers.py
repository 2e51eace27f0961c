"""A handler that waits: how many answers ten clients get in 20 s from one that takes a second for each.

    python -m benchmarks.reliability handlers [--quick]

The same function three times, each in a gateway of its own, beginning with one instance: as deployed without any annotation; one
request at a time in each instance, scaled by `kpa`; and one at a time, scaled by `openfaas`. Before handlers executed several at
once, and while `openfaas` went by its alert alone, 29 answers and a median of 10 s were seen, and 147 answers with `kpa`.
Ten clients that each wait for their answer get 200 at most.
"""

from __future__ import annotations

import asyncio
import http
import statistics
import time
from collections.abc import Mapping

from benchmarks import gnomon
from benchmarks.programs import Pace, start, step
from benchmarks.reliability._clients import Outcome, Request, closed_loop, until
from benchmarks.report import Figure, measured, write

FUNCTION, CLIENTS, LOAD_S = "sleep1", 10, 20.0
SEEN_WITH_KPA = 147
LIMIT_S = 60.0
ONE_AT_A_TIME = {"gnomon/concurrency": "1"}
WAYS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "one at a time, kpa": {**ONE_AT_A_TIME, "gnomon/autoscaler": "kpa"},
    "one at a time, openfaas": {**ONE_AT_A_TIME, "gnomon/autoscaler": "openfaas"},
}


def main(pace: Pace) -> None:
    runs, load_s = (1, 5.0) if pace.quick else (3, LOAD_S)
    latencies: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for run in range(runs):
        for way, said in WAYS.items():
            step(f"{way}, run {run + 1} of {runs}")
            with gnomon.serving() as ours:
                ours.deploy(FUNCTION, said)
                ours.wait_replicas(FUNCTION, 1)
                latencies[way].append(asyncio.run(answered_s(ours, load_s)))
    figures: list[Figure] = []
    for way, of_runs in latencies.items():
        goal = float(SEEN_WITH_KPA) if way == "default" and not pace.quick else None
        figures.append(measured(f"answers in {load_s:g} s, {way}", [float(len(of_run)) for of_run in of_runs], "", at_least=goal))
        figures.append(measured(f"median latency, {way}", [statistics.median(of_run) for of_run in of_runs], "s"))
    write("reliability_handlers", figures, repeats=runs, packages=("gnomon",), folder=pace.results)


async def answered_s(ours: gnomon.Gnomon, load_s: float) -> list[float]:
    """The latencies of the answers that the clients got within this time."""
    end_s = time.monotonic() + load_s
    latencies_s: list[float] = []

    def record(request: Request, outcome: Outcome) -> None:
        if outcome.status != http.HTTPStatus.OK:
            raise gnomon.RefusedError(f"{request.path}: {outcome.failure or outcome.status}")
        if outcome.ended_s <= end_s:
            latencies_s.append(outcome.ended_s - outcome.sent_s)

    requests = until(end_s, Request(f"/function/{FUNCTION}", b"x"))
    await closed_loop(ours.url, CLIENTS, requests, record, timeout_s=LIMIT_S)
    return latencies_s


if __name__ == "__main__":
    start(main, __doc__)
