"""The platform's end of the supervisor: start the process, send commands, hear events. Nothing here waits or decides."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gnomon_core import packets

Event = dict[str, Any]
END_S = 10.0
BASE_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    # Libraries that start threads when they are imported would make a zygote's forks hang.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""The environment of the supervisor and the zygotes. Nothing of ours is inherited."""


def package_folder(name: str) -> str:
    """Where one of our packages is, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"the package {name} is not installed")
    return str(Path(spec.submodule_search_locations[0]).resolve())


def packages() -> dict[str, str]:
    """The packages that an instance needs."""
    return {name: package_folder(name) for name in ("gnomon_core", "gnomon_runtime")}


class SupervisorClient:
    """A running supervisor. `on_event` gets its reports; `on_lost` is called once if it ends without being asked."""

    def __init__(self, on_event: Callable[[Event], None], on_lost: Callable[[], None]) -> None:
        self._on_event = on_event
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._outbox: deque[tuple[Event, tuple[int, ...]]] = deque()
        self._socket, theirs = packets.socket_pair()
        self._socket.setblocking(False)  # noqa: FBT003 - the signature is socket's
        self._open = True
        with theirs:
            os.set_inheritable(theirs.fileno(), True)  # noqa: FBT003 - the signature is os's
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-m", "gnomon_runtime.supervisor", str(theirs.fileno())],
                env=BASE_ENVIRONMENT,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._loop.add_reader(self._socket.fileno(), self._readable)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Event, descriptors: Sequence[int] = ()) -> None:
        """Send a command. The descriptors belong to us from now on and are closed once they are on their way."""
        self._outbox.append((message, tuple(descriptors)))
        self._flush()

    async def stop(self) -> None:
        """Let the supervisor end everything, and return when it has."""
        self._release()
        try:
            await asyncio.wait_for(asyncio.to_thread(self._process.wait), END_S)
        except TimeoutError:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    def _flush(self) -> None:
        while self._outbox:
            message, descriptors = self._outbox[0]
            try:
                if self._open:
                    packets.send(self._socket, message, descriptors)
            except BlockingIOError:
                self._loop.add_writer(self._socket.fileno(), self._flush)
                return
            except packets.PeerGoneError:
                # The reader learns it as well, and says so.
                pass
            self._outbox.popleft()
            for descriptor in descriptors:
                os.close(descriptor)
        if self._open:
            self._loop.remove_writer(self._socket.fileno())

    def _readable(self) -> None:
        while self._open:
            try:
                event, _ = packets.receive(self._socket)
            except BlockingIOError:
                return
            except packets.PeerGoneError:
                self._release()
                self._loop.run_in_executor(None, self._process.wait)
                self._on_lost()
                return
            self._on_event(event)

    def _release(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._flush()
