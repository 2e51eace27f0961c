"""Tests whether the gateway's memory stays constant while instances start and end, and requests flow.

    python -m benchmarks.reliability.soak [--minutes 120] [--lives 10000] [--requests 500000] [--quick]

`gnomon serve` with one function, whose instances are scaled up and down all the time (every second turn one of them is killed)
beside clients that keep connections. What is measured is the gateway's resident memory, every two seconds. After a settling time
(10 minutes, or a third of a shorter run) a straight line is fitted through it. A shorter run with as many lives a minute as come
can be compared by what each life leaves behind; both are shown.
"""

from __future__ import annotations

import asyncio
import http
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import aiohttp

from benchmarks import gnomon
from benchmarks.programs import ended_well, pace_of, pace_parser, step
from benchmarks.reliability._clients import Outcome, Request, closed_loop
from benchmarks.reliability._processes import descendants, process_name, resident_bytes
from benchmarks.report import Figure, measured, write

NAME = "noop"
CLIENTS = 8
MOST_INSTANCES = 8
SETTLING_S = 600.0
SAMPLE_EVERY_S = 2.0
GOAL_MB_PER_H = 5.0
LIVES_PER_H = 5000.0
"""The pace for which the goal is stated: 10,000 instances start and end in two hours."""
MB = 1e6


@dataclass
class Course:
    """The run so far, and the gateway's memory beside it: seconds, bytes and instance lifetimes at each sample."""

    lives: int = 0
    requests: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)
    lives_at: list[int] = field(default_factory=list)

    def record(self, _: Request, outcome: Outcome) -> None:
        self.requests += 1
        if outcome.status != http.HTTPStatus.OK:
            self.failed[outcome.failure or f"{outcome.status} {outcome.body[:100].decode(errors='replace')}"] += 1


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of the least-squares line through these points; 0 if there is none."""
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((value - mean_x) ** 2 for value in x)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread if spread else 0.0


async def soak(ours: gnomon.Gnomon, duration_s: float, lives: int, request_count: int) -> Course:
    """Scale and ask, at a pace that spreads so many lives and requests over the time, or as fast as it goes."""
    course, ended = Course(), asyncio.Event()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.TaskGroup() as tasks:
        begun_s = time.monotonic()
        end_s = begun_s + duration_s
        interval_s = CLIENTS * duration_s / request_count
        tasks.create_task(closed_loop(ours.url, CLIENTS, requests(ended), course.record, interval_s=interval_s))
        tasks.create_task(watch(ours, course, ended, begun_s))
        try:
            while time.monotonic() < end_s:
                due_s = begun_s + duration_s * course.lives / lives
                await asyncio.sleep(min(max(0.0, due_s - time.monotonic()), end_s - time.monotonic()))
                await scale(session, ours, MOST_INSTANCES)
                if course.lives // MOST_INSTANCES % 2:
                    kill_one(ours)
                    course.lives += 1
                    await until_ready(session, ours, MOST_INSTANCES)
                await scale(session, ours, 1)
                course.lives += MOST_INSTANCES - 1
        finally:
            ended.set()
    return course


def requests(ended: asyncio.Event) -> Iterator[Request]:
    """Send one request after another until the event."""
    while not ended.is_set():
        yield Request(f"/function/{NAME}", b'{"x": [7]}')


async def watch(ours: gnomon.Gnomon, course: Course, ended: asyncio.Event, begun_s: float) -> None:
    """Sample the gateway's memory."""
    while not ended.is_set():
        course.seconds.append(time.monotonic() - begun_s)
        course.resident.append(resident_bytes(ours.program.process.pid))
        course.lives_at.append(course.lives)
        if len(course.seconds) % 30 == 0:
            step(
                f"{course.seconds[-1]:.0f} s, {course.lives} lives, {course.requests} requests: {course.resident[-1] / MB:.1f} MB"
            )
        await asyncio.sleep(SAMPLE_EVERY_S)


async def scale(session: aiohttp.ClientSession, ours: gnomon.Gnomon, replicas: int) -> None:
    document = {"serviceName": NAME, "replicas": replicas}
    async with session.post(f"{ours.url}/system/scale-function/{NAME}", json=document) as answer:
        if not answer.ok:
            raise gnomon.RefusedError(await answer.text())
    await until_ready(session, ours, replicas)


async def until_ready(session: aiohttp.ClientSession, ours: gnomon.Gnomon, replicas: int) -> None:
    end_s = time.monotonic() + gnomon.LIMIT_S
    while time.monotonic() < end_s:
        async with session.get(f"{ours.url}/system/function/{NAME}") as answer:
            if ((await answer.json()).get("availableReplicas") or 0) == replicas:
                return
        await asyncio.sleep(0.02)
    raise TimeoutError(f"{NAME} has no {replicas} instances:\n{ours.program.tail()}")


def kill_one(ours: gnomon.Gnomon) -> None:
    """End an instance from outside, as the kernel does."""
    for pid in descendants(ours.program.process.pid):
        if process_name(pid).startswith(f"gnomon {NAME}"):
            os.kill(pid, signal.SIGKILL)
            return


def figures(course: Course, settling_s: float) -> list[Figure]:
    begin = next((index for index, second in enumerate(course.seconds) if second >= settling_s), 0)
    seconds, resident, lives = course.seconds[begin:], course.resident[begin:], course.lives_at[begin:]
    mb_per_h = slope(seconds, resident) * 3600 / MB
    bytes_per_life = slope(lives, resident)
    at_pace = bytes_per_life * LIVES_PER_H / MB
    minutes = course.seconds[-1] / 60
    run = f"{course.lives} lives and {course.requests} requests in {minutes:.1f} min; not answered: {dict(course.failed) or 0}"
    return [
        measured("growth_at_5000_lives_per_h", [at_pace], "MB/h", at_most=GOAL_MB_PER_H, detail=run),
        Figure("growth", mb_per_h, "MB/h", detail=f"at the pace of this run, after {settling_s / 60:.1f} min"),
        Figure("growth_per_life", bytes_per_life, "B"),
        Figure("resident_settled", resident[0] / MB, "MB"),
        Figure("resident_end", resident[-1] / MB, "MB", detail=f"at most {max(course.resident) / MB:.1f} MB"),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--minutes", type=float, default=120.0, help="how long")
    parser.add_argument("--lives", type=int, default=10_000, help="how many instances start and end in that time, if they can")
    parser.add_argument("--requests", type=int, default=500_000, help="how many requests are sent in that time, if they can")
    options = parser.parse_args(arguments)
    pace = pace_of(options)
    duration_s = 30.0 if pace.quick else 60.0 * options.minutes
    with gnomon.temporary() as folder, gnomon.serving(folder) as ours:
        ours.up(NAME)
        document = ours.function(NAME)
        kept = {name: document[name] for name in ("image", "envProcess", "annotations", "labels") if document.get(name)}
        kept["labels"] = {**(kept.get("labels") or {}), "com.openfaas.scale.max": str(MOST_INSTANCES)}
        ours.call("PUT", "/system/functions", {"service": NAME, **kept, "requests": {"cpu": "100m"}})
        course = asyncio.run(soak(ours, duration_s, options.lives, options.requests))
    settling_s = min(SETTLING_S, duration_s / 3)
    write("reliability_soak", figures(course, settling_s), repeats=1, packages=("gnomon",), folder=pace.results)


if __name__ == "__main__":
    ended_well(main)
