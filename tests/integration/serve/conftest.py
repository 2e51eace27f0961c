"""`gnomon serve` as a process, its functions, and callers that look at each answer until they are told to stop."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
import urllib3

from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[3]
GNOMON = [sys.executable, "-c", "from gnomon_cli.main import main; main()"]
START_LIMIT_S = 60.0


def terminate(process: subprocess.Popen[str]) -> int:
    """End a process of which only standard output is read, unless it has ended. Its exit code."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    code = process.wait(60)
    assert process.stdout is not None
    process.stdout.close()
    return code


@dataclass
class Serving:
    """A gateway process on its own state folder; `start` it again to see what it kept."""

    state: Path
    url: str = ""
    process: subprocess.Popen[str] | None = None
    client: urllib3.PoolManager = field(default_factory=lambda: urllib3.PoolManager(maxsize=64))

    def start(self, *options: str) -> None:
        # Without models torch is not needed, and importing it takes four seconds of CPU at each start.
        pool = () if "--models" in options else ("--pool", "0")
        command = [*GNOMON, "serve", "--port", "0", "--state", str(self.state), "--cores", "8", *pool, *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=self.state.parent)
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_LIMIT_S)
        found = re.search(r"http://[0-9.:]*\d", self.process.stdout.readline()) if readable else None
        assert found, f"gnomon serve said nothing within {START_LIMIT_S} s"
        self.url = found[0]

    def kill(self) -> None:
        """SIGKILL, as the kernel does when memory is short."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> int:
        assert self.process is not None
        return terminate(self.process)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> urllib3.BaseHTTPResponse:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.request(method, self.url + path, body=data, headers=named, timeout=60, retries=False, redirect=False)

    def deploy(self, name: str, process: str = "cat", *, method: str = "POST", **fields: Any) -> urllib3.BaseHTTPResponse:
        document = {"service": name, "image": "functions/alpine:latest", "envProcess": process, **fields}
        return self.call(method, "/system/functions", document)

    def status(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = self.call("GET", f"/system/function/{name}").json()
        return document

    def remove_functions(self) -> None:
        for function in self.call("GET", "/system/functions").json():
            self.call("DELETE", "/system/functions", {"functionName": function["name"]})

    def instances(self) -> list[int]:
        """The process ids below the gateway that hold an instance or a zygote."""
        assert self.process is not None
        return _descendants(self.process.pid)

    def running(self, module: str) -> list[int]:
        """The process ids below the gateway that run this Python module."""
        return [pid for pid in self.instances() if module.encode() in _command(pid)]


@contextlib.contextmanager
def started(state: Path, *options: str) -> Iterator[Serving]:
    """A gateway for the length of a block, which may end or kill it itself."""
    gateway = Serving(state)
    gateway.start(*options)
    try:
        yield gateway
    finally:
        assert gateway.process is not None
        if gateway.process.poll() is None:
            gateway.stop()
        elif gateway.process.stdout is not None:
            gateway.process.stdout.close()
        gateway.client.clear()


@pytest.fixture(scope="module")
def one_for_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A start takes some seconds of CPU, so tests that leave the gateway running share one."""
    with started(tmp_path_factory.mktemp("serve") / "state") as gateway:
        yield gateway


@pytest.fixture
def serving(one_for_all: Serving) -> Iterator[Serving]:
    """The shared gateway; the test's functions are removed after it. Names stay in its metrics and logs: take fresh ones."""
    yield one_for_all
    one_for_all.remove_functions()


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[Serving]:
    """A gateway of the test's own, for tests that stop, kill or configure it."""
    with started(tmp_path / "state") as gateway:
        yield gateway


def _command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        queue += children.get(queue.pop(), [])
        found = queue + found
    return sorted(set(found))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


Ask = Callable[[int, int], str]
"""Asks for caller number … the thing number …, and says "ok" of a right answer, of any other what it was."""


def echoing(serving: Serving, name: str) -> Ask:
    """A token that must come back."""

    def ask(caller: int, number: int) -> str:
        token = f"{caller}-{number}".encode()
        answer = serving.call("POST", f"/function/{name}", token)
        return "ok" if (answer.status, answer.data) == (200, token) else f"{answer.status} {answer.data[:200]!r}"

    return ask


class Load:
    """Callers until `stop` or the end of a block. `answered` grows with every answer; `stop` says how many of each kind."""

    def __init__(self, ask: Ask, callers: int = 4) -> None:
        self._ask = ask
        self.answered = 0
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(callers)
        self._callers = [self._pool.submit(self._run, caller) for caller in range(callers)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _run(self, caller: int) -> Counter[str]:
        seen: Counter[str] = Counter()
        while not self._ended.is_set():
            seen[self._ask(caller, seen.total())] += 1
            self.answered += 1
        return seen

    def more(self, count: int) -> None:
        """Wait for so many more answers."""
        goal = self.answered + count
        eventually(lambda: self.answered >= goal, "too few answers to mean anything")

    def stop(self) -> Counter[str]:
        self._ended.set()
        total: Counter[str] = Counter()
        for caller in self._callers:
            total += caller.result()
        self._pool.shutdown()
        return total
