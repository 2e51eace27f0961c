"""Service times of a layer program under 46 processor quotas × 20 batches, from at most 27 of the 920 cells.

    python -m benchmarks.regression [--quick] [--model NAME] [--period-ms MS] [--workers N] [--for-s SECONDS] [--afresh]

The quotas are those of Lambda's memory sizes when BATCH was published: 128 to 3,008 MB in steps of 64 MB, 0.07 to 1.70 cores at
1,769 MB for each. They are set on a control group, so that the benchmark needs root or a delegated part of the tree. As on Lambda
an instance has as many threads as it has cores or parts of one: one up to 1,769 MB, two beyond. The goal is a mean error of 2 %
on the cells that were not trained on (BATCH, Section VI-B).

A machine is not the same an hour later. Therefore each cell is visited once in each of five rounds, in random order, for two
runs, and its time is the median over all rounds: a slow moment falls on all cells alike. Cells that the regression is trained on
are visited three times in a round, because all others rest on them.

The machine should do nothing else. A run takes about an hour and a half; --workers 2 measures two cells of one thread at once,
each on a core of its own, in three quarters of an hour. Two virtual cores slow each other down, by 5 to 7 % on one machine, and
all cells of one thread alike. Visits are kept in .cache/benchmarks: --for-s 500 ends after so many seconds, and the same command
goes on from there, also another day. Results are written after the last visit; before that the run prints what the visits so far
say.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import torch

from benchmarks.gnomon import MODELS
from benchmarks.programs import QUICK_RESULTS, ROOT, ended_well, pace_of, pace_parser, step
from benchmarks.report import Figure, processor, write
from gnomon_core.atomic_files import replace_file
from gnomon_core.errors import GnomonError
from gnomon_core.lambda_pricing import MB_PER_CORE
from gnomon_core.packaging import FOR_LIBRARIES, jemalloc
from gnomon_planner.service_time import MAX_MEASURED_SHARE, Measurement, ServiceModel, cells_to_measure, fit_service_times
from gnomon_profiler.add import ensure_model
from gnomon_profiler.repository import DirectoryRepository

MEMORIES_MB = tuple(range(128, 3009, 64))
BATCHES = tuple(range(1, 21))
ORDER = 17
TRAINED_VISITS = 3
Cell: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Visit:
    """One measurement of a cell in one round, and its number among all of them."""

    number: int
    round: int
    cell: Cell


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells, and which of them are trained on."""

    memories_mb: tuple[int, ...]
    batches: tuple[int, ...]
    trained: tuple[Cell, ...]

    @staticmethod
    def of(memories_mb: Sequence[int], batches: Sequence[int], share: float) -> Grid:
        cells = cells_to_measure(memories_mb, batches, share, core_size=MB_PER_CORE)
        return Grid(tuple(memories_mb), tuple(batches), tuple((int(memory), batch) for memory, batch in cells))

    @property
    def cells(self) -> list[Cell]:
        """All cells."""
        return [(memory, batch) for memory in self.memories_mb for batch in self.batches]

    def visits(self, rounds: int) -> list[Visit]:
        """All visits of this many rounds in the order of measurement, which is fixed."""
        found: list[Visit] = []
        for number in range(rounds):
            cells = self.cells + list(self.trained) * (TRAINED_VISITS - 1)
            random.Random(ORDER + number).shuffle(cells)
            found += [Visit(len(found) + place, number, cell) for place, cell in enumerate(cells)]
        return found


def cores_of(memory_mb: int) -> float:
    """The cores that Lambda gives a function of this memory size."""
    return memory_mb / MB_PER_CORE


def threads_of(memory_mb: int) -> int:
    """The threads on which an instance of that memory size computes."""
    return math.ceil(memory_mb / MB_PER_CORE)


