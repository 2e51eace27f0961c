"""Closed-loop load by wrk: a fixed number of connections, each of which sends when it has its answer."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.endpoint import Endpoint
from benchmarks.pace import step

SCRIPT = Path(__file__).parent / "wrk.lua"


class NoLoadError(RuntimeError):
    """The load cannot be made, or not every request was answered."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one stretch of load showed."""

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
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}", "--timeout", "10", "-s", str(SCRIPT), endpoint.url]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoLoadError(f"wrk: {done.stdout}{done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    if found["failed"] or not found["requests"]:
        raise NoLoadError(f"{endpoint.url}: {found['failed']} of {found['requests']} requests failed:\n{done.stdout}")
    return Load(found["requests"] / found["duration_us"] * 1e6, found["p50_us"] / 1e3)


def alternate(endpoints: Mapping[str, Endpoint], connections: int, seconds: int, repeats: int) -> dict[str, list[Load]]:
    """Load the endpoints in turn, again and again, after a round that warms them up and does not count.

    The machine's drift meets all of them alike; a ratio of two is taken within a round.
    """
    found: dict[str, list[Load]] = {name: [] for name in endpoints}
    for name, endpoint in endpoints.items():
        load(endpoint, connections, 1)
        step(f"{name} is warm")
    for number in range(repeats):
        for name, endpoint in endpoints.items():
            found[name].append(load(endpoint, connections, seconds))
        said = ", ".join(f"{name} {loads[-1].requests_rps:.0f}/s {loads[-1].median_ms:.2f} ms" for name, loads in found.items())
        step(f"{connections} connection(s), round {number + 1} of {repeats}: {said}")
    return found


def rates(loads: list[Load]) -> list[float]:
    """The requests/s of every round."""
    return [one.requests_rps for one in loads]


def ratios(ours: list[Load], theirs: list[Load]) -> list[float]:
    """Round by round, ours in theirs."""
    return [mine / other for mine, other in zip(rates(ours), rates(theirs), strict=True)]


def best(found: Mapping[str, list[Load]], prefix: str) -> str:
    """Of the settings whose names begin so, the one with the most requests/s."""
    return max((name for name in found if name.startswith(prefix)), key=lambda name: statistics.fmean(rates(found[name])))
