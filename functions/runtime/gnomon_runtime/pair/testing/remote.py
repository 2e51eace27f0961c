"""A Shadow as its image serves it: `functions/shadow` under gunicorn, on a port of this machine or of a network namespace."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import gnomon_runtime
from gnomon_runtime.pair.testing.instances import MAX_BATCH, OK, Child, Task

HANDLER = Path(str(gnomon_runtime.__file__)).parents[2] / "shadow"
"""The Shadow function, in the source tree."""
TOKEN = "a-token-of-the-shadow"  # noqa: S105 - it guards nothing but a test
START_S = 60.0


@dataclass(frozen=True)
class Pod:
    """The environment of a Shadow's instance: a model of a repository on disk, and its address."""

    repository: Path
    reference: str
    blocks: Sequence[int]
    host: str = "127.0.0.1"
    namespace: str = ""
    cpus: tuple[int, ...] = ()
    cores: int = 1

    def variables(self, port: int) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "OMP_NUM_THREADS": "1",
            "GNOMON_PORT": str(port),
            "GNOMON_BATCH_TOKEN": TOKEN,
            "GNOMON_HANDLER_FOLDER": str(HANDLER),
            "GNOMON_MODELS": str(self.repository),
            "GNOMON_MODEL": self.reference,
            "GNOMON_BLOCKS": ",".join(map(str, self.blocks)),
            "GNOMON_CORES": str(self.cores),
            "GNOMON_MAX_BATCH": str(MAX_BATCH),
            "GNOMON_QUIET_S": "0.1",
        }


class ServedShadow:
    """The instance, ready. `url` and TOKEN are what its Body needs."""

    def __init__(self, folder: Path, pod: Pod) -> None:
        port = _free_port()
        self.url = f"http://{pod.host}:{port}"
        self.log = folder / f"shadow-{port}.log"
        self._inside = ["ip", "netns", "exec", pod.namespace] if pod.namespace else []
        command = [
            *self._inside, sys.executable, "-m", "gunicorn", "--config", "python:gnomon_runtime.gunicorn_config",
            "--bind", f"{pod.host}:{port}", "gnomon_runtime.http_app:create_app()",
        ]  # fmt: skip
        before = os.sched_getaffinity(0)
        with self.log.open("wb") as log:
            # A process inherits the CPUs of who starts it.
            os.sched_setaffinity(0, pod.cpus or before)
            try:
                self._process = subprocess.Popen(command, env=pod.variables(port), cwd=folder, stdout=log, stderr=log)
            finally:
                os.sched_setaffinity(0, before)
        self._await(pod.host, port)

    @property
    def worker(self) -> int:
        """The process that computes."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text(encoding="ascii").split()
        return int(children[0])

    def signal(self, number: int) -> None:
        os.kill(self.worker, number)

    def end(self) -> int:
        """Tell it to end as a platform does. Its exit status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(START_S)

    def kill(self) -> None:
        """End all of it at once."""
        for pid in (self._process.pid, self.worker):
            os.kill(pid, signal.SIGKILL)
        self._process.wait(START_S)

    def _await(self, host: str, port: int) -> None:
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s and self._process.poll() is None:
            try:
                with closing(http.client.HTTPConnection(host, port, timeout=5)) as connection:
                    connection.request("GET", "/_/ready")
                    if connection.getresponse().status == OK:
                        return
            except OSError:
                time.sleep(0.05)
        self._process.kill()
        self._process.wait(START_S)
        raise RuntimeError(self.log.read_text(encoding="utf-8"))


def order_remote(body: Child, shadow: str, task: Task, url: str, token: str = TOKEN) -> None:
    """Tell a Body to pair with the Shadow at a URL. What comes of it, "paired" or "unpaired", it says later."""
    what = {"blocks": list(task.blocks), "split": list(task.split), "shadow_cores": 1}
    expected_ms = [list(row) for row in task.expected_ms]
    body.order("pair", (), {"shadow": shadow, "url": url, "token": token, "expected_ms": expected_ms, **what})


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
