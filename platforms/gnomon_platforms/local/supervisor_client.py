"""The platform's end of the supervisor: start the process, send commands, hear events. Nothing here waits or decides."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gnomon_core import packets
from gnomon_core.libraries import FOR_LIBRARIES
from gnomon_core.packet_link import PacketLink

Event = dict[str, Any]
END_S = 10.0
BASE_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    **FOR_LIBRARIES,
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
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        ours, theirs = packets.socket_pair()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)  # noqa: FBT003 - the signature is os's
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-m", "gnomon_runtime.supervisor", str(theirs.fileno())],
                env=BASE_ENVIRONMENT,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.gone = False
        """It has ended without being asked."""
        self._link = PacketLink(ours, on_event, self._gone)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Event, descriptors: Sequence[int] = ()) -> None:
        """Send a command. The descriptors belong to us from now on and are closed once they are on their way."""
        self._link.send(message, descriptors)

    async def stop(self) -> None:
        """Let the supervisor end everything, and return when it has."""
        self._link.close()
        try:
            await asyncio.wait_for(asyncio.to_thread(self._process.wait), END_S)
        except TimeoutError:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    def _gone(self) -> None:
        self.gone = True
        self._loop.run_in_executor(None, self._process.wait)
        self._on_lost()
