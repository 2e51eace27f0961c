"""Load on an endpoint: open loop at Poisson times, and closed loop by wrk.

Open loop: requests leave at their times whatever became of earlier ones, and clients leave at their deadline. The generator is
`gnomon_simulator.replay` in a process of its own. Latencies count from the intended time, so that the generator's own lag is part
of them; the lag is reported as well.

Closed loop: a fixed number of connections, each of which sends its next request when it has its answer.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.programs import Endpoint, step
from gnomon_simulator.arrivals import poisson
from gnomon_simulator.events import stream
from gnomon_simulator.replay import Plan, Target, replay_apart
from gnomon_simulator.replay_report import SUCCESSES, Outcome, Report, Token
from gnomon_simulator.results import percentile

IN_TIME = 0.99
CLOSE_ENOUGH = 1.04
FASTER = 1.5
FEWEST = 300
SETTLE_LIMIT_S = 300.0
WINDOW_S = 10.0
REFUSED = frozenset({429, 503})
"""Statuses of a refusal, without an execution. A 504 is none: that request was admitted."""


def offer(endpoint: Endpoint, rate_rps: float, duration_s: float, deadline_s: float, *, seed: int) -> Report:
    """Offer a Poisson load and return what became of each request, when the system has recovered."""
    report = send(endpoint, rate_rps, duration_s, deadline_s, seed=seed)
    settle(endpoint, deadline_s)
    return report


def send(
    endpoint: Endpoint, rate_rps: float, duration_s: float, deadline_s: float, *, seed: int, check_token: bool = False
) -> Report:
    """Offer a Poisson load and return what became of each request."""
    arrivals = poisson(rate_rps, duration_s, stream(seed, "arrivals"))
    plan = Plan(arrivals, deadline_s, max_connections=4096, open_first=64)
    target = Target(endpoint.url, headers=endpoint.headers, body=endpoint.body, check_token=check_token)
    return replay_apart(plan, target)


def settle(endpoint: Endpoint, deadline_s: float) -> None:
    """Wait until the system answers quickly again: some still execute, for minutes, what nobody waits for any more.

    Raises:
        TimeoutError: it has not recovered.

    """
    end_s = time.monotonic() + SETTLE_LIMIT_S
    while time.monotonic() < end_s:
        asked_s = time.monotonic()
        with contextlib.suppress(OSError):
            endpoint.ask()
            if time.monotonic() - asked_s < deadline_s / 2:
                return
        time.sleep(deadline_s / 2)
    raise TimeoutError(f"{endpoint.system} has not recovered from its load within {SETTLE_LIMIT_S:.0f} s")


def capacity(endpoint: Endpoint, guess_rps: float, step_s: float, deadline_s: float) -> float:
    """The highest rate at which 99 % are answered within the deadline, to 4 %.

    Faster by half until it fails (or slower until it succeeds), then halving the interval; each rate is tried with fresh
    arrivals, at least 300 of them. A rate that fails is tried once more, so that one bad moment of the machine does not decide.
    """
    good_rps, bad_rps, rate_rps, seed = 0.0, math.inf, guess_rps, 1
    while bad_rps > good_rps * CLOSE_ENOUGH:
        share = 0.0
        for _ in range(2):
            seed += 1
            tried = offer(endpoint, rate_rps, max(step_s, FEWEST / rate_rps), deadline_s, seed=seed)
            share = max(share, in_time(tried))
            if share >= IN_TIME:
                break
        step(f"{endpoint.system}: {rate_rps:.1f}/s, {share:.2%} in time")
        if share >= IN_TIME:
            good_rps = rate_rps
        else:
            bad_rps = rate_rps
        if math.isinf(bad_rps):
            rate_rps = good_rps * FASTER
        elif not good_rps:
            rate_rps = bad_rps / FASTER
        else:
            rate_rps = math.sqrt(good_rps * bad_rps)
    return good_rps


def in_time(report: Report) -> float:
    """The share of requests answered well within the deadline."""
    return report.succeeded / max(1, len(report.samples))


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a run. Admitted is what was not refused at once; of these, `in_time` is the share answered well in time."""

    goodput_rps: float
    in_time: float
    answered_p99_s: float
    refused: int
    refused_p99_s: float


def windows(report: Report) -> list[Window]:
    """The run in stretches of 10 s, by the requests' intended times."""
    count = max(1, round(report.duration_s / WINDOW_S))
    length_s = report.duration_s / count
    return [_window(report, number * length_s, length_s) for number in range(count)]


