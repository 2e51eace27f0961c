"""The processes that capture, convert and measure models, which take minutes: a server that stops ends them at once.

Each has a session of its own, so that Ctrl-C in a terminal reaches only this process, which decides what becomes of them.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gnomon_core.errors import stopping


class ChildProcesses:
    """Processes that are started here until `end`, which kills them all and may be called by another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: set[subprocess.Popen[Any]] = set()
        self._ended = False

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process, with options of `subprocess.Popen`.

        Raises:
            GnomonError: 503 `stopping`, after `end`.

        """
        with self._lock:
            self._raise_if_ended()
            process = subprocess.Popen(command, start_new_session=True, **options)
            self._started = {earlier for earlier in self._started if earlier.poll() is None} | {process}
        return process

    @contextmanager
    def running(self, command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
        """Start a process, and wait for its end at the end of the block, which kills it if it raises."""
        with self.start(command, **options) as process:
            try:
                yield process
            except BaseException:
                process.kill()
                raise

    def end(self) -> None:
        """Kill all processes, and start no more."""
        with self._lock:
            self._ended = True
            for process in self._started:
                process.kill()

    def raise_if_ended(self) -> None:
        """Refuse what a process that was killed has left.

        Raises:
            GnomonError: 503 `stopping`, after `end`.

        """
        with self._lock:
            self._raise_if_ended()

    def _raise_if_ended(self) -> None:
        if self._ended:
            raise stopping()
