"""The platform's helper processes: one supervisor, and below it the zygotes that instances are forked from.

    start ▶ supervisor's hello ▶ up: zygotes warm, instances start and end ▶ lost ▶ back-off ▶ start …

If the supervisor ends, the kernel kills every process below it. It is replaced until there is one again or the platform stops;
`warm` waits meanwhile, because a command without a supervisor would be lost.

A zygote is started when an instance first needs it and kept warm; unused ones of built environments are ended. A zygote that has
ended is replaced when an instance needs it next, and the one with torch at once: Shadows are forked from it, and importing torch
takes seconds. Our own Python has two zygotes, a bare one and one with torch. An environment that was built from a user's
requirements runs its author's code as soon as it is imported: as root, its zygote lives inside the sandbox of the one function
that it serves.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon_core import packets
from gnomon_core.clock import Clock
from gnomon_core.engines import is_installed
from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.launch import Sandbox
from gnomon_core.packaging import FOR_LIBRARIES
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
    """The folder of one of our packages, found without importing it."""
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
                # Ctrl-C in the gateway's terminal must not reach it: the gateway stops instances first, in order.
                start_new_session=True,
            )
        self.gone = False
        """Whether the supervisor has ended without a request."""
        self._link = PacketLink(ours, on_event, self._gone)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Event, descriptors: Sequence[int] = ()) -> None:
        """Send a command. Takes ownership of the descriptors, which are closed once they are sent."""
        self._link.send(message, descriptors)

    async def stop(self) -> None:
        """Ask the supervisor to end all processes, and return when it has."""
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


WARM_TIMEOUT_S = 120.0
MAX_FOREIGN_ZYGOTES = 8
"""Zygotes of built environments that are kept for functions without instances; the longest unused ones are ended."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python to fork instances from. With a sandbox, the zygote itself lives in it."""

    id: str
    python: str
    preload: tuple[str, ...] = ()
    sandbox: Sandbox | None = None


_GRAPH_MODULES = {
    "onnxruntime": "gnomon_runtime.engine.onnx_graph",
    "openvino": "gnomon_runtime.engine.openvino_graph",
}
"""The module that a zygote imports for each engine: 80 to 200 ms, and no thread is started."""
BARE = Environment("bare", sys.executable, ("gnomon_runtime.process",))
TORCH = Environment(
    "torch",
    sys.executable,
    (
        "numpy",
        "torch",
        *(module for engine, module in _GRAPH_MODULES.items() if is_installed(engine)),
        "gnomon_runtime.body",
        "gnomon_runtime.pair.shadow_side",
        "gnomon_runtime.pair.rehearsal",
    ),
)

Send = Callable[..., None]


@dataclass(frozen=True, slots=True)
class StartedZygote:
    """A zygote whose start was requested.

    `number` tells it from earlier ones of its id, of which the supervisor may yet have to say that they are warm or have ended.
    """

    number: int
    warm: asyncio.Future[None]

    @property
    def failed(self) -> bool:
        return self.warm.done() and (self.warm.cancelled() or self.warm.exception() is not None)


