"""Leaders that are frozen by SIGSTOP and thawed, 200 times: no write of theirs is accepted after their successor's first write.

    python -m benchmarks.kubernetes.leader [--quick] [--rounds 200]

The benchmark boots an etcd and an apiserver. Each round: another candidate stands and has seen the Lease; the leader is frozen,
at a random moment or right between a check of its term and the write that was checked; the successor takes the Lease and writes;
the frozen one is thawed after that write, or about when it comes. A write is late if its epoch is older than the object's. The
object counts its writes, so that a write that the watch did not show is noticed.

A round is mostly waiting, so four Leases are fought for at the same time; a Lease lasts 3 s here, not 15 s. The same rounds are
run by leaders that have the election alone, without checks and versions: if none of their writes were late, the figure would show
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import random
import signal
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.kubernetes import candidate
from benchmarks.kubernetes.candidate import TIMING
from benchmarks.kubernetes.pods import booted
from benchmarks.programs import ended_well, pace_of, pace_parser, step
from benchmarks.report import Figure, measured, write
from gnomon_platforms.kubernetes.client import Api, connect
from gnomon_platforms.kubernetes.informer import Informer, Source
from gnomon_platforms.kubernetes.lease import EXIT_STATUS
from gnomon_platforms.kubernetes.resources import CONFIG_MAPS, NAMESPACES

TIMEOUT_S = 60.0
ABOUT_S = 0.7
"""Seconds around the end of the Lease in which a thaw may come that does not wait for the successor."""
LOOK_S = 0.01

# A fork of a process that has the client already begins in milliseconds, where a new interpreter takes two seconds of a core.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([candidate.__name__])


@dataclass
class Tally:
    """Writes of one object in the course of some rounds."""

    rounds: int = 0
    writes: int = 0
    late: int = 0
    """Writes that were accepted although a later leader had written."""
    unnoticed: int = 0
    """Writes that the object counts and the watch has not shown."""
    ended: int = 0
    """Frozen leaders that ended by themselves when they were thawed."""
    between: int = 0
    """Rounds in which the leader was frozen between a check and its write."""
    takeovers_s: list[float] = field(default_factory=list)
    """From a freeze to the successor's first write."""

    def add(self, other: Tally) -> None:
        self.rounds += other.rounds
        self.writes += other.writes
        self.late += other.late
        self.unnoticed += other.unnoticed
        self.ended += other.ended
        self.between += other.between
        self.takeovers_s += other.takeovers_s


class Written:
    """The object that leaders write, as the watch shows it."""

    def __init__(self, informer: Informer[tuple[int, int]], tally: Tally) -> None:
        self.epoch = 0
        self._informer, self._tally, self._count = informer, tally, 0
        informer.listen(lambda change: self._seen(*(change.new or (0, 0))))

    def _seen(self, epoch: int, count: int) -> None:
        if count == 0:
            return
        self._tally.writes += 1
        self._tally.late += epoch < self.epoch
        # A late write may repeat a count; one that is skipped was not seen.
        self._tally.unnoticed += max(0, count - self._count - 1)
        self._count = max(self._count, count)
        self.epoch = max(self.epoch, epoch)

    async def until(self, epoch: int) -> None:
        """Return when a leader of this epoch has written."""
        await self._informer.until(lambda: self.epoch >= epoch, TIMEOUT_S)

    async def counted(self, count: int) -> None:
        """Return when so many writes have been seen."""
        await self._informer.until(lambda: self._count >= count, TIMEOUT_S)


async def chain(kubeconfig: Path, namespace: str, rounds: int, seed: int, *, guarded: bool = True) -> Tally:
    """Run `count` rounds on one Lease and one object, in a namespace of their own."""
    api, rng, tally = await asyncio.to_thread(connect, kubeconfig), random.Random(seed), Tally()
    processes: list[Any] = []

    async def begin() -> Any:
        identity, looked = f"p{len(processes)}", _PROCESSES.Event()
        process = _PROCESSES.Process(
            target=candidate.main, args=(kubeconfig, namespace, identity, looked), kwargs={"guarded": guarded}, daemon=True
        )
        process.start()
        processes.append(process)
        # One that still begins would be waited for as if the Lease were what takes so long.
        if not await asyncio.to_thread(looked.wait, TIMEOUT_S):
            raise TimeoutError(f"{identity} has not looked at the Lease within {TIMEOUT_S:g} s")
        return process

    async with _object(api, namespace) as informer:
        written = Written(informer, tally)
        try:
            leading = await begin()
            for number in range(1, rounds + 1):
                await written.until(number)
                successor = await begin()
                await asyncio.sleep(rng.uniform(0.0, TIMING.retry_s))
                await _round(leading, written, number + 1, rng, tally, early=guarded)
                await _ended(leading, tally, guarded=guarded)
                leading = successor
                tally.rounds += 1
            await written.until(rounds + 1)
            await asyncio.to_thread(_end, processes)
            last = await asyncio.to_thread(api.call, "GET", CONFIG_MAPS.path(namespace, "written"))
            # The watch is followed to the end: a new list would step over what came before it.
            await written.counted(_kept(last)[1])
        finally:
            await asyncio.to_thread(_end, processes)
    return tally


def _end(processes: list[Any]) -> None:
    for process in processes:
        process.kill()
        process.join()


