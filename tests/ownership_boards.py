"""Implementations of `OwnershipBoard` without a cluster: in memory for one process, and in a folder for several processes."""

from __future__ import annotations

import asyncio
import fcntl
import json
from collections.abc import Callable, Collection
from pathlib import Path

from gnomon_core.atomic_files import replace_file
from gnomon_core.errors import GnomonError
from gnomon_core.ownership import OwnershipMap

LOOK_S = 0.05


class MemoryBoard:
    """A board for replicas in one process. A test that creates a replica adds its address to `listening`."""

    def __init__(self) -> None:
        self.listening: set[str] = set()
        self.newest: OwnershipMap | None = None
        self._watchers: list[Callable[[OwnershipMap], None]] = []

    async def read(self) -> OwnershipMap | None:
        return self.newest

    async def publish(self, new: OwnershipMap) -> bool:
        if not new.follows(self.newest):
            return False
        self.newest = new
        for changed in list(self._watchers):
            changed(new)
        return True

    def watch(self, changed: Callable[[OwnershipMap], None]) -> Callable[[], None]:
        self._watchers.append(changed)
        if self.newest is not None:
            changed(self.newest)
        return lambda: self._watchers.remove(changed)

    def addresses(self) -> Collection[str]:
        return frozenset(self.listening)


class FileBoard:
    """A board in a folder: `map.json`, replaced whole, and a file for each replica that says where it listens."""

    def __init__(self, folder: Path, look_s: float = LOOK_S) -> None:
        self._map, self._lock, self._replicas = folder / "map.json", folder / "lock", folder / "replicas"
        self._look_s = look_s
        self._replicas.mkdir(parents=True, exist_ok=True)

    async def read(self) -> OwnershipMap | None:
        return await asyncio.to_thread(self._read)

    async def publish(self, new: OwnershipMap) -> bool:
        return await asyncio.to_thread(self._publish, new)

    def watch(self, changed: Callable[[OwnershipMap], None]) -> Callable[[], None]:
        watching = asyncio.get_running_loop().create_task(self._watch(changed))
        return lambda: _cancel(watching)

    def addresses(self) -> Collection[str]:
        return frozenset(path.read_text() for path in self._replicas.iterdir() if not path.name.startswith("."))

    def announce(self, identity: str, address: str) -> None:
        """Register the address of a replica."""
        replace_file(self._replicas / identity, address, durable=False)

    def withdraw(self, identity: str) -> None:
        """Remove the address of a replica."""
        (self._replicas / identity).unlink(missing_ok=True)

    def _read(self) -> OwnershipMap | None:
        try:
            return OwnershipMap.from_json(json.loads(self._map.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise GnomonError(503, "map_unreadable", f"{self._map} cannot be read: {error}.", "Remove it.", 1.0) from None

    def _publish(self, new: OwnershipMap) -> bool:
        with self._lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not new.follows(self._read()):
                return False
            replace_file(self._map, json.dumps(new.to_json()), durable=False)
            return True

    async def _watch(self, changed: Callable[[OwnershipMap], None]) -> None:
        last_change = -1
        while True:
            try:
                changed_ns = self._map.stat().st_mtime_ns
            except FileNotFoundError:
                changed_ns = -1
            if changed_ns != last_change and (newest := await self.read()) is not None:
                last_change = changed_ns
                changed(newest)
            await asyncio.sleep(self._look_s)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
