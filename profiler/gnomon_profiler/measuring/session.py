"""A profiling run: measures cell after cell, and noisy cells again.

Each cell is in the journal before the next one begins. Cells of one number of cores are one order, so that the model is loaded
once for them. When everything has been measured once, cells whose spread is above `NOISY` are tried again; the quickest try
counts, and its spread is part of the profile.

The journal has finished cells on disk, a line each, so that a killed run continues where it stopped.

The first line is the identity of the cells: the model's files, the machine, the software and the settings. A journal with another
identity is discarded. A line that was cut off by a kill is dropped. A cell may have several lines, since
noisy ones are measured again: the quickest counts, because what disturbs a measurement only ever adds to it.

The machine of a profile: as text for people, and as a file name.

The protocol with the measuring process: an order is sent, measured cells arrive one by one.

The measuring process is another program (`python -m gnomon_runtime.measuring`), because it needs torch and this module does not,
and because an instance is a fork of such a process.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

from gnomon_core import packets
from gnomon_core.atomic_files import make_folder, replace_file
from gnomon_core.errors import GnomonError
from gnomon_core.packaging import FOR_LIBRARIES
from gnomon_profiler.child_processes import ChildProcesses
from gnomon_profiler.measuring.cells import NOISY, Cell, Plan, Subject, order_for

FORMAT = "gnomon-profile-journal/1"
Result: TypeAlias = dict[str, Any]


class Journal:
    """The cells that are finished. `identity` is what they are of."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path = path
        self._results: dict[str, list[Result]] = {}
        head = {"format": FORMAT, **identity}
        lines = _whole_lines(path)
        if not lines or lines[0] != head:
            lines = [head]
        for line in lines[1:]:
            self._results.setdefault(str(line["cell"]), []).append(dict(line["result"]))
        make_folder(path.parent)
        replace_file(path, "".join(_line(line) for line in lines), durable=True)

    def __len__(self) -> int:
        return len(self._results)

    def get(self, cell: Cell) -> Result | None:
        """The best measurement of a cell; None when there is none."""
        return min(self._results.get(cell.key, []), key=_seconds, default=None)

    def tries(self, cell: Cell) -> int:
        """The number of times that a cell has been measured."""
        return len(self._results.get(cell.key, []))

    def add(self, cell: Cell, result: Result) -> None:
        """Append a measurement; it is on disk when this returns."""
        self._results.setdefault(cell.key, []).append(result)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line({"cell": cell.key, "result": result}))
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        """Delete the journal, once the profile is written."""
        self._path.unlink(missing_ok=True)


def spread_of(result: Mapping[str, Any]) -> float:
    """The interquartile range of a latency cell relative to its median; 0 for cells of other kinds."""
    return float(result["range_s"]) / float(result["whole_s"]) if result.get("whole_s") else 0.0


def _seconds(result: Mapping[str, Any]) -> float:
    return float(result.get("whole_s", 0.0))


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    lines: list[dict[str, Any]] = []
    for text in data.splitlines(keepends=True):
        if not text.endswith(b"\n"):
            break
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines


def _line(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), sort_keys=True) + "\n"


class Measures(Protocol):
    """Carries out orders: `process.MeasuringProcess`."""

    def measure(self, order: Mapping[str, Any]) -> Iterator[dict[str, Any]]: ...


@dataclass(slots=True)
class Remaining:
    """An estimate of the remaining time, from the durations of the finished cells."""

    total_cost: float
    began_s: float
    done_cost: float = 0.0

    def after(self, cell: Cell, now_s: float) -> float:
        """Seconds left once this cell is finished."""
        self.done_cost += cell.cost
        return (now_s - self.began_s) * max(self.total_cost - self.done_cost, 0.0) / self.done_cost