async def _round(leading: Any, written: Written, epoch: int, rng: random.Random, tally: Tally, *, early: bool) -> None:
    """Freeze the leader, and thaw it when its successor, who will have this epoch, has written, or `early`, is about to.

    A leader without guards that is thawed before its Lease is over renews it, and has no successor.
    """
    between = rng.random() < 0.5
    os.kill(leading.pid, signal.SIGUSR1 if between else signal.SIGSTOP)
    tally.between += between
    await _frozen(leading.pid)
    frozen_s = time.monotonic()
    if early and rng.random() < 0.5:
        await asyncio.sleep(TIMING.duration_s + rng.uniform(-ABOUT_S, ABOUT_S))
        os.kill(leading.pid, signal.SIGCONT)
        await written.until(epoch)
        tally.takeovers_s.append(time.monotonic() - frozen_s)
    else:
        await written.until(epoch)
        tally.takeovers_s.append(time.monotonic() - frozen_s)
        os.kill(leading.pid, signal.SIGCONT)


async def _frozen(pid: int) -> None:
    """Return when the process stands still."""
    async with asyncio.timeout(TIMEOUT_S):
        while state_of(pid) != "T":  # noqa: ASYNC110 - the kernel tells only parents
            await asyncio.sleep(LOOK_S)


def state_of(pid: int) -> str:
    """The kernel's state of a process; T where it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def _ended(leading: Any, tally: Tally, *, guarded: bool) -> None:
    """A thawed leader is gone by itself; one without guards leads on until it looks at the Lease."""
    await asyncio.to_thread(leading.join, TIMEOUT_S)
    expected = EXIT_STATUS if guarded else 0
    tally.ended += leading.exitcode == expected


@contextlib.asynccontextmanager
async def _object(api: Api, namespace: str) -> AsyncIterator[Informer[tuple[int, int]]]:
    """The object that is written, in a namespace that is gone afterwards."""
    await asyncio.to_thread(api.call, "POST", NAMESPACES.path(), body={"metadata": {"name": namespace}})
    empty = {"metadata": {"name": "written"}, "data": {}}
    await asyncio.to_thread(api.call, "POST", CONFIG_MAPS.path(namespace), body=empty)
    informer = Informer(api, Source(CONFIG_MAPS, namespace, fields="metadata.name=written"), _kept)
    await informer.start()
    try:
        yield informer
    finally:
        await informer.stop()
        await asyncio.to_thread(api.call, "DELETE", NAMESPACES.path(None, namespace))
        api.close()


def _kept(document: dict[str, Any]) -> tuple[int, int]:
    data = document.get("data") or {}
    return int(data.get("epoch", 0)), int(data.get("count", 0))


ROUNDS, QUICK_ROUNDS = 200, 8
CHAINS = 4
CONTROL_SHARE = 10
"""The number of rounds with guards for each round without."""
SEED = 35
SLACK_S = 2.0
"""Seconds on top of the Lease: the candidates' look every 0.3 s, the write, and a busy machine."""


async def all_rounds(kubeconfig: Path, name: str, rounds: int, *, guarded: bool = True) -> Tally:
    """Run `count` rounds, on several Leases at once."""
    shares = [rounds // CHAINS + (number < rounds % CHAINS) for number in range(CHAINS)]
    found = await asyncio.gather(
        *(
            chain(kubeconfig, f"{name}-{number}", share, SEED + number, guarded=guarded)
            for number, share in enumerate(shares)
            if share
        )
    )
    total = Tally()
    for round_ in found:
        total.add(round_)
    return total


def main(arguments: Sequence[str] | None = None) -> None:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--rounds", type=int, help=f"how many; {ROUNDS} are the goal")
    given = parser.parse_args(arguments)
    pace = pace_of(given)
    rounds = given.rounds or (QUICK_ROUNDS if pace.quick else ROUNDS)
    with booted() as plane:
        step(f"{rounds} rounds of leaders as they are")
        guarded = asyncio.run(all_rounds(plane.kubeconfig, "guarded", rounds))
        step("the same without checks and versions")
        control = asyncio.run(all_rounds(plane.kubeconfig, "control", max(CHAINS, rounds // CONTROL_SHARE), guarded=False))
    write("kubernetes_leader", figures(guarded, control), repeats=1, packages=("gnomon", "kubernetes"), folder=pace.results)


def figures(guarded: Tally, control: Tally) -> list[Figure]:
    """The published figures."""
    said = (
        f"of {guarded.writes} accepted; {guarded.between} leaders were frozen between a check and its write, "
        f"{guarded.unnoticed} writes not seen"
    )
    takeovers = guarded.takeovers_s
    longest = f"mean {statistics.fmean(takeovers):.2f} s; a Lease lasts {TIMING.duration_s} s"
    return [
        measured("rounds", [guarded.rounds], "rounds", at_least=ROUNDS),
        measured("late_writes_accepted", [guarded.late + guarded.unnoticed], "writes", at_most=0, detail=said),
        measured("frozen_leaders_that_ended", [guarded.ended / guarded.rounds], "share", at_least=1.0),
        measured("longest_takeover", [max(takeovers)], "s", at_most=TIMING.duration_s + SLACK_S, detail=longest),
        measured(
            "late_writes_without_guards",
            [control.late],
            "writes",
            detail=f"in {control.rounds} rounds of {control.writes} writes",
        ),
    ]


if __name__ == "__main__":
    ended_well(main)
