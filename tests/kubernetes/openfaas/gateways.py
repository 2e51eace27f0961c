"""`gnomon serve --platform openfaas` as a process, as an operator starts it beside a cluster."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import urllib3

ROOT = Path(__file__).resolve().parents[3]
GNOMON = [sys.executable, "-c", "from gnomon_cli.main import main; main()"]
START_LIMIT_S = 120.0
AGAIN_LIMIT_S = 60.0


@dataclass
class Gateway:
    """A gateway process on a state folder of its own; `start` it again to see what the cluster has kept."""

    kubeconfig: Path
    state: Path
    port: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    client: urllib3.PoolManager = field(default_factory=lambda: urllib3.PoolManager(maxsize=32, retries=False))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *options: str) -> str:
        """The line that it says when it serves, or stands by."""
        self.state.mkdir(parents=True, exist_ok=True)
        command = [*GNOMON, "serve", "--platform", "openfaas", "--kubeconfig", str(self.kubeconfig), "--port", str(self.port)]
        command += ["--state", str(self.state), *options]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENFAAS_", "POD_"))}
        environment = {**kept, **self.environment}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=self.state, env=environment)
        line = self.line()
        found = re.search(r"(?:serves on http://[0-9.]+:|stands by on port )(\d+)", line)
        assert found, f"it said {line!r}"
        self.port = int(found[1])
        return line

    def line(self) -> str:
        """The next line of its output."""
        assert self.process is not None
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_LIMIT_S)
        assert readable, f"it said nothing within {START_LIMIT_S:g} s"
        return self.process.stdout.readline()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Let it stop, or kill it; its exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(90)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.client.clear()
        return status

    def call(self, method: str, path: str, body: Any = None) -> urllib3.BaseHTTPResponse:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.request(method, self.url + path, body=data, timeout=60)

    def status(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = self.call("GET", f"/system/function/{name}").json()
        return document


class Load:
    """Threads that ask a function for echoes, one after the other, each of them often enough.

    A `patient` one comes again where a gateway that stops has told it to, or has closed the connection.
    """

    def __init__(self, url: str, threads: int, each: int, *, patient: bool = False) -> None:
        self._patient = patient
        self.answers: Counter[str] = Counter()
        self._url, self._each = url, each
        self._lock = threading.Lock()
        self._pool = urllib3.PoolManager(maxsize=threads, retries=False)
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def count(self) -> int:
        with self._lock:
            return sum(self.answers.values())

    def join(self) -> Counter[str]:
        """How often which answer has come: `right`, or what it was instead."""
        for thread in self._threads:
            thread.join()
        self._pool.clear()
        return self.answers

    def _run(self, number: int) -> None:
        for turn in range(self._each):
            outcome = self._ask(f"{number}-{turn}".encode())
            with self._lock:
                self.answers[outcome] += 1

    def _ask(self, body: bytes) -> str:
        end_s = time.monotonic() + AGAIN_LIMIT_S
        while True:
            try:
                answer = self._pool.request("POST", self._url, body=body, timeout=60)
            except urllib3.exceptions.HTTPError as error:
                outcome, again = f"{type(error).__name__}: {error}", True
            else:
                outcome = "right" if (answer.status, answer.data) == (200, body) else f"{answer.status} {answer.data[:200]!r}"
                again = "Retry-After" in answer.headers
            if not (again and self._patient) or time.monotonic() > end_s:
                return outcome
            time.sleep(0.05)
