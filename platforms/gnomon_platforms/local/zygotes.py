"""The zygotes that instances are forked from: started when they are first needed, kept warm, and the unused ones retired.

Our own Python has two, a bare one and one with torch. An environment that was built from a user's requirements runs its author's
code as soon as it is imported: as root, its zygote lives inside the sandbox of the one function that it serves.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon_core import packets
from gnomon_core.errors import GnomonError
from gnomon_core.launch import Sandbox
from gnomon_platforms.local.supervisor_client import BASE_ENVIRONMENT, packages

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


BARE = Environment("bare", sys.executable, ("gnomon_runtime.process",))
TORCH = Environment(
    "torch",
    sys.executable,
    ("numpy", "torch", "gnomon_runtime.body", "gnomon_runtime.pair.shadow_side", "gnomon_runtime.pair.rehearsal"),
)

Send = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Started:
    """A zygote that was asked for.

    `number` tells it from earlier ones of its id, of which the supervisor may yet have to say that they are warm or have ended.
    """

    number: int
    warm: asyncio.Future[None]

    @property
    def failed(self) -> bool:
        return self.warm.done() and (self.warm.cancelled() or self.warm.exception() is not None)


class Zygotes:
    """Which zygotes there are, and which of them are warm. `send` is the supervisor's."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._starts = 0
        self._started: dict[str, Started] = {}
        self._foreign: dict[str, None] = {}
        """Ids of zygotes in sandboxes, least recently used first."""

    def begin(self, environment: Environment) -> None:
        """Start the zygote unless it is there already."""
        if environment.sandbox is not None:
            self._foreign.pop(environment.id, None)
            self._foreign[environment.id] = None
        started = self._started.get(environment.id)
        if started is not None and not started.failed:
            return
        self._starts += 1
        started = self._started[environment.id] = Started(self._starts, asyncio.get_running_loop().create_future())
        # Nobody may be waiting when it fails; whoever comes later starts another.
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
            await asyncio.wait_for(asyncio.shield(self._started[environment.id].warm), WARM_TIMEOUT_S)
        except TimeoutError:
            raise _failed(environment.id, f"it was not ready after {WARM_TIMEOUT_S:.0f} s") from None

    def retire_unused(self, used: set[str]) -> None:
        """End the zygotes of built environments beyond the number that is kept."""
        idle = [zygote for zygote in self._foreign if zygote not in used]
        for zygote in idle[: max(0, len(idle) - MAX_FOREIGN_ZYGOTES)]:
            del self._foreign[zygote]
            if zygote in self._started:
                self._end(zygote, "nobody used it")
            self._send({"do": "retire", "id": zygote})

    def told_warm(self, event: dict[str, Any]) -> list[str]:
        """A zygote is warm; returns what it could not import."""
        started = self._meant(event)
        if started is not None and not started.warm.done():
            started.warm.set_result(None)
        return list(event["problems"])

    def told_gone(self, event: dict[str, Any]) -> None:
        """A zygote has ended. The next instance that needs it starts another, where there is none yet."""
        if self._meant(event) is not None:
            self._end(event["zygote"], event["reason"])

    def lost(self, reason: str) -> None:
        """All have ended with the supervisor."""
        for zygote in list(self._started):
            self._end(zygote, reason)
        self._foreign.clear()

    def _meant(self, event: dict[str, Any]) -> Started | None:
        """The zygote that an event is about; None where it is about one before it."""
        started = self._started.get(event["zygote"])
        return started if started is not None and started.number == event["start"] else None

    def _end(self, zygote: str, reason: str) -> None:
        started = self._started.pop(zygote)
        if not started.warm.done():
            started.warm.set_exception(_failed(zygote, reason))


def command(environment: Environment) -> list[str]:
    """The command line of a zygote, to which the supervisor adds its numbers."""
    script = str(Path(packages()["gnomon_runtime"], "bootstrap.py"))
    order: dict[str, Any] = {"packages": packages(), "preload": environment.preload}
    zygote = [environment.python, "-I", "-u", script, json.dumps(order)]
    if environment.sandbox is None:
        return zygote
    return [sys.executable, "-I", "-u", script, json.dumps({"packages": packages(), "then": zygote})]


def _failed(zygote: str, reason: str) -> GnomonError:
    return GnomonError(
        500, "environment_failed", f"The Python environment {zygote!r} could not be started: {reason}.", "See the log."
    )
