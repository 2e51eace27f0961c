"""Programs as functions: one process per request, as OpenFaaS's classic watchdog runs them.

The request's body is the program's standard input, its output the answer; the rest of the request is in the environment
(`Http_Method`, `Http_Query`, `Http_Path` and one `Http_<Header>` per header). Members of a batch run side by side, and so do
batches, as many as `gnomon/concurrency` says. A program that
fails answers 500, one that takes longer than `exec_timeout` 408, both as the watchdog does.

Read from the function's environment: `fprocess`, `exec_timeout`, `combine_output` (true: the error output is part of the answer),
`content_type`, `cgi_headers`.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from gnomon_core.launch import HANDLER_CONCURRENCY, Launch
from gnomon_core.units import parse_duration_s
from gnomon_core.wire import Frame, Kind, Member, same_for_all

READ_BYTES = 64 * 1024
MOST_OUTPUT_BYTES = 512 << 20
"""As the largest body of a request. A program that prints without end would take all memory until its time is over."""
OVERRAN = (408, "Killed process.")
"""As the watchdog answers for a program that takes longer than `exec_timeout`."""
DEFAULT_DESTINATION = "https://google.com"
"""The default destination of theaxer/redirector."""


@dataclass(slots=True)
class Request:
    """A member of an events batch, taken apart."""

    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    body: bytes | memoryview

    @staticmethod
    def of(member: Member) -> Request:
        """The request that a member holds."""
        method, path, query, *lines = [*member.meta.decode("latin-1").split("\n"), "", "", ""]
        pairs = [line.split(": ", 1) for line in lines if ": " in line]
        return Request(method, path, query, [(name, value) for name, value in pairs], member.body)

    def header(self, name: str) -> str:
        """The first value of a header; empty without one."""
        return next((value for key, value in self.headers if key.lower() == name), "")


def request_environment(request: Request) -> dict[str, str]:
    """The variables by which the classic watchdog tells a program about its request."""
    variables: dict[str, str] = {}
    for name, value in request.headers:
        canonical = "_".join(part.capitalize() for part in name.split("-"))
        if canonical != "Transfer_Encoding":
            variables.setdefault(f"Http_{canonical}", value)
    chunked = request.header("transfer-encoding")
    length = "-1" if chunked else str(len(request.body))
    variables |= {"Http_Method": request.method, "Http_ContentLength": length, "Http_Content_Length": length}
    if chunked:
        variables["Http_Transfer_Encoding"] = chunked
    if request.query:
        variables["Http_Query"] = request.query
    if request.path:
        variables["Http_Path"] = request.path
    return {name: value for name, value in variables.items() if "\0" not in value}


@dataclass(slots=True)
class Run:
    """A running process: the input that is still unwritten, and its output.

    `refusal` is the status and the reason that it was killed with.
    """

    process: subprocess.Popen[bytes]
    started_s: float
    unwritten: memoryview
    output: bytearray = field(default_factory=bytearray)
    errors: bytearray = field(default_factory=bytearray)
    refusal: tuple[int, str] | None = None


class ProcessApplication:
    """Runs `fprocess` for each request. It takes no options."""

    def __init__(self, launch: Launch) -> None:
        environment = dict(launch.environment)
        self._command = environment.get("fprocess", "").split()
        if not self._command:
            raise ValueError("The function names no process: deploy it with envProcess (fprocess in stack.yml).")
        # Checked before the instance is ready, so that a misspelt program fails the deployment and not each request.
        if shutil.which(self._command[0], path=environment.get("PATH", os.defpath)) is None:
            raise ValueError(
                f"The program {self._command[0]!r} of fprocess (envProcess) was not found or is not executable: "
                "correct fprocess, or install the program where the function runs."
            )
        self._environment = environment
        self._concurrency = launch.concurrency or HANDLER_CONCURRENCY
        self._children = _Children()
        self._timeout_s = parse_duration_s(environment.get("exec_timeout") or "0")
        self._combine = environment.get("combine_output", "true").lower() not in {"false", "0"}
        self._content_type = environment.get("content_type", "")
        self._describe = environment.get("cgi_headers", "true").lower() not in {"false", "0"}

    def hello(self) -> Mapping[str, Any]:
        return {"kind": "process", "command": self._command, "concurrency": self._concurrency}

    def resize(self, cores: int) -> None:
        """Do nothing: the processes inherit the instance's CPUs."""

    def run(self, batch: Frame) -> Frame:
        """Answer every member, all at once. Called by several threads at once, up to `concurrency`."""
        requests = [Request.of(member) for member in batch.members]
        runs = [self._start(request) for request in requests]
        self._attend([run for run in runs if isinstance(run, Run)])
        members = [
            self._answer(request, run) if isinstance(run, Run) else _failed(500, str(run))
            for request, run in zip(requests, runs, strict=True)
        ]
        self._children.collect([run.process.pid for run in runs if isinstance(run, Run)])
        return Frame(Kind.RESULT, batch.batch_id, batch.epoch, members=members)

    def _start(self, request: Request) -> Run | OSError:
        log("Forking fprocess.")
        environment = self._environment | (request_environment(request) if self._describe else {})
        try:
            process = self._children.start(
                lambda: subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT if self._combine else subprocess.PIPE,
                    env=environment,
                    process_group=0,
                )
            )
        except OSError as error:
            log(str(error))
            return error
        return Run(process, time.monotonic(), memoryview(request.body))

    def _attend(self, runs: list[Run]) -> None:
        """Feed and drain every process until all have closed their output, and collect them."""
        with selectors.DefaultSelector() as selector:
            for run in runs:
                _register(selector, run.process.stdin, selectors.EVENT_WRITE, run)
                _register(selector, run.process.stdout, selectors.EVENT_READ, run)
                _register(selector, run.process.stderr, selectors.EVENT_READ, run)
            while selector.get_map():
                timeout_s = min((self._left_s(run) for run in runs if run.refusal is None), default=math.inf)
                for key, _ in selector.select(None if timeout_s == math.inf else timeout_s):
                    _advance(selector, key)
                for run in runs:
                    if run.refusal is None and self._left_s(run) == 0:
                        self._kill(run, OVERRAN)
                    if run.refusal is None and len(run.output) + len(run.errors) > MOST_OUTPUT_BYTES:
                        self._kill(run, (500, f"The output has more than {MOST_OUTPUT_BYTES} bytes."))
        for run in runs:
            # The process may have closed its output and still be running.
            try:
                run.process.wait(None if self._timeout_s == 0 else self._left_s(run) + 0.01)
            except subprocess.TimeoutExpired:
                self._kill(run, OVERRAN)
                run.process.wait()

    def _left_s(self, run: Run) -> float:
        return max(0.0, run.started_s + self._timeout_s - time.monotonic()) if self._timeout_s else math.inf

    def _kill(self, run: Run, refusal: tuple[int, str]) -> None:
        """End a process with everything that it started and that may hold its output open."""
        log(f"Killing process: {' '.join(self._command)}")
        run.refusal = refusal
        run.output.clear()
        del run.errors[:-READ_BYTES]
        os.killpg(run.process.pid, signal.SIGKILL)

    def _answer(self, request: Request, run: Run) -> Member:
        duration_s = time.monotonic() - run.started_s
        if run.errors:
            log(f"stderr: {run.errors.decode(errors='replace')}")
        if run.refusal is not None:
            return _failed(*run.refusal)
        status = run.process.returncode
        if status != 0:
            reason = f"exit status {status}" if status > 0 else f"signal: {-status}"
            log(reason)
            return _failed(500, reason, bytes(run.output))
        log(f"Wrote {len(run.output)} Bytes - Duration: {duration_s:f}s")
        content_type = self._content_type or request.header("content-type") or "text/plain; charset=utf-8"
        meta = f"Content-Type: {content_type}\nX-Duration-Seconds: {duration_s:f}"
        return Member(200, 1, meta.encode("latin-1", "replace"), bytes(run.output))


