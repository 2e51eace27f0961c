"""The parts of every benchmark: the programs that it starts, its command line, and where a system answers.

Program   a process whose output goes to a file, and whose end leaves nothing behind
Pace      how long to measure: thoroughly by default; with --quick briefly, to see that the benchmark works
Endpoint  a function of a system under test, asked in the same way for every kind of load

Quick results are written to `.cache/benchmarks` and are never the published ones.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.workloads import body_of, content_type
from gnomon_core.errors import GnomonError
from gnomon_core.packaging import FOR_LIBRARIES

START_LIMIT_S = 120.0
STOP_LIMIT_S = 20.0
EVERY_S = 0.02


class ProgramFailedError(RuntimeError):
    """A program ended early, or was not ready in time."""


class Program:
    """A running program, leader of a session of its own."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.output = folder / "output.txt"
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                list(command),
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def pause(self) -> None:
        """Stop the program's processes until `resume`: an idle server may poll, and take the core from the one under load."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused program go on."""
        os.killpg(self.process.pid, signal.SIGCONT)

    def wait_ready(self, url: str, limit_s: float = START_LIMIT_S) -> None:
        """Return when a GET of this address is answered 200.

        Raises:
            ProgramFailedError: it has ended, or the time is over; with the last lines of its output.

        """
        end_s = time.monotonic() + limit_s
        while not _answers(url):
            if self.process.poll() is not None or time.monotonic() > end_s:
                raise ProgramFailedError(f"{self.process.args!r} is not ready:\n{self.tail()}")
            time.sleep(EVERY_S)

    def tail(self) -> str:
        """The last lines of its output."""
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-20:])

    def stop(self) -> None:
        """Ask it to end, and after a while end it and everything in its session."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_LIMIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def running(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[Program]:
    """A program for the length of a block."""
    folder.mkdir(parents=True, exist_ok=True)
    program = Program(command, folder, environment or {})
    try:
        yield program
    finally:
        program.stop()


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def _answers(url: str) -> bool:
    host, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=2)
    try:
        connection.request("GET", f"/{path}")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()


def as_instance() -> None:
    """Begin this program again with what an instance's environment tells libraries, where its own tells them something else."""
    if any(os.environ.get(name) != value for name, value in FOR_LIBRARIES.items()):
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **FOR_LIBRARIES})


def ended_well(main: Callable[[], object], command: str = "") -> None:
    """Run a benchmark. Ctrl-C and SIGTERM unwind it, so that what it started is ended; a second one does not disturb that.

    A `GnomonError`, which the caller of this command can correct, ends it with one line. Without the command's name the error has
    its traceback: in a measurement it is a bug.
    """

    def interrupt(_number: int, _frame: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        # Load generators among them: their pools, in any thread, would wait until the whole plan is sent.
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Interrupted.")
    except GnomonError as error:
        if not command:
            raise
        sys.exit(f"{command}: {error}")


ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
QUICK_RESULTS = ROOT / ".cache" / "benchmarks"


@dataclass(frozen=True, slots=True)
class Pace:
    """`repeats` of `load_s` of closed-loop load each; `step_s` of open-loop load for each rate that is tried."""

    quick: bool
    repeats: int
    load_s: int
    step_s: float
    overload_s: float
    cycles: int
    starts: int
    results: Path


THOROUGH = Pace(quick=False, repeats=7, load_s=3, step_s=5.0, overload_s=60.0, cycles=20, starts=10, results=RESULTS)
QUICK = Pace(quick=True, repeats=3, load_s=2, step_s=2.0, overload_s=12.0, cycles=3, starts=3, results=QUICK_RESULTS)


def start(main: Callable[[Pace], object], description: str | None) -> None:
    """Run a benchmark as its command line asks."""
    ended_well(lambda: main(pace_of(pace_parser(description or "").parse_args())))


def pace_parser(description: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure briefly, to see that it works; results are not kept")
    return parser


def pace_of(arguments: argparse.Namespace) -> Pace:
    return QUICK if arguments.quick else THOROUGH


def step(text: str) -> None:
    """Say what happens now."""
    print(f"· {text}", flush=True)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A function of one system under test."""

    system: str
    url: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})

    @staticmethod
    def of(system: str, url: str, workload: str) -> Endpoint:
        """A function that takes the workload's own body."""
        return Endpoint(system, url, body_of(workload), {"Content-Type": content_type(workload)})

    def ask(self) -> bytes:
        """Send one request and return its answer.

        Raises:
            OSError: there is none, or it is not 200.

        """
        request = urllib.request.Request(self.url, self.body, dict(self.headers), method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            data: bytes = answer.read()
        return data

    def wait_for_answer(self, limit_s: float = 60.0) -> bytes:
        """The first answer of a function that is just starting.

        Raises:
            OSError: none came in time.

        """
        end_s = time.monotonic() + limit_s
        while True:
            try:
                return self.ask()
            except OSError:
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.05)