class Session:
    """A profiling run. `known` cells of an earlier run are skipped; `progress` gets a line for each measured cell.

    `now_s` is a monotonic clock.
    """

    def __init__(
        self,
        subject: Subject,
        plan: Plan,
        journal: Journal,
        process: Measures,
        known: Mapping[Cell, Result] | None = None,
        *,
        progress: Callable[[str], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subject = subject
        self._plan = plan
        self._journal = journal
        self._process = process
        self._known = known or {}
        self._progress = progress
        self._now_s = now_s

    def run(self) -> dict[Cell, Result]:
        """Measure all cells. Returns each cell's best measurement, the known cells included.

        Raises:
            GnomonError: 500 `measuring_failed`; what was measured before is in the journal.

        """
        cells = list(self._plan.cells())
        missing = [cell for cell in cells if self._found(cell) is None]
        if len(missing) < len(cells):
            self._progress(f"{self._subject.label}: {len(cells) - len(missing)} of {len(cells)} cells are measured already")
        self._measure(missing)
        while noisy := self._noisy(cells):
            self._progress(f"{self._subject.label}: {len(noisy)} noisy cells are measured again")
            self._measure(noisy)
        return {**self._known, **{cell: self._result(cell) for cell in cells}}

    def _found(self, cell: Cell) -> Result | None:
        return self._journal.get(cell) or self._known.get(cell)

    def _result(self, cell: Cell) -> Result:
        result = self._found(cell)
        if result is None:
            raise GnomonError(500, "measuring_failed", f"The measuring process reported no result of {cell}.", "Try again.")
        return result

    def _noisy(self, cells: Iterable[Cell]) -> list[Cell]:
        results = [(cell, self._journal.get(cell)) for cell in cells]
        return [
            cell
            for cell, result in results
            if result is not None and spread_of(result) > NOISY and self._journal.tries(cell) < self._plan.tries
        ]

    def _measure(self, cells: Sequence[Cell]) -> None:
        remaining = Remaining(sum(cell.cost for cell in cells), self._now_s())
        finished = 0
        for _, group in groupby(cells, key=_order_key):
            together = list(group)
            measured = self._process.measure(order_for(together, self._subject, self._plan))
            for cell, result in zip(together, measured, strict=True):
                self._journal.add(cell, result)
                finished += 1
                left_s = remaining.after(cell, self._now_s())
                self._progress(
                    f"{self._subject.label}: {_result_text(cell, result)}  ({finished} of {len(cells)}, {_left(left_s)})"
                )


def _order_key(cell: Cell) -> str:
    return f"latency {cell.cores}" if cell.kind == "latency" else cell.key


def _result_text(cell: Cell, result: Result) -> str:
    if cell.kind != "latency":
        return str(cell)
    spread = spread_of(result)
    return f"{cell}: {1000 * result['whole_s']:.1f} ms ± {100 * spread:.1f} % in {result['repeats']} runs"


def _left(seconds: float) -> str:
    """Example: "about 2 min left"."""
    if seconds >= 90:  # noqa: PLR2004 - from here on minutes say enough
        return f"about {seconds / 60:.0f} min left"
    return f"about {seconds:.0f} s left"


@dataclass(frozen=True, slots=True)
class Machine:
    """The processor's name, its family and model numbers, how many CPUs we may use, and how much memory there is."""

    processor: str
    family: str
    cpus: tuple[int, ...]
    memory_gib: int
    kernel: str

    @property
    def cores(self) -> int:
        return len(self.cpus)

    @property
    def id(self) -> str:
        """The machine's name in file names; equal names mean equally fast machines. Example: "amd-epyc-25-17-2-cores"."""
        slug = re.sub(r"[^a-z0-9]+", "-", f"{self.processor} {self.family}".lower()).strip("-")
        return f"{slug}-{self.cores}-cores"

    def __str__(self) -> str:
        return f"{self.processor} ({self.family}), {self.cores} cores, {self.memory_gib} GiB, Linux {self.kernel}"


def this_machine(cpuinfo: str | None = None) -> Machine:
    """The machine that we run on. `cpuinfo` is the text of /proc/cpuinfo."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if cpuinfo is None else cpuinfo
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines()) if value}
    family = " ".join(facts[name] for name in ("cpu family", "model") if name in facts)
    return Machine(
        processor=facts.get("model name", platform.machine()).replace("(R)", "").replace("(TM)", ""),
        family=family or platform.machine(),
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        kernel=platform.release(),
    )


def software(hello: Mapping[str, str]) -> dict[str, str]:
    """Versions, and how this Python was built: the same source differs by a quarter in speed with it."""
    optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return {
        "torch": hello["torch"],
        "cpu_capability": hello["cpu_capability"],
        "python": f"{platform.python_version()}, {'optimized build' if optimized else 'built without optimizations'}",
        "gnomon": _own_version(),
    }


def _own_version() -> str:
    """Our version, and the commit where we run from a checkout."""
    try:
        released = version("gnomon")
    except PackageNotFoundError:
        released = "unknown"
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return released
    return f"{released}, commit {commit}"


MODULE = "gnomon_runtime.measuring"
BACKGROUND_NICENESS = 15
_ERROR_TAIL_BYTES = 600


class MeasuringProcess:
    """The measuring process, as a context manager. `hello` describes its machine and software.

    In the background it leaves the CPU to whatever serves: beside load its times vary, and the profile is not kept. It is one of
    `processes`, which may end it from another thread.
    """

    def __init__(self, *, background: bool = False, processes: ChildProcesses | None = None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._socket, child_socket = packets.socket_pair()
        try:
            with child_socket:
                self._process = (processes or ChildProcesses()).start(
                    [sys.executable, "-m", MODULE, str(child_socket.fileno())],
                    pass_fds=(child_socket.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stderr=self._errors,
                    env={**os.environ, **FOR_LIBRARIES},
                )
        except BaseException:
            self._socket.close()
            self._errors.close()
            raise
        if background:
            os.setpriority(os.PRIO_PROCESS, self._process.pid, BACKGROUND_NICENESS)
        self.hello: Mapping[str, Any] = {}

    def __enter__(self) -> Self:
        try:
            self.hello = self._receive()["hello"]
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def measure(self, order: Mapping[str, Any], limit_s: float | None = None) -> Iterator[dict[str, Any]]:
        """Send an order and yield its measured cells as they arrive, each no later than `limit_s` after the one before.

        Raises:
            GnomonError: 500 `measuring_failed` with what the process said, or that the limit was reached.

        """
        self._socket.settimeout(limit_s)
        packets.send(self._socket, dict(order))
        while True:
            message = self._receive()
            if "failed" in message:
                raise _failed(str(message["failed"]))
            if "done" in message:
                return
            yield message["measured"]

    def _receive(self) -> dict[str, Any]:
        try:
            message, _ = packets.receive(self._socket)
        except packets.PeerGoneError:
            self._process.wait()
            self._errors.seek(0)
            output = self._errors.read().decode(errors="replace").strip()[-_ERROR_TAIL_BYTES:]
            raise _failed(output or f"status {self._process.returncode}") from None
        except TimeoutError:
            raise _failed(f"no answer for {self._socket.gettimeout():g} s") from None
        return message

    def _end(self) -> None:
        """Kill the process; its children end with it."""
        self._socket.close()
        self._process.kill()
        self._process.wait()
        self._errors.close()


def _failed(output: str) -> GnomonError:
    return GnomonError(
        500,
        "measuring_failed",
        f"The measuring process wrote: {output}",
        "What was measured before is kept; the same command goes on from there.",
    )
