"""HAProxy's master, over its socket: which workers there are, and commands to each of them.

A worker that was replaced goes on with the connections that it has. It is told of every change like its successor, so that the
last request on an old connection is not led by an old table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gnomon_core.errors import GnomonError
from gnomon_platforms.knative.ingress.programming import Command

TIMEOUT_S = 10.0
WORKER_FIELDS = 2


@dataclass(frozen=True, slots=True)
class Workers:
    """The process that takes new connections, those that finish their old ones, and how many reloads have failed."""

    master: int | None
    current: int | None
    old: tuple[int, ...]
    failed: int


class Master:
    """The master by its socket."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def workers(self) -> Workers:
        """Who there is.

        Raises:
            OSError: there is no master, or none that answers.

        """
        master: int | None = None
        current: int | None = None
        old: list[int] = []
        failed, section = 0, ""
        for line in (await self._ask("show proc")).splitlines():
            words = line.split()
            if line.startswith("# "):
                section = line
            elif len(words) > WORKER_FIELDS and words[1] == "master":
                master = int(words[0])
                failed = int(line.partition("failed:")[2].partition("]")[0] or 0)
            elif len(words) > WORKER_FIELDS and words[1] == "worker":
                if section == "# workers":
                    current = int(words[0])
                else:
                    old.append(int(words[0]))
        return Workers(master, current, tuple(old), failed)

    async def stopping(self, worker: int) -> bool:
        """Whether a worker takes no new connections any more; also where it is gone."""
        told = await self._ask(f"@!{worker} show info")
        return "Stopping: 1" in told.splitlines() or "Can't find" in told

    async def reload(self) -> None:
        """Ask for a new worker with the configuration as it is now. Whether it comes is seen by `workers`."""
        await self._ask("reload")

    async def tell(self, worker: int, commands: Sequence[Command]) -> None:
        """Commands to one worker, one after the other.

        Raises:
            GnomonError: 502 `ingress_refused` for the first that it does not carry out.
            OSError: there is no master.

        """
        for command in commands:
            answer = await self.ask(worker, command)
            if not _well(command, answer):
                raise GnomonError(502, "ingress_refused", f"HAProxy does not {command.text[:200]!r}: {answer[:300]}")

    async def ask(self, worker: int, command: Command) -> str:
        """What a worker answers to a command."""
        payload = f"\n{command.payload}\n" if command.payload else ""
        return await self._ask(f"@!{worker} {command.text}{payload}")

    async def _ask(self, text: str) -> str:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(str(self._socket))
            try:
                writer.write(f"{text}\n".encode())
                writer.write_eof()
                return (await reader.read()).decode("utf-8", "replace").strip()
            except ConnectionError:
                # A reload ends the connection before it answers.
                return ""
            finally:
                writer.close()


def _well(command: Command, answer: str) -> bool:
    """HAProxy says what it has done, or nothing; anything else is a refusal."""
    if command.answers == ("",):
        return not answer
    return any(expected in answer if expected else not answer for expected in command.answers)