@dataclass(frozen=True, slots=True)
class Times:
    """Runs of one cell, in seconds, and the processor time that they took."""

    seconds: tuple[float, ...]
    core_s: tuple[float, ...]

    def __add__(self, others: Times) -> Times:
        return Times(self.seconds + others.seconds, self.core_s + others.core_s)

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The interquartile range relative to the median."""
        quarters = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (quarters[2] - quarters[0]) / self.median_s

    @property
    def uncertainty(self) -> float:
        """Half of the 95 % interval of the median, by order statistics, relative to it."""
        ordered, count = sorted(self.seconds), len(self.seconds)
        rank = max(0, math.floor(count / 2.0 - 0.98 * math.sqrt(count)))
        return (ordered[count - 1 - rank] - ordered[rank]) / 2.0 / self.median_s


class VisitJournal:
    """Visits on disk, a line each behind a line that says what they are of; one that was cut off by a kill is dropped."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path = path
        self._visits: dict[int, tuple[Visit, Times]] = {}
        lines = _whole_lines(path)
        if not lines or lines[0] != dict(identity):
            lines = [dict(identity)]
        for line in lines[1:]:
            self._take(line)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, "".join(json.dumps(line) + "\n" for line in lines), durable=False)

    def add(self, visit: Visit, times: Times) -> None:
        """Keep a visit; it is on disk when this returns."""
        line = {**asdict(visit), **asdict(times)}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._take(line)

    def missing(self, visits: Iterable[Visit]) -> list[Visit]:
        """The visits without a result."""
        return [visit for visit in visits if visit.number not in self._visits]

    def cells(self, rounds: Container[int] | None = None) -> dict[Cell, Times]:
        """The results of each cell, in all rounds or in some."""
        found: dict[Cell, Times] = {}
        for visit, times in self._visits.values():
            if rounds is None or visit.round in rounds:
                found[visit.cell] = found.get(visit.cell, Times((), ())) + times
        return found

    def _take(self, line: Mapping[str, Any]) -> None:
        memory, batch = line["cell"]
        visit = Visit(line["number"], line["round"], (memory, batch))
        self._visits[visit.number] = visit, Times(tuple(line["seconds"]), tuple(line["core_s"]))


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    try:
        data = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in data.splitlines(keepends=True) if line.endswith("\n")]


GOAL = 0.02
SHARE_OF_95 = 0.95
MANY = 3
"""One in so many cells, with all batches among them: far more than a regression is meant to have. What they leave is noise."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A model, and its relative errors on cells that it has not seen."""

    model: ServiceModel
    errors: dict[Cell, float]

    @property
    def mean(self) -> float:
        return statistics.fmean(abs(error) for error in self.errors.values())


def judged(grid: Grid, kept: VisitJournal, *, whole: float | None = MB_PER_CORE, trained: Sequence[Cell] = ()) -> Judged:
    """The model of the grid's trained cells, or of those given, against the medians of all others that are there."""
    found = kept.cells()
    trained = trained or grid.trained
    points = [Measurement(memory, batch, found[memory, batch].median_s) for memory, batch in trained]
    model = fit_service_times(points, core_size=whole)
    others = [cell for cell in grid.cells if cell in found and cell not in trained]
    return Judged(model, {cell: _predicted_s(model, cell) / found[cell].median_s - 1.0 for cell in others})


def _predicted_s(model: ServiceModel, cell: Cell) -> float:
    """The model's service time in seconds; 0 where the model has no positive time, which counts as an error of 100 %."""
    try:
        return model.seconds(*cell)
    except GnomonError:
        return 0.0


def figures(grid: Grid, kept: VisitJournal, rounds: int, model: str, how: str) -> list[Figure]:
    """The figures after so many rounds: the claim, what limits it, and the error of a model that ignores threads."""
    found, plain = judged(grid, kept), judged(grid, kept, whole=None)
    many = sorted(kept.cells())[::MANY]
    worst = max(found.errors, key=lambda cell: abs(found.errors[cell]))
    magnitudes = sorted(abs(error) for error in found.errors.values())
    fewest = min(len(times.seconds) for times in kept.cells().values())
    said = (
        f"{model}, {len(grid.trained)} of {len(grid.cells)} cells trained, {len(found.errors)} others; medians of {fewest} runs "
        f"in {rounds} rounds, of those trained of {TRAINED_VISITS} times as many; {how}; {found.model.shape}, "
        f"{len(found.model.powers)} coefficients"
    )
    found_figures = [
        Figure("mean_error", found.mean, "relative", GOAL, "<=", "met" if found.mean <= GOAL else "missed", said),
        Figure("error_p95", magnitudes[int(SHARE_OF_95 * (len(magnitudes) - 1))], "relative"),
        Figure("worst_error", abs(found.errors[worst]), "relative", detail=f"a batch of {worst[1]} at {worst[0]} MB"),
        Figure(
            "expected_error",
            found.model.error,
            "relative",
            detail="mean error by leaving out trained cells, and sizes between others",
        ),
        Figure("mean_error_without_threads", plain.mean, "relative", detail="one smooth surface over one and two threads"),
        Figure("mean_error_of_many", judged(grid, kept, trained=many).mean, "relative", detail=f"of {len(many)} cells trained"),
        *_repeatability(kept, rounds),
    ]
    for name, cells in _parts(found.errors):
        found_figures.append(Figure(f"mean_error, {name}", _mean(found.errors, cells), "relative", detail=f"{len(cells)} cells"))
    return found_figures