class Zygotes:
    """The supervisor's zygotes and which of them are warm. `send` sends orders to the supervisor."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._starts = 0
        self._started: dict[str, StartedZygote] = {}
        self._foreign: dict[str, None] = {}
        """Ids of zygotes in sandboxes, least recently used first."""

    def begin(self, environment: Environment) -> None:
        """Start the zygote unless it is running already."""
        if environment.sandbox is not None:
            # Removed and inserted again, so that the dictionary's order is that of the last use.
            self._foreign.pop(environment.id, None)
            self._foreign[environment.id] = None
        started = self._started.get(environment.id)
        if started is not None and not started.failed:
            return
        self._starts += 1
        started = self._started[environment.id] = StartedZygote(self._starts, asyncio.get_running_loop().create_future())
        # No task may be waiting when it fails; the next request starts another.
        started.warm.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        about = {"do": "zygote", "id": environment.id, "start": started.number}
        message = {**about, "command": command(environment), "environment": BASE_ENVIRONMENT}
        if environment.sandbox is None:
            self._send(message)
        else:
            self._send(message, [packets.sealed_file("sandbox", environment.sandbox.to_json().encode())])

    async def warm(self, environment: Environment) -> None:
        """Return when instances can be forked.

        Raises:
            GnomonError: 500 `environment_failed`.

        """
        self.begin(environment)
        try:
            # Shielded: the future is shared, and one waiter's time-out must not cancel it for the others.
            await asyncio.wait_for(asyncio.shield(self._started[environment.id].warm), WARM_TIMEOUT_S)
        except TimeoutError:
            raise _zygote_failed(environment.id, f"it was not ready after {WARM_TIMEOUT_S:.0f} s") from None

    def retire_unused(self, used: set[str]) -> None:
        """End the zygotes of built environments beyond the number that is kept."""
        idle = [zygote for zygote in self._foreign if zygote not in used]
        for zygote in idle[: max(0, len(idle) - MAX_FOREIGN_ZYGOTES)]:
            del self._foreign[zygote]
            if zygote in self._started:
                self._end(zygote, "no function used it")
            self._send({"do": "retire", "id": zygote})

    def on_warm(self, event: dict[str, Any]) -> list[str]:
        """Record that a zygote is warm. Returns the modules that it could not import."""
        started = self._current(event)
        if started is not None and not started.warm.done():
            started.warm.set_result(None)
        return list(event["problems"])

    def on_gone(self, event: dict[str, Any]) -> None:
        """Record that a zygote has ended. The next instance that needs it starts another."""
        if self._current(event) is not None:
            self._end(event["zygote"], event["reason"])

    def lost(self, reason: str) -> None:
        """Forget all zygotes: they ended with the supervisor."""
        for zygote in list(self._started):
            self._end(zygote, reason)
        self._foreign.clear()

    def _current(self, event: dict[str, Any]) -> StartedZygote | None:
        """The zygote of an event; None if the event is about a predecessor."""
        started = self._started.get(event["zygote"])
        return started if started is not None and started.number == event["start"] else None

    def _end(self, zygote: str, reason: str) -> None:
        started = self._started.pop(zygote)
        if not started.warm.done():
            started.warm.set_exception(_zygote_failed(zygote, reason))


def command(environment: Environment) -> list[str]:
    """The command line of a zygote, to which the supervisor adds its numbers."""
    script = str(Path(packages()["gnomon_runtime"], "bootstrap.py"))
    order: dict[str, Any] = {"packages": packages(), "preload": environment.preload}
    zygote = [environment.python, "-I", "-u", script, json.dumps(order)]
    if environment.sandbox is None:
        return zygote
    return [sys.executable, "-I", "-u", script, json.dumps({"packages": packages(), "then": zygote})]


def _zygote_failed(zygote: str, reason: str) -> GnomonError:
    return GnomonError(
        500, "environment_failed", f"The Python environment {zygote!r} could not be started: {reason}.", "See the log."
    )


HELLO_TIMEOUT_S = 10.0
RESTART_PAUSE_S = 0.5
"""Back-off before another supervisor where one has ended within this time of its hello; one killed later is replaced at once."""
WARM_ATTEMPTS = 3
"""The number of zygotes in a row that may end before they are warm: one may be killed, one whose imports fail always ends."""
TORCH_PAUSE_S = 5.0
"""Seconds of back-off after a zygote with torch has ended: the import takes seconds of a core, and must not keep it busy."""
TORCH_STEADY_S = 1.0
"""Seconds since a zygote was warm after which its end counts as caused from outside: it is replaced without back-off."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SupervisionListener:
    """Callbacks of the supervisor: instances that started or ended, and the end of the supervisor itself.

    `torch_wanted` is called before the zygote with torch is used, `torch_warm` once it can fork.
    """

    instance: Callable[[dict[str, Any]], None]
    torch_wanted: Callable[[], None]
    torch_warm: Callable[[], None]
    lost: Callable[[], None]


