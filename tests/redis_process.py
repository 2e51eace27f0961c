"""A real Redis on a free port, which tests stop, suspend and start again with or without its data."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
import redis

from tests.waiting import eventually

needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")


class RedisProcess:
    """A Redis server that loads the data of `folder` at its start. It writes data at `save` only: a kill loses the rest."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = _free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = redis.Redis(port=self.port, decode_responses=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        eventually(self._answers, "redis-server does not answer")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def suspend(self) -> None:
        """Freeze the process: the kernel still accepts connections for it, and no request is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def save(self) -> None:
        self.client.save()

    def close(self) -> None:
        self.client.close()
        self.kill()

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