def table(kept: VisitJournal) -> str:
    """Every measured cell as CSV."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("memory_mb", "batch", "median_s", "spread", "runs", "core_s"))
    for (memory, batch), times in sorted(kept.cells().items()):
        core_s = statistics.median(times.core_s)
        rows.writerow((memory, batch, f"{times.median_s:.6f}", f"{times.spread:.4f}", len(times.seconds), f"{core_s:.6f}"))
    return text.getvalue()


def _repeatability(kept: VisitJournal, rounds: int) -> list[Figure]:
    """The repeatability of the medians."""
    every = kept.cells().values()
    found = [
        Figure(
            "spread_of_runs",
            statistics.fmean(times.spread for times in every),
            "relative",
            detail="mean interquartile range of a cell's runs",
        ),
        Figure(
            "uncertainty",
            statistics.fmean(times.uncertainty for times in every),
            "relative",
            detail="mean half width of a median's 95 % interval",
        ),
    ]
    early, late = kept.cells(range(rounds // 2)), kept.cells(range(rounds - rounds // 2, rounds))
    apart = [late[cell].median_s / early[cell].median_s - 1.0 for cell in early.keys() & late.keys()]
    if apart:
        said = (
            f"mean distance of a cell's median in the last {rounds // 2} rounds from that in the first; "
            f"{statistics.fmean(apart):+.3g} with its sign"
        )
        found.append(Figure("repeatability", statistics.fmean(map(abs, apart)), "relative", detail=said))
    return found


def _parts(errors: dict[Cell, float]) -> Sequence[tuple[str, list[Cell]]]:
    """Errors by part of the range."""
    parts = [
        ("up to a quarter of a core", [cell for cell in errors if cell[0] <= MB_PER_CORE / 4]),
        ("up to a core", [cell for cell in errors if MB_PER_CORE / 4 < cell[0] <= MB_PER_CORE]),
        ("two threads", [cell for cell in errors if cell[0] > MB_PER_CORE]),
    ]
    return [(name, cells) for name, cells in parts if cells]


def _mean(errors: dict[Cell, float], cells: Sequence[Cell]) -> float:
    return statistics.fmean(abs(errors[cell]) for cell in cells)


LEAST_US = 1000
"""The kernel takes no shorter quota and no shorter period."""
NO_BOUND_V1, NO_BOUND_V2 = "-1", "max"
EMPTY_LIMIT_S = 5.0


class NoQuotaError(RuntimeError):
    """The machine has no cgroup in which processor time can be limited."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The folder for new cgroups, and whether its files are version 2's."""

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
    """The folder for a new cgroup, from /proc/mounts and /proc/self/cgroup: below ours; version 1 if it has the controller."""
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
        command = [sys.executable, "-m", "benchmarks.regression_worker", str(program), str(weights), str(core)]
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
        """The times of `runs` runs on a busy instance: a batch of one under the quota precedes them."""
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
    workers: Sequence[Worker],
    missing: Sequence[Visit],
    kept: VisitJournal,
    *,
    runs: int,
    end_s: float,
    say: Callable[[str], None],
) -> None:
    """Make the visits that are missing, of so many runs each, until all are made or until `end_s` of the monotonic clock.

    Cells of one thread are taken by all workers side by side, each of which has a core of its own; the others by the first alone,
    at the end of a round. Whatever ends it before, an interruption or a worker that fails, the others end with their cells.
    """
    remaining, given_up = RemainingTime(missing, say), threading.Event()

    def work(worker: Worker, queue: Iterator[Visit]) -> None:
        for visit in queue:
            if time.monotonic() >= end_s or given_up.is_set():
                return
            remaining.begin(visit.cell)
            kept.add(visit, worker.times(visit.cell, runs))

    for _, group in itertools.groupby(missing, key=lambda visit: visit.round):
        visits = list(group)
        shared_visits = _shared(iter([visit for visit in visits if threads_of(visit.cell[0]) == 1]))
        with ThreadPoolExecutor(len(workers)) as pool:
            try:
                for ended in [pool.submit(work, worker, shared_visits) for worker in workers]:
                    ended.result()
            except BaseException:
                given_up.set()
                raise
        work(workers[0], iter([visit for visit in visits if threads_of(visit.cell[0]) > 1]))


