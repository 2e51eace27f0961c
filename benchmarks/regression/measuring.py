"""Making the visits that are missing, by processes under the quota of a memory size, one cell after the other in each.

A bound on the processor time of one process: a control group of its own, of version 1 or 2.

The kernel gives a group `quota` microseconds in every period and stops it until the next one when they are used up. AWS Lambda
does so by memory: 885 MB are half a core, 10 ms in every 20 ms. Making a group needs root, or a part of the tree that was
delegated (`systemd-run --user --scope -p Delegate=yes …`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.programs import ROOT
from benchmarks.regression.cells import Cell, Kept, Times, Visit, cores_of, threads_of
from gnomon_core.packaging import FOR_LIBRARIES

LEAST_US = 1000
"""The kernel takes no shorter quota and no shorter period."""
NO_BOUND_V1, NO_BOUND_V2 = "-1", "max"
EMPTY_LIMIT_S = 5.0


class NoQuotaError(RuntimeError):
    """This machine does not let us bound processor time."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where cgroups are made, and whether the files there are version 2's."""

    parent: Path
    unified: bool


class Quota:
    """A group for the length of a block. It is empty at first; what joins has to have ended when the block ends.

    `number` tells the groups of one process apart.
    """

    def __init__(self, period_us: int, hierarchy: Hierarchy | None = None, number: int = 0) -> None:
        found = hierarchy or hierarchy_of(Path("/proc/mounts").read_text(), Path("/proc/self/cgroup").read_text())
        if found is None:
            raise NoQuotaError("no control group here has a controller for processor time")
        self._unified = found.unified
        self._period_us = period_us
        self._folder = found.parent / f"gnomon-quota-{os.getpid()}-{number}"

    def __enter__(self) -> Self:
        with _explained(self._folder):
            if self._unified and not _controls_cpu(self._folder.parent):
                (self._folder.parent / "cgroup.subtree_control").write_text("+cpu")
            self._folder.mkdir()
        try:
            self.lift()
        except BaseException:
            self._folder.rmdir()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        end_s = time.monotonic() + EMPTY_LIMIT_S
        while True:
            try:
                self._folder.rmdir()
            except OSError:  # whoever was in it is still being cleared away
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.01)
            else:
                return

    def join(self, pid: int) -> None:
        """Put a process with all its threads into the group."""
        with _explained(self._folder):
            (self._folder / "cgroup.procs").write_text(str(pid))

    def set(self, cores: float) -> None:
        """Give the group so many cores, also parts of one.

        Raises:
            ValueError: less than the kernel can give in a period.

        """
        quota_us = round(cores * self._period_us)
        if quota_us < LEAST_US:
            raise ValueError(f"{cores:g} cores are {quota_us} µs of {self._period_us}; at least {LEAST_US} can be given")
        self._write(str(quota_us))

    def lift(self) -> None:
        """Bound nothing."""
        self._write(NO_BOUND_V2 if self._unified else NO_BOUND_V1)

    def _write(self, quota: str) -> None:
        with _explained(self._folder):
            if self._unified:
                (self._folder / "cpu.max").write_text(f"{quota} {self._period_us}")
            else:
                (self._folder / "cpu.cfs_period_us").write_text(str(self._period_us))
                (self._folder / "cpu.cfs_quota_us").write_text(quota)


def hierarchy_of(mounts: str, own: str) -> Hierarchy | None:
    """Where to make a cgroup, from /proc/mounts and /proc/self/cgroup: below ours, by version 1 if it has the controller."""
    unified: Hierarchy | None = None
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in own.splitlines())}
    for line in mounts.splitlines():
        _, place, kind, options = line.split()[:4]
        if kind == "cgroup" and "cpu" in options.split(","):
            path = next((path for names, path in paths.items() if "cpu" in names.split(",")), "/")
            return Hierarchy(_below(place, path), unified=False)
        if kind == "cgroup2" and unified is None:
            unified = Hierarchy(_below(place, paths.get("", "/")), unified=True)
    return unified


def _below(place: str, path: str) -> Path:
    """Our own group; where the mount does not show it, as in a container, the mount's root is ours."""
    own = Path(place) / path.lstrip("/")
    return own if own.is_dir() else Path(place)


def _controls_cpu(parent: Path) -> bool:
    return "cpu" in (parent / "cgroup.subtree_control").read_text().split()


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NoQuotaError(
            f"{folder} cannot bound processor time: {error}. Run as root, or under `systemd-run --user --scope -p Delegate=yes`."
        ) from error


