"""An application's answers while its load doubles, live: in time, and never below the accuracy that a query asks for.

    python -m benchmarks.doubling [--quick]

`gnomon serve` has an application of EfficientNet-Lite0, 1 and 2, which are as accurate as their authors state, on each engine
that is installed. Photographs arrive as a Poisson process: for a minute at `SHARE` of the rate that one core of the most accurate
model answers, then for a minute at twice that. In turn, queries ask for an accuracy that all three models have, that two have,
and that one has; all ask for an answer within the same latency. The client is the package `gnomon`. Each repeat has a gateway of
its own, whose variants have been measured before its load begins.

A window of five seconds is within the objective if at least 95 % of its queries are answered in time, from the moment at which
they should have been sent. What is refused is late. Gateway, instances and client share the machine's cores.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks import gnomon
from benchmarks.programs import Pace, start, step
from benchmarks.report import Figure, measured, write
from benchmarks.workloads import body_of
from gnomon import Client, VariantInfo
from gnomon_core.errors import GnomonError
from gnomon_profiler.add import ensure_model
from gnomon_profiler.engines import add_engines
from gnomon_profiler.repository import DirectoryRepository
from gnomon_simulator.arrivals import poisson
from gnomon_simulator.events import stream

APP = "photos"
ACCURACIES: Mapping[str, float] = {"efficientnet-lite0": 0.751, "efficientnet-lite1": 0.767, "efficientnet-lite2": 0.776}
MOST_ACCURATE = "efficientnet-lite2"
LATENCY_S, IN_TIME, WINDOW_S = 0.3, 0.95, 5.0
SHARE = 0.3
"""Of what one core answers. At twice this share, waits are too long on one core, and short on two."""
PHASE_S, QUICK_S, REPEATS = 60.0, 10.0, 3
CLIENTS = 64
"""Threads that send: at most so many queries are under way, far more than in time."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query that was sent at `sent_s`, and the variant that answered it after `took_s`; "" if it was refused."""

    sent_s: float
    accuracy: float
    took_s: float
    variant: str
    refusal: str = ""

    @property
    def in_time(self) -> bool:
        return bool(self.variant) and self.took_s <= LATENCY_S


def main(pace: Pace) -> None:
    repository = DirectoryRepository(gnomon.MODELS)
    for name in ACCURACIES:
        add_engines(repository, ensure_model(repository, name, progress=step), progress=step)
    phase_s, repeats = (QUICK_S, 1) if pace.quick else (PHASE_S, REPEATS)
    runs: list[tuple[list[Query], Mapping[str, float]]] = []
    for repeat in range(1, repeats + 1):
        runs.append(run(phase_s, repeat))
        step(f"{repeat} of {repeats}: {100 * windows_in_time(runs[-1][0]):.1f} % of the windows are within the objective")
    write("doubling", figures_of(runs), repeats=repeats, packages=("gnomon", "onnxruntime", "openvino"), folder=pace.results)


def run(phase_s: float, repeat: int) -> tuple[list[Query], Mapping[str, float]]:
    """Serve the application, double its load, and return its queries and the accuracy of each variant."""
    with gnomon.serving() as ours:
        client = Client(ours.url)
        for name, accuracy in ACCURACIES.items():
            client.register_model(name, app=APP, accuracy=accuracy)
        variants = client.model_info(APP).variants
        rate_rps = SHARE * most_rps(variants)
        step(f"{len(variants)} variants; {rate_rps:.1f} queries/s, then {2 * rate_rps:.1f}")
        rng = stream(repeat, "doubling")
        first = poisson(rate_rps, phase_s, rng)
        second = [phase_s + time_s for time_s in poisson(2 * rate_rps, phase_s, rng)]
        queries = sent(client, [*first, *second])
    return queries, {variant.id: variant.accuracy or 0.0 for variant in variants}


def most_rps(variants: Sequence[VariantInfo]) -> float:
    """The samples/s of the quickest variant of the most accurate model on one core, in batches that take half of the latency."""
    rates = [
        1e3 * batch / took_ms
        for variant in variants
        if variant.model.startswith(MOST_ACCURATE) and variant.cores == 1 and variant.latency_ms
        for batch, took_ms in variant.latency_ms.items()
        if took_ms <= 1e3 * LATENCY_S / 2
    ]
    return max(rates)


def sent(client: Client, times_s: Sequence[float]) -> list[Query]:
    """Send the queries at their times, whatever has become of earlier ones."""
    photo, floors = body_of("photo"), sorted(ACCURACIES.values())
    begun_s = time.monotonic() + 1.0
    answered, lock = list[Query](), threading.Lock()

    def send(number: int, time_s: float) -> None:
        accuracy, variant, refusal = floors[number % len(floors)], "", ""
        try:
            variant = client.inference_query(photo, app=APP, latency_ms=1e3 * LATENCY_S, accuracy=accuracy).variant
        except GnomonError as error:
            refusal = error.code
        query = Query(time_s, accuracy, time.monotonic() - begun_s - time_s, variant, refusal)
        with lock:
            answered.append(query)

    with ThreadPoolExecutor(CLIENTS) as pool:
        for number, time_s in enumerate(times_s):
            time.sleep(max(0.0, begun_s + time_s - time.monotonic()))
            pool.submit(send, number, time_s)
    return answered


def windows_in_time(queries: Sequence[Query]) -> float:
    """The share of windows in which enough queries were answered in time."""
    all_of, timely = Counter[int](), Counter[int]()
    for query in queries:
        all_of[int(query.sent_s // WINDOW_S)] += 1
        timely[int(query.sent_s // WINDOW_S)] += query.in_time
    return sum(timely[window] >= IN_TIME * count for window, count in all_of.items()) / len(all_of)


def figures_of(runs: Sequence[tuple[Sequence[Query], Mapping[str, float]]]) -> list[Figure]:
    settings = f"{WINDOW_S:g} s; at least {IN_TIME:.0%} within {1e3 * LATENCY_S:.0f} ms"
    below = sum(
        accuracies.get(query.variant, 0.0) < query.accuracy for queries, accuracies in runs for query in queries if query.variant
    )
    answers = Counter(query.variant for queries, _ in runs for query in queries if query.variant)
    refusals = Counter(query.refusal for queries, _ in runs for query in queries if query.refusal)
    shares = [100 * windows_in_time(queries) for queries, _ in runs]
    late = [100 * sum(not query.in_time for query in queries) / len(queries) for queries, _ in runs]
    served = ", ".join(f"{count} {variant}" for variant, count in answers.most_common())
    refused = ", ".join(f"{count} {code}" for code, count in refusals.most_common()) or "none"
    return [
        measured("windows within the objective", shares, "%", at_least=95.0, detail=settings),
        measured("answers below the accuracy", [below], "answers", at_most=0.0, detail=f"of {answers.total()}: {served}"),
        measured("late or refused", late, "%", detail=f"refused: {refused}"),
    ]


if __name__ == "__main__":
    start(main, __doc__)
