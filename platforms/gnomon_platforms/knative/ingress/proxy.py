"""HAProxy as a process: started with what is to be served, told of changes while it runs, reloaded where it must be.

    apply ─┬─ known names, backends enough ▶ the runtime API, in every worker ─┬─ done
           │                                                                   └─ refused ▶ a reload
           └─ others ▶ files, checked by HAProxy ─┬─ a new worker; done when no old one takes connections any more
                                                  └─ fault found ▶ what is served stays as it is

A reload hands the listening sockets over; the old worker answers what it holds, and is told of changes until it is gone. A master
that dies is started again with what was to be served last. It outlives us, so that requests do: who comes next finds its socket,
and goes on with it by a reload.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from gnomon_core.clock import Clock, WallClock
from gnomon_core.errors import GnomonError
from gnomon_platforms.knative.ingress.config import Binds, Limits, Shape
from gnomon_platforms.knative.ingress.files import CONFIGURATION, generation_of, install, refused
from gnomon_platforms.knative.ingress.maps import Names, names
from gnomon_platforms.knative.ingress.names import TAG_HEADER
from gnomon_platforms.knative.ingress.programming import (
    Command,
    Held,
    Places,
    State,
    deletion,
    ended,
    loaded,
    state,
    sweep,
    switch,
)
from gnomon_platforms.knative.ingress.routing import Routing
from gnomon_platforms.knative.ingress.runtime_api import Master, Workers

START_TIMEOUT_S = 20.0
LOOK_S = 0.02
SWEEP_S = 5.0
MASTER_SOCKET = "master.sock"
USUAL = Names(
    groups=((TAG_HEADER.lower(),),),
    headers=("knative-serving-namespace", "knative-serving-revision", "knative-serving-default-route", "k-original-host"),
)
"""What Knative itself matches and sets: known from the start, so that no reload is needed for it."""

_LOG = logging.getLogger("gnomon.ingress")


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """Where HAProxy is, keeps its files and listens. `folder` is its own, and nobody else's."""

    folder: Path
    program: str = "haproxy"
    binds: Binds = field(default_factory=Binds)
    limits: Limits = field(default_factory=Limits)