SAY_EVERY_S = 20.0


class Worker:
    """The process that computes, in a group whose processor time is bounded, for the length of a block.

    It computes on one core, number `core` of those it may use, and with two threads on the next as well.
    """

    def __init__(self, program: Path, weights: Path, quota: Quota, core: int = 0) -> None:
        self._quota = quota
        command = [sys.executable, "-m", "benchmarks.regression.worker", str(program), str(weights), str(core)]
        environment = {**os.environ, **FOR_LIBRARIES}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        try:
            self._quota.join(self._process.pid)
            self._answer()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def settle(self, batches: Sequence[int]) -> None:
        """Bring the process to where it stays: one that has only run small batches runs them up to a quarter quicker.

        In glibc's heap their tensors then lie side by side at the beginning. An instance has seen all sizes.
        """
        self._quota.lift()
        for threads in (1, 2):
            for batch in (*sorted(batches), *sorted(batches, reverse=True)):
                self._ask({"batch": batch, "threads": threads, "runs": 0, "warm": 1})

    def times(self, cell: Cell, runs: int) -> Times:
        """So many runs as on an instance that is always busy: a batch of one under the quota goes before them."""
        memory_mb, batch = cell
        threads = threads_of(memory_mb)
        self._quota.lift()
        self._ask({"batch": batch, "threads": threads, "runs": 0, "warm": 1})
        self._quota.set(cores_of(memory_mb))
        self._ask({"batch": 1, "threads": threads, "runs": 0, "warm": 1})
        found = self._ask({"batch": batch, "threads": threads, "runs": runs, "warm": 0})
        return Times(tuple(found["seconds"]), tuple(found["core_s"]))

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that computes has ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def measure(
    workers: Sequence[Worker], missing: Sequence[Visit], kept: Kept, *, runs: int, end_s: float, say: Callable[[str], None]
) -> None:
    """Make the visits that are missing, of so many runs each, until all are made or until `end_s` of the monotonic clock.

    Cells of one thread are taken by all workers side by side, each of which has a core of its own; the others by the first alone,
    at the end of a round. Whatever ends it before, an interruption or a worker that fails, the others end with their cells.
    """
    progress, given_up = Progress(missing, say), threading.Event()

    def work(worker: Worker, queue: Iterator[Visit]) -> None:
        for visit in queue:
            if time.monotonic() >= end_s or given_up.is_set():
                return
            progress.begin(visit.cell)
            kept.add(visit, worker.times(visit.cell, runs))

    for _, group in itertools.groupby(missing, key=lambda visit: visit.round):
        visits = list(group)
        beside = _shared(iter([visit for visit in visits if threads_of(visit.cell[0]) == 1]))
        with ThreadPoolExecutor(len(workers)) as pool:
            try:
                for ended in [pool.submit(work, worker, beside) for worker in workers]:
                    ended.result()
            except BaseException:
                given_up.set()
                raise
        work(workers[0], iter([visit for visit in visits if threads_of(visit.cell[0]) > 1]))


class Progress:
    """How long it will still take, said now and then: a cell is as long as its batch is large and its share of a core small."""

    def __init__(self, missing: Sequence[Visit], say: Callable[[str], None]) -> None:
        self._lock = threading.Lock()
        self._say = say
        self._begun_s = time.monotonic()
        self._said_s = -math.inf
        self._left = len(missing)
        self._cost_left = self._cost = sum(_cost(visit.cell) for visit in missing)

    def begin(self, cell: Cell) -> None:
        """A cell is about to be visited."""
        with self._lock:
            now_s, done = time.monotonic(), self._cost - self._cost_left
            if now_s - self._said_s > SAY_EVERY_S:
                left_s = (now_s - self._begun_s) * self._cost_left / done if done else 0.0
                self._say(f"{self._left} visits to make" + (f", about {left_s / 60:.0f} min" if done else ""))
                self._said_s = now_s
            self._left -= 1
            self._cost_left -= _cost(cell)


def _cost(cell: Cell) -> float:
    memory_mb, batch = cell
    return batch / cores_of(memory_mb)


def _shared(items: Iterator[Visit]) -> Iterator[Visit]:
    """An iterator that several threads share: each item goes to one of them."""
    lock = threading.Lock()

    def take() -> Visit | None:
        with lock:
            return next(items, None)

    # A generator may not be entered by two threads at once; the iterator of a function may.
    return iter(take, None)
