"""A handler that waits: how many answers ten clients get in 20 s from one that takes a second for each.

    python -m benchmarks.reliability handlers [--quick]

The same function three times, each in a gateway of its own, beginning with one instance: as deployed without any annotation; one
request at a time in each instance, scaled by `kpa`; and one at a time, scaled by `openfaas`. Before handlers executed several at
once, and while `openfaas` went by its alert alone, 29 answers and a median of 10 s were seen, and 147 answers with `kpa`.
Ten clients that each wait for their answer get 200 at most.
"""

from __future__ import annotations

import http.client
import statistics
import threading
import time
from collections.abc import Mapping

from benchmarks import gnomon
from benchmarks.programs import Pace, asked, ended_well, step
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
                latencies[way].append(answered_s(ours.address, f"/function/{FUNCTION}", load_s))
    figures: list[Figure] = []
    for way, of_runs in latencies.items():
        goal = float(SEEN_WITH_KPA) if way == "default" and not pace.quick else None
        figures.append(measured(f"answers in {load_s:g} s, {way}", [float(len(one)) for one in of_runs], "", at_least=goal))
        figures.append(measured(f"median latency, {way}", [statistics.median(one) for one in of_runs], "s"))
    write("reliability_handlers", figures, repeats=runs, packages=("gnomon",), folder=pace.results)


def answered_s(address: str, path: str, load_s: float) -> list[float]:
    """The latencies of the answers that so many clients got within this time, each asking again when it has its answer."""
    end_s = time.monotonic() + load_s
    found: list[float] = []

    def client() -> None:
        connection = http.client.HTTPConnection(address, timeout=LIMIT_S)
        while (began_s := time.monotonic()) < end_s:
            connection.request("POST", path, b"x")
            answer = connection.getresponse()
            answer.read()
            answered_at_s = time.monotonic()
            if answer.status != http.client.OK:
                raise gnomon.RefusedError(f"{path}: {answer.status}")
            if answered_at_s <= end_s:
                found.append(answered_at_s - began_s)
        connection.close()

    clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    return found


if __name__ == "__main__":
    ended_well(lambda: main(asked(__doc__ or "")))