class RemainingTime:
    """Prints the remaining time from time to time: a cell's time grows with its batch size and with 1/(its share of a core)."""

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


MODEL = "efficientnet-lite0"
PERIOD_MS = 20.0
ROUNDS, RUNS = 5, 2
"""Rounds of each cell; ten runs in all."""
QUICK_ROUNDS = 1
QUICK_GRID = ((442, 885, 1769, 1856, 2560, 3008), (1, 2, 3, 4), 0.7)


def main(arguments: argparse.Namespace) -> None:
    pace = pace_of(arguments)
    grid = Grid.of(*(QUICK_GRID if pace.quick else (MEMORIES_MB, BATCHES, MAX_MEASURED_SHARE)))
    if (os.cpu_count() or 1) * MB_PER_CORE < max(grid.memories_mb):
        raise NoQuotaError(f"{max(grid.memories_mb)} MB are more cores than this machine has")
    entry = ensure_model(DirectoryRepository(MODELS), arguments.model, progress=step)
    name = f"{entry.name}@{entry.version}"
    identity = {
        "model": name,
        "program": entry.sha256["program.json"],
        "machine": f"{os.cpu_count()} × {processor()}",
        "torch": torch.__version__,
        "period_ms": arguments.period_ms,
        "runs": RUNS,
        "workers": arguments.workers,
        "allocator": "jemalloc" if jemalloc() else "glibc",
    }
    path = QUICK_RESULTS / f"regression_{'quick_' if pace.quick else ''}{name.replace(':', '_').replace('/', '_')}.jsonl"
    if arguments.afresh or pace.quick:
        path.unlink(missing_ok=True)
    kept = VisitJournal(path, identity)
    visits = grid.visits(QUICK_ROUNDS if pace.quick else ROUNDS)
    if missing := kept.missing(visits):
        step(f"{name}: measuring; what is there is kept in {path}")
        with contextlib.ExitStack() as stack:
            workers = []
            for core in range(arguments.workers):
                quota = stack.enter_context(Quota(round(1000 * arguments.period_ms), number=core))
                worker = stack.enter_context(Worker(entry.program, entry.weights, quota, core))
                worker.settle(grid.batches)
                workers.append(worker)
            end_s = time.monotonic() + arguments.for_s
            measure(workers, missing, kept, runs=RUNS, end_s=end_s, say=step)
    how = f"{arguments.period_ms:g} ms periods, {identity['allocator']}, {arguments.workers} at once"
    conclude(grid, kept, visits, (name, how), pace.results)


def conclude(grid: Grid, kept: VisitJournal, visits: Sequence[Visit], said: tuple[str, str], folder: Path) -> None:
    """Write what all visits say, or tell what those that were made do. `said`: which model, and how it was measured."""
    missing = len(kept.missing(visits))
    cells = kept.cells()
    if any(cell not in cells for cell in grid.trained) or len(cells) == len(grid.trained):
        step(f"{missing} visits are still to be made. Run it again.")
        return
    found = figures(grid, kept, visits[-1].round + 1, *said)
    if not missing:
        runs = min(len(times.seconds) for times in cells.values())
        write("regression", found, repeats=runs, packages=("gnomon", "torch", "numpy"), folder=folder)
        (folder / "regression_cells.csv").write_text(table(kept), encoding="utf-8")
        return
    for figure in found:
        step(f"so far: {figure.key} {figure.value:.4g}  {figure.detail}")
    step(f"{missing} visits are still to be made. Run it again; nothing was written yet.")


def _options() -> argparse.Namespace:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--model", default=MODEL, help=f"as `gnomon models add` names it; default {MODEL}")
    parser.add_argument("--period-ms", type=float, default=PERIOD_MS, help=f"of the quota; default {PERIOD_MS:g}")
    parser.add_argument(
        "--workers", type=int, default=1, help="cells of one thread to measure at once, each on a core; default 1"
    )
    parser.add_argument("--for-s", type=float, default=float("inf"), help="measure for so long, and go on another time")
    parser.add_argument("--afresh", action="store_true", help="forget what is kept")
    return parser.parse_args()


def _main() -> None:
    try:
        main(_options())
    except NoQuotaError as error:
        sys.exit(f"{error}.")


if __name__ == "__main__":
    ended_well(_main)