class Proxy:
    """One HAProxy. Its methods are called by one task."""

    def __init__(self, options: ProxyOptions, clock: Clock | None = None) -> None:
        self._options, self._clock = options, clock or WallClock()
        self._shape = Shape(options.folder, USUAL | Names(), 0, options.binds, options.limits)
        self._master = Master(options.folder / MASTER_SOCKET)
        self._places = Places()
        self._process: asyncio.subprocess.Process | None = None
        self._adopted: int | None = None
        self._held: Held | None = None
        self._taken: dict[str, bool] = {}
        self._recent: deque[tuple[float, State]] = deque()
        self.generation = ""
        """The configuration's, as probes are told it."""
        self.reloads = 0
        """How often a configuration was loaded, the first one included."""

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        if self._adopted is not None:
            return _lives(self._adopted)
        return self._process is not None and self._process.returncode is None

    async def takes(self, pems: Collection[str]) -> set[str]:
        """Those of these certificates that it takes. Each is tried once.

        Raises:
            GnomonError: 501 `ingress_haproxy`.

        """
        digests = {pem: hashlib.sha256(pem.encode()).hexdigest() for pem in pems}
        new = [pem for pem, digest in digests.items() if digest not in self._taken]
        bad = set(await refused(self._options.program, self._options.folder, new))
        self._taken |= {digests[pem]: pem not in bad for pem in new}
        return {pem for pem, digest in digests.items() if self._taken[digest]}

    async def apply(self, routing: Routing) -> None:
        """Serve this, and return when it is served.

        Raises:
            GnomonError: 502 `ingress_configuration`, `ingress_reload`: what was served before is served still.

        """
        grown = self._places.assign(routing.backends)
        known = self._shape.names | names(routing)
        wanted = state(routing, self._places.taken, known)
        if self.running and not grown and known == self._shape.names and self._held is not None:
            try:
                await self._tell(switch(self._shape, self._held, wanted))
            except (GnomonError, OSError) as error:
                # Halfway is nowhere: a new worker starts from the whole.
                _LOG.warning("the runtime API could not do it, so there is a reload: %s", error)
                self._held = None
                await self._load(wanted)
        else:
            await self._load(wanted)
        self._recent.append((self._clock.now_s(), wanted))

    async def sweep(self) -> bool:
        """Remove what nobody needs any more; whether there is more to remove later."""
        until_s = self._clock.now_s() - SWEEP_S
        while len(self._recent) > 1 and self._recent[1][0] <= until_s:
            self._recent.popleft()
        if self._held is None or not self._recent or not self.running:
            return False
        needed = [wanted for _, wanted in self._recent]
        await self._tell(sweep(self._shape, self._held, needed))
        for where, name in ended(self._held):
            await self._delete(where, name)
        busy = {where for where, servers in self._held.servers.items() if servers}
        self._places.keep([key for key, where in self._places.taken.items() if any(where in one.servers for one in needed)], busy)
        return len(self._recent) > 1 or bool(ended(self._held))

    async def close(self, drain_s: float = 0.0) -> None:
        """End it: take no connection any more, answer what it holds for at most `drain_s`, and go."""
        if drain_s and self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, TimeoutError):
                self._process.send_signal(signal.SIGUSR1)
                async with asyncio.timeout(drain_s):
                    await self._process.wait()
        if self._adopted is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._adopted, signal.SIGTERM)
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            await self._process.wait()
        self._process = self._held = self._adopted = None

    async def _tell(self, commands: list[Command]) -> None:
        if not commands:
            return
        workers = await self._master.workers()
        if workers.current is None:
            raise GnomonError(502, "ingress_reload", "HAProxy has no worker.")
        await self._master.tell(workers.current, commands)
        for old in workers.old:
            for command in commands:
                # It may know fewer headers, and have fewer backends; what it can do is done.
                with contextlib.suppress(OSError):
                    await self._master.ask(old, command)

    async def _delete(self, where: str, name: str) -> None:
        """Delete a server, unless it still holds something."""
        assert self._held is not None
        try:
            await self._tell([deletion(where, name)])
        except GnomonError:
            return
        del self._held.servers[where][name]

    async def _load(self, wanted: State) -> None:
        shape = replace(self._shape, names=wanted.names, backends=self._places.count)
        generation = generation_of(wanted, shape.backends, self.reloads + 1)
        await install(self._options.program, shape, wanted, generation)
        if self.running or await self._adopt():
            before = await self._master.workers()
            await self._master.reload()
            await self._until_loaded(before)
        else:
            await self._start()
        self._shape, self._held, self.generation = shape, loaded(wanted), generation
        self.reloads += 1

    async def _adopt(self) -> bool:
        """Whether an earlier process of ours has left a master that lives; from now on it is ours."""
        try:
            self._adopted = (await self._master.workers()).master
        except OSError:
            self._adopted = None
        return self._adopted is not None

    async def _start(self) -> None:
        file, socket = self._options.folder / CONFIGURATION, self._options.folder / MASTER_SOCKET
        arguments = ["-W", "-S", f"{socket},mode,600", "-f", str(file)]
        # HAProxy's own environment: nothing that it would expand, or that its children should not see.
        environment = {"PATH": os.environ.get("PATH", "")}
        self._process = await asyncio.create_subprocess_exec(
            self._options.program, *arguments, stdin=asyncio.subprocess.DEVNULL, env=environment, start_new_session=True
        )
        await self._until_loaded(Workers(None, None, (), 0))

    async def _until_loaded(self, before: Workers) -> None:
        """Wait for the new worker, and until no other takes connections.

        Raises:
            GnomonError: 502 `ingress_reload`.

        """
        give_up_s = self._clock.now_s() + START_TIMEOUT_S
        while self._clock.now_s() < give_up_s and self.running:
            with contextlib.suppress(OSError):
                now = await self._master.workers()
                if now.failed > before.failed:
                    break
                if now.current not in (None, before.current) and await self._stopped(now):
                    return
            await self._clock.sleep(LOOK_S)
        raise GnomonError(502, "ingress_reload", "HAProxy has not taken its configuration.", "Its own log says why.")

    async def _stopped(self, workers: Workers) -> bool:
        return all([await self._master.stopping(old) for old in workers.old])


def _lives(process: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