def _window(report: Report, begin_s: float, length_s: float) -> Window:
    inside = [row for row in rows(report) if begin_s <= row.intended_s < begin_s + length_s]
    refused = [row for row in inside if row.outcome == Outcome.ANSWERED and row.status in REFUSED]
    answered = [row for row in inside if row.succeeded]
    return Window(
        goodput_rps=len(answered) / length_s,
        in_time=len(answered) / max(1, len(inside) - len(refused)),
        answered_p99_s=percentile(sorted([row.answered_s - row.intended_s for row in answered]), 99) or 0.0,
        refused=len(refused),
        refused_p99_s=percentile(sorted([row.answered_s - row.sent_s for row in refused]), 99) or 0.0,
    )


@dataclass(frozen=True, slots=True)
class Row:
    """The outcome of one request."""

    intended_s: float
    sent_s: float
    answered_s: float
    left_s: float
    outcome: int
    status: int
    token: int

    @property
    def succeeded(self) -> bool:
        return self.outcome == Outcome.ANSWERED and self.status in SUCCESSES and self.token != Token.WRONG


def rows(report: Report) -> Iterator[Row]:
    """The requests of a run, by their intended times."""
    columns = report.samples
    for row in zip(
        columns.intended_s,
        columns.sent_s,
        columns.answered_s,
        columns.left_s,
        columns.outcome,
        columns.status,
        columns.token,
        strict=True,
    ):
        yield Row(*row)


def lag_p99_ms(report: Report) -> float:
    """The 99th percentile of the load generator's delay."""
    return 1e3 * (percentile(sorted(report.lags_s()), 99) or 0.0)


SCRIPT = Path(__file__).parent / "wrk.lua"


class NoLoadError(RuntimeError):
    """The load cannot be made, or not every request was answered."""


@dataclass(frozen=True, slots=True)
class Load:
    """Measurements of one period of load."""

    requests_rps: float
    median_ms: float


def load(endpoint: Endpoint, connections: int, seconds: int) -> Load:
    """Load an endpoint from one thread of wrk.

    Raises:
        NoLoadError: wrk is missing, or a request failed: a failure may be quick, and must not count as one.

    """
    if shutil.which("wrk") is None:
        raise NoLoadError("wrk makes the load and is not installed. On Debian and Ubuntu: apt-get install wrk")
    with tempfile.NamedTemporaryFile() as body:
        body.write(endpoint.body)
        body.flush()
        environment = {**os.environ, "BODY_FILE": body.name, "CONTENT_TYPE": endpoint.headers["Content-Type"]}
        headers = [f"-H{name}: {value}" for name, value in endpoint.headers.items() if name != "Content-Type"]
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}", "--timeout", "60", *headers, "-s", str(SCRIPT), endpoint.url]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoLoadError(f"wrk: {done.stdout}{done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    if found["failed"] or not found["requests"]:
        raise NoLoadError(f"{endpoint.url}: {found['failed']} of {found['requests']} requests failed:\n{done.stdout}")
    return Load(found["requests"] / found["duration_us"] * 1e6, found["p50_us"] / 1e3)


def alternate(
    endpoints: Mapping[str, Endpoint], connections: int, seconds: int, repeats: int, warm_s: int = 1
) -> dict[str, list[Load]]:
    """Load the endpoints in turn, again and again, after a round of `warm_s` each that warms them up and does not count.

    The machine's drift meets all of them alike; a ratio of two is taken within a round.
    """
    found: dict[str, list[Load]] = {name: [] for name in endpoints}
    for name, endpoint in endpoints.items():
        load(endpoint, connections, warm_s)
        step(f"{name} is warm")
    for number in range(repeats):
        for name, endpoint in endpoints.items():
            found[name].append(load(endpoint, connections, seconds))
        said = ", ".join(f"{name} {loads[-1].requests_rps:.0f}/s {loads[-1].median_ms:.2f} ms" for name, loads in found.items())
        step(f"{connections} connection(s), round {number + 1} of {repeats}: {said}")
    return found


def rates(loads: list[Load]) -> list[float]:
    """The requests/s of every round."""
    return [load.requests_rps for load in loads]


def ratios(ours: list[Load], theirs: list[Load]) -> list[float]:
    """Round by round, ours in theirs."""
    return [mine / other for mine, other in zip(rates(ours), rates(theirs), strict=True)]


def best(found: Mapping[str, list[Load]], prefix: str) -> str:
    """The setting with the most requests/s among those whose names begin so."""
    return max((name for name in found if name.startswith(prefix)), key=lambda name: statistics.fmean(rates(found[name])))
