"""The ingress class as a process, as its image runs it, with an HAProxy and sockets of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from gnomon_platforms.knative.ingress.config import Binds
from gnomon_platforms.knative.ingress.proxy import MASTER_SOCKET
from gnomon_platforms.knative.ingress.runtime_api import Master

END_LIMIT_S = 60.0


class IngressProcess:
    """Begun with these options besides those that say where it listens; again, if it was killed."""

    def __init__(self, kubeconfig: Path, *options: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="gnomon-"))
        names = ("http", "https", "local", "probe-http", "probe-local")
        self.binds = Binds(*(f"unix@{self._folder}/{name}.sock" for name in names))
        given = [f"--{name.replace('_', '-')}={getattr(self.binds, name)}" for name in self.binds.__dataclass_fields__]
        self._command = [*given, f"--folder={self.proxy}", f"--kubeconfig={kubeconfig}", *options]
        self._process: asyncio.subprocess.Process | None = None

    @property
    def proxy(self) -> Path:
        """HAProxy's folder."""
        return self._folder / "proxy"

    async def begin(self) -> None:
        """Start it."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gnomon_platforms.knative.ingress", *self._command
        )

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Let it end, or kill it alone: HAProxy goes on then. Its status."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        return await asyncio.wait_for(self._process.wait(), END_LIMIT_S)

    async def close(self) -> None:
        """Nothing of it is left."""
        await self.end(signal.SIGKILL)
        async with asyncio.timeout(END_LIMIT_S):
            while await self._ends_proxy():  # noqa: ASYNC110 - nobody tells when
                await asyncio.sleep(0.05)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _ends_proxy(self) -> bool:
        """Tell HAProxy to end; whether there is one still. During a reload it neither says its number nor hears that."""
        try:
            master = (await Master(self.proxy / MASTER_SOCKET).workers()).master
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True
        if master is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(master, signal.SIGTERM)
        return True


@contextlib.asynccontextmanager
async def ingress_process(kubeconfig: Path, *options: str) -> AsyncIterator[IngressProcess]:
    """One for the length of a block."""
    made = IngressProcess(kubeconfig, *options)
    await made.begin()
    try:
        yield made
    finally:
        await made.close()