class Supervision:
    """Keeps a supervisor running, with the zygotes `at_start`. `no_isolation` says why functions are not kept apart, if so."""

    def __init__(self, at_start: Sequence[Environment], clock: Clock) -> None:
        self.zygotes = Zygotes(self.send)
        self.no_isolation: str | None = None
        self._at_start = tuple(at_start)
        self._clock = clock
        self._listener: SupervisionListener | None = None
        self._client: SupervisorClient | None = None
        self._hello: asyncio.Future[str | None] | None = None
        self._up = asyncio.Event()
        """Set while a supervisor accepts commands."""
        self._up_since_s = float("-inf")
        self._torch_warm_s = float("inf")
        self._torch_failures = 0
        """The number of zygotes with torch in a row that have ended early: the first of them may have been killed."""
        self._restarting: asyncio.Task[None] | None = None
        self._torch_start: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def pid(self) -> int:
        """The process below which everything else is."""
        assert self._client is not None, "the platform has not been started"
        return self._client.pid

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """Send the supervisor a command. It owns the descriptors."""
        assert self._client is not None, "the platform has not been started"
        self._client.send(message, descriptors or [])

    def check_isolation(self) -> None:
        """Raise where functions cannot be kept apart: GnomonError, 400 `secrets_unavailable`."""
        if self.no_isolation is not None:
            raise bad_request(
                "secrets_unavailable",
                f"This machine does not let us mount secrets for one function alone ({self.no_isolation}).",
                "Start Gnomon as root, or allow unprivileged user namespaces, or deploy the function without secrets.",
            )

    async def start(self, listener: SupervisionListener) -> None:
        """Return when a supervisor is running; its zygotes warm up in the background.

        Raises:
            GnomonError: 500 `supervisor_failed`.

        """
        self._listener = listener
        await self._start()

    async def _start(self) -> None:
        self._hello = asyncio.get_running_loop().create_future()
        client = self._client = SupervisorClient(self._on_event, self._lost)
        try:
            self.no_isolation = await asyncio.wait_for(self._hello, HELLO_TIMEOUT_S)
        except TimeoutError:
            await client.stop()
            raise _failed() from None
        if client.gone:
            # It sent its hello and ended before this coroutine resumed.
            raise _failed()
        if self.no_isolation is not None:
            _LOG.warning("functions are not isolated from each other, and secrets are refused: %s", self.no_isolation)
        for environment in self._at_start:
            self.zygotes.begin(environment)
        if TORCH in self._at_start and self._listener is not None:
            self._listener.torch_wanted()
        self._up.set()
        self._up_since_s = self._clock.now_s()

    def stop_restarting(self) -> None:
        """Start no other supervisor from now on: this one is about to be stopped."""
        self._stopping = True
        for task in (self._restarting, self._torch_start):
            if task is not None:
                task.cancel()

    async def stop(self) -> None:
        """Stop the supervisor and all its remaining processes."""
        self.stop_restarting()
        if self._client is not None:
            await self._client.stop()
        self.zygotes.lost("the platform has stopped")

    async def warm(self, environment: Environment) -> None:
        """Return when instances can be forked in this environment.

        Raises:
            GnomonError: 500 `environment_failed` or `supervisor_failed`.

        """
        try:
            await asyncio.wait_for(self._up.wait(), HELLO_TIMEOUT_S)
        except TimeoutError:
            raise _failed() from None
        if environment is TORCH and self._listener is not None:
            self._listener.torch_wanted()
        await self.zygotes.warm(environment)

    async def warm_with_retries(self, environment: Environment) -> None:
        """Return when instances can be forked; wait for a replacement if the zygote or the supervisor ends meanwhile.

        Raises:
            GnomonError: 500 `environment_failed` or `supervisor_failed`, that of the last attempt.

        """
        give_up_s = self._clock.now_s() + WARM_TIMEOUT_S
        failed = 0
        while True:
            supervisor = self._client
            try:
                await self.warm(environment)
            except GnomonError:
                # A zygote that ends with its supervisor is no sign of a broken environment.
                failed += self._client is supervisor and self._up.is_set()
                if failed >= WARM_ATTEMPTS or self._stopping or self._clock.now_s() >= give_up_s:
                    raise
            else:
                return

    def _on_event(self, event: dict[str, Any]) -> None:
        kind, listener = event["event"], self._listener
        assert listener is not None
        if kind == "hello":
            if self._hello is not None and not self._hello.done():
                self._hello.set_result(event["isolation"])
        elif kind == "warm":
            for problem in self.zygotes.on_warm(event):
                _LOG.warning("the zygote %s could not import %s", event["zygote"], problem)
            if event["zygote"] == TORCH.id:
                self._torch_warm_s = self._clock.now_s()
                listener.torch_warm()
        elif kind == "zygote_gone":
            self.zygotes.on_gone(event)
            if event["zygote"] == TORCH.id:
                self._restart_torch()
        elif kind == "coordinator":
            _LOG.info("the coordinator of epoch %s has started as process %s", event["epoch"], event["pid"])
        elif kind == "coordinator_gone":
            _LOG.error("the coordinator of epoch %s has ended and is restarted; Bodies and pairs go on", event["epoch"])
        else:
            listener.instance(event)

    def _restart_torch(self) -> None:
        steady = self._clock.now_s() - self._torch_warm_s > TORCH_STEADY_S
        self._torch_failures = 0 if steady else self._torch_failures + 1
        self._torch_warm_s = float("inf")
        pause_s = TORCH_PAUSE_S if self._torch_failures > 1 else 0.0

        async def begin() -> None:
            await self._clock.sleep(pause_s)
            if self._up.is_set():
                self.zygotes.begin(TORCH)

        if not self._stopping and (self._torch_start is None or self._torch_start.done()):
            self._torch_start = asyncio.get_running_loop().create_task(begin())

    def _lost(self) -> None:
        """Report the end of the supervisor and all its processes, and start another."""
        self._up.clear()
        if self._hello is not None and not self._hello.done():
            # A task waits for it, and starts another or gives up.
            self._hello.set_exception(_failed())
        elif not self._stopping and (self._restarting is None or self._restarting.done()):
            _LOG.error("the supervisor has ended, and all instances with it; a new one is started")
            self._restarting = asyncio.get_running_loop().create_task(self._restart())
        self.zygotes.lost("the supervisor has ended")
        assert self._listener is not None
        self._listener.lost()

    async def _restart(self) -> None:
        if self._clock.now_s() - self._up_since_s < RESTART_PAUSE_S:
            await self._clock.sleep(RESTART_PAUSE_S)
        while not self._up.is_set():
            try:
                await self._start()
            except (GnomonError, OSError) as error:
                _LOG.error("the supervisor could not be restarted, next attempt in %g s: %s", RESTART_PAUSE_S, error)
                await self._clock.sleep(RESTART_PAUSE_S)


def _failed() -> GnomonError:
    return GnomonError(500, "supervisor_failed", "The supervisor did not start.", "See the output above.")