class RedirectApplication:
    """Answers 302 to the address in the variable `destination`, as theaxer/redirector does."""

    def __init__(self, launch: Launch) -> None:
        self._destination = launch.environment.get("destination") or DEFAULT_DESTINATION
        if "\n" in self._destination or "\r" in self._destination:
            raise ValueError("The variable destination must be one line.")

    def hello(self) -> Mapping[str, Any]:
        return {"kind": "redirect", "destination": self._destination}

    def resize(self, cores: int) -> None:
        """Do nothing: redirects use no threads."""

    def run(self, batch: Frame) -> Frame:
        member = Member(302, 1, f"Location: {self._destination}".encode("latin-1", "replace"), b"")
        return same_for_all(batch, member)


def log(text: str) -> None:
    """Write a line to the function's log, with the watchdog's time stamp."""
    sys.stderr.write(f"{datetime.now().astimezone():%Y/%m/%d %H:%M:%S} {text}\n")
    sys.stderr.flush()


def _failed(status: int, reason: str, output: bytes = b"") -> Member:
    return Member(status, 1, b"Content-Type: text/plain; charset=utf-8", reason.encode() + b"\n" + output)


def _register(selector: selectors.BaseSelector, pipe: IO[bytes] | None, events: int, run: Run) -> None:
    if pipe is not None:
        os.set_blocking(pipe.fileno(), False)
        selector.register(pipe, events, run)


def _advance(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    """A step of one pipe: write a part of the body, or read a part of the output."""
    run: Run = key.data
    pipe: Any = key.fileobj
    if pipe is run.process.stdin:
        try:
            run.unwritten = run.unwritten[os.write(key.fd, run.unwritten[:READ_BYTES]) :] if run.unwritten else run.unwritten
        except BrokenPipeError:
            # A program may exit or close its input without reading it all: not an error.
            run.unwritten = memoryview(b"")
        if run.unwritten:
            return
    else:
        data = os.read(key.fd, READ_BYTES)
        (run.output if pipe is run.process.stdout else run.errors).extend(data)
        if data:
            return
    selector.unregister(pipe)
    pipe.close()


class _Children:
    """Child processes: those that answer requests, and orphans of theirs, which this subreaper has inherited."""

    def __init__(self) -> None:
        self._ours: set[int] = set()
        self._starting = threading.Lock()

    def start(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Start a process that its caller waits for."""
        # Without the lock, `collect` of another thread could reap a short program before it is in `_ours`: `Popen` would then
        # report exit status 0 for it, whatever it was.
        with self._starting:
            process = start()
            self._ours.add(process.pid)
        return process

    def collect(self, ended: Iterable[int]) -> None:
        """Reap other children that have ended; those in `ended` have been waited for already."""
        with self._starting:
            self._ours.difference_update(ended)
            for pid in _children() - self._ours:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def _children() -> set[int]:
    """The children of this process, whichever of its threads began them."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.update(map(int, (task / "children").read_text().split()))
    return found
