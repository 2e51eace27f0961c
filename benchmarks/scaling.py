"""Scaling and policy changes under load: nothing fails, nothing is answered twice or with another's result.

    python -m benchmarks.scaling [--quick]

A function that takes 20 ms a batch of up to 16 is offered 0.6 of what one instance of it can take, open loop, while it goes from
one instance to four and back twenty times, and while its scheduling and scaling policies are changed twenty times by PUT. Every
request carries a token of its own, and the function answers with it.

Of n requests none of which fails, one may still say that fewer than 3/n fail, with 95 % confidence; that bound stands beside.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks import gnomon
from benchmarks.load import capacity, lag_p99_ms, rows, send
from benchmarks.programs import Endpoint, Pace, start, step
from benchmarks.report import Figure, measured, write
from gnomon_simulator.replay_report import SUCCESSES, Outcome, Report, Token

NAME = "sleep20"
SHARE = 0.6
MOST = 4
DEADLINE_S = 2.0
SEARCH_DEADLINE_S = 0.25
CYCLE_LIMIT_S = 4.0
SWITCH_LIMIT_S = 1.5
HOLD_S = 0.5
FEWEST = 10_000
SCHEDULERS = ("adaptive", "fixed", "immediate", "adaptive-paper")
AUTOSCALERS = ("kpa", "k-lv", "openfaas", "lv", "od", "hpa", "fixed")


class TooSlowError(RuntimeError):
    """The load ended before the changes did."""


def main(pace: Pace) -> None:
    with gnomon.serving() as ours:
        ours.up(NAME, annotations={"gnomon/deadline-ms": f"{DEADLINE_S * 1e3:.0f}", "gnomon/max-wait-ms": "5"})
        endpoint = Endpoint("gnomon", f"{ours.url}/function/{NAME}", b'{"x": [7], "token": "{token}"}')
        able_rps = capacity(endpoint, 500.0, pace.step_s, SEARCH_DEADLINE_S)
        run = changed_under_load(ours, endpoint, SHARE * able_rps, pace.cycles)
    step(f"{run.cycles} cycles and {run.switches} switches:\n{run.report.table()}")
    write("scaling", figures(run, able_rps), repeats=1, packages=("gnomon",), folder=pace.results)


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a run. `executed` is the number of requests in all batches that were sent to instances."""

    report: Report
    cycles: int
    switches: int
    executed: int


def changed_under_load(ours: gnomon.Gnomon, endpoint: Endpoint, rate_rps: float, cycles: int) -> Run:
    """Offer the load and change things meanwhile."""
    duration_s = cycles * (CYCLE_LIMIT_S + SWITCH_LIMIT_S)
    before = ours.series("gnomon_batch_size_sum", NAME)
    with ThreadPoolExecutor(1) as pool:
        end_s = time.monotonic() + duration_s
        load = pool.submit(send, endpoint, rate_rps, duration_s, DEADLINE_S, seed=1, check_token=True)
        time.sleep(2.0)
        for number in range(cycles):
            begun_s = time.monotonic()
            ours.scale(NAME, MOST)
            up_s = time.monotonic() - begun_s
            time.sleep(HOLD_S)
            ours.scale(NAME, 1)
            time.sleep(HOLD_S)
            step(f"cycle {number + 1}: {MOST} instances after {1e3 * up_s:.0f} ms, 1 after {time.monotonic() - begun_s:.1f} s")
        pairs = zip(itertools.cycle(SCHEDULERS), itertools.cycle(AUTOSCALERS), strict=False)
        for scheduler, autoscaler in itertools.islice(pairs, cycles):
            switch(ours, scheduler, autoscaler)
            time.sleep(HOLD_S)
        step("all changes are made")
        if time.monotonic() > end_s:
            raise TooSlowError(f"The changes took longer than the {duration_s:.0f} s of load.")
        report = load.result()
    return Run(report, cycles, cycles, round(ours.series("gnomon_batch_size_sum", NAME) - before))


def switch(ours: gnomon.Gnomon, scheduler: str, autoscaler: str) -> None:
    """PUT the function with other policies."""
    document = ours.function(NAME)
    kept: dict[str, Any] = {key: document[key] for key in ("image", "namespace", "envProcess", "labels") if key in document}
    changed = {"gnomon/scheduler": scheduler, "gnomon/autoscaler": autoscaler}
    ours.call("PUT", "/system/functions", {"service": NAME, **kept, "annotations": {**document["annotations"], **changed}})


def figures(run: Run, able_rps: float) -> list[Figure]:
    outcomes = Counter(row.outcome for row in rows(run.report))
    wrong = sum(row.token == Token.WRONG and row.status in SUCCESSES for row in rows(run.report))
    twice = outcomes[Outcome.ANSWERED_TWICE]
    count = len(run.report.samples)
    failed = count - run.report.succeeded - twice - wrong
    load = f"{run.report.offered_rps:.0f}/s offered, {SHARE:g} × {able_rps:.0f}/s"

    def none(key: str, found: int) -> Figure:
        return measured(
            key, [found], "requests", at_most=0, detail=f"{found}/{count}, below {upper_bound(found, count):.2g} (95 %)"
        )

    return [
        none("failed", failed),
        none("answered_twice", twice),
        none("answered_with_anothers_result", wrong),
        none("executed_more_than_once", max(0, run.executed - count)),
        measured("requests", [count], "requests", at_least=FEWEST, detail=load),
        measured("cycles", [run.cycles], "", at_least=20, detail=f"1 → {MOST} → 1 instances"),
        measured("policy_switches", [run.switches], "", at_least=20),
        measured("generator_lag_p99", [lag_p99_ms(run.report)], "ms"),
    ]


def upper_bound(found: int, count: int) -> float:
    """The share that is exceeded with less than 5 % probability, by the Poisson distribution; 3/n for none of n."""
    low, high = 0.0, 10.0 + 4.0 * found
    while high - low > 1e-9:
        mean = (low + high) / 2
        at_most_found = math.fsum(math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(found + 1))
        low, high = (mean, high) if at_most_found > 0.05 else (low, mean)
    return high / count


if __name__ == "__main__":
    start(main, __doc__)
