"""The process that measures, as a conversation: an order goes out, measured cells come back one by one.

It is another program (`python -m gnomon_runtime.measuring`) because it needs torch and this part does not, and because an
instance is a fork of such a process. It gets a session of its own: Ctrl-C reaches the one who talks to it, not it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from gnomon_core import packets
from gnomon_core.errors import GnomonError
from gnomon_core.libraries import FOR_LIBRARIES

MODULE = "gnomon_runtime.measuring"
_LAST_WORDS_BYTES = 600


class MeasuringProcess:
    """The process while it is needed, as a context manager. `hello` says what it runs on."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._socket, theirs = packets.socket_pair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,
                env={**os.environ, **FOR_LIBRARIES},
            )
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

    def measure(self, order: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """What comes of an order, as it comes.

        Raises:
            GnomonError: 500 `measuring_failed` with what the process said.

        """
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
            said = self._errors.read().decode(errors="replace").strip()[-_LAST_WORDS_BYTES:]
            raise _failed(said or f"status {self._process.returncode}") from None
        return message

    def _end(self) -> None:
        """Its children end with it."""
        self._socket.close()
        self._process.kill()
        self._process.wait()
        self._errors.close()


def _failed(said: str) -> GnomonError:
    return GnomonError(
        500,
        "measuring_failed",
        f"The measuring process said: {said}",
        "What was measured before is kept; the same command goes on from there.",
    )
