"""The agent's client of the node's pool: a supervisor in a container of its own, a zygote with torch, and a coordinator.

    connect ▶ hello ▶ zygote ▶ coordinator ▶ the connected Bodies ▶ warm: fill the pool ▶ ready
    the pool's container has ended ▶ its Shadows have ended ▶ connect again

The pool listens at a socket in a folder that the pod's two containers share (`gnomon_runtime.pool_host`).

A Shadow runs on the CPUs that the fewest Shadows have.
The pool's container has a request and no limit, so a Shadow has its cores at once, by affinity. Bodies on the node are not bound
to CPUs; the kernel moves them away from those that a Shadow keeps busy.

    4 CPUs    s1 gets two: 0 1    s2 two: 2 3    s3 one: 0    s1 ends    s4 two: 1, which is free, and 0, as busy as 2 or 3
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon_core.coordinator_client import CoordinatorClient
from gnomon_core.packet_link import PacketLink

ZYGOTE = "torch"
RETRY_S = 0.25
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
PRELOAD = ("numpy", "torch", "gnomon_runtime.body", "gnomon_runtime.pair.shadow_side", "gnomon_runtime.pair.rehearsal")

_LOG = logging.getLogger("gnomon.node")
Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PoolEvents:
    """Callbacks for a new pool, its end, an event of the coordinator, and the end of a process of the pool."""

    started: Callable[[], None]
    lost: Callable[[], None]
    coordinator_event: Callable[[Event], None]
    ended: Callable[[str, str], None]


class Pool:
    """`containers` are kept in reserve, up to `most` after bursts. Runs on an event loop."""

    def __init__(self, path: Path, containers: int, most: int, events: PoolEvents) -> None:
        self._path = path
        self._size = {"size": containers, "most": max(containers, most)}
        self._events = events
        self._link: PacketLink | None = None
        self._coordinator: CoordinatorClient | None = None
        self._python = ""
        self._environment: Mapping[str, str] = {}
        """The environment of processes in the pool's container, whose libraries are not ours."""
        self._starts = 0
        """The number of zygotes started, in all pools: events about an earlier zygote are ignored."""
        self._pause: asyncio.TimerHandle | None = None
        """The timer of the back-off before the next zygote."""
        self._epoch = 0
        """The epoch of the newest coordinator: Bodies outlive the pool, and obey no older coordinator."""
        self._ended = asyncio.Event()
        self._lost = asyncio.Event()
        self.warm = False
        """Whether containers can be forked."""
        self.coordinated = False
        """Whether a coordinator takes requests."""
        self.containers = 0

    async def run(self) -> None:
        """Connect to the pool, and reconnect whenever it has ended, until closed."""
        while not self._ended.is_set():
            connection = _connected(self._path)
            if connection is None:
                await asyncio.sleep(RETRY_S)
                continue
            self._lost.clear()
            self._begin(connection)
            await self._lost.wait()

    def close(self) -> None:
        """Close the connection, which ends every process of the pool."""
        self._ended.set()
        self._drop()

    def to_supervisor(self, message: Event, descriptors: Sequence[int] = ()) -> None:
        """Send to the supervisor; dropped while there is no pool. Takes ownership of the descriptors."""
        if self._link is None:
            for descriptor in descriptors:
                os.close(descriptor)
        else:
            self._link.send(dict(message), descriptors)

    def request(self, message: Event, descriptors: Sequence[int] = ()) -> None:
        """Send a request to the coordinator; dropped while there is no pool."""
        if self._coordinator is not None:
            self._coordinator.send(message, descriptors)

    def _begin(self, connection: socket.socket) -> None:
        self._link = PacketLink(connection, self._supervisor_event, self._gone)

    def _hello(self, python: str, libraries: Mapping[str, str]) -> None:
        """Handle the supervisor's hello: its container has Python at this path, and its libraries need these variables."""
        self._python, self._environment = python, {**ENVIRONMENT, **libraries}
        self._start_zygote()
        self._coordinator = CoordinatorClient(self.to_supervisor, self._coordinator_event, self._environment, self._epoch, python)
        self._events.started()

    def _start_zygote(self) -> None:
        order = json.dumps({"packages": {}, "preload": PRELOAD})
        self._starts += 1
        command = [self._python, "-I", "-u", "-m", "gnomon_runtime.bootstrap", order]
        about = {"do": "zygote", "id": ZYGOTE, "start": self._starts}
        self.to_supervisor({**about, "command": command, "environment": self._environment})

    def _supervisor_event(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "hello":
            self._hello(str(event["python"]), event["libraries"])
        elif kind == "warm":
            for problem in event["problems"]:
                _LOG.error("the pool's zygote could not import all: %s", problem)
            self.warm = True
            self._fill()
        elif kind == "zygote_gone" and event["start"] == self._starts:
            _LOG.error("the pool's zygote has ended: %s", event["reason"])
            self.warm = False
            self._pause = asyncio.get_running_loop().call_later(RETRY_S, self._start_zygote)
        elif kind == "coordinator":
            self._epoch = int(event["epoch"])
        elif kind == "coordinator_gone":
            _LOG.warning("coordinator %s has ended with status %s; the next one takes over", event["epoch"], event["status"])
            self.coordinated = False
        elif kind == "gone":
            status = event.get("status")
            self._events.ended(str(event["id"]), str(event.get("reason") or f"it ended with status {status}"))

    def _coordinator_event(self, event: Event) -> None:
        if event["event"] == "ready":
            self.coordinated = True
            self._fill()
        elif event["event"] == "pool":
            self.containers = int(event["containers"])
        self._events.coordinator_event(event)

    def _fill(self) -> None:
        # Called when the zygote is warm and when a coordinator is ready, in either order: the later call takes effect.
        if self.warm:
            self.request({"do": "pool", "zygote": ZYGOTE, **self._size})

    def _gone(self) -> None:
        _LOG.error("the pool has ended")
        self._drop()
        self._events.lost()

    def _drop(self) -> None:
        self.warm = self.coordinated = False
        self.containers = 0
        if self._pause is not None:
            self._pause.cancel()
        if self._coordinator is not None:
            self._coordinator.close()
        if self._link is not None:
            self._link.close()
        self._coordinator = self._link = None
        self._lost.set()


def _connected(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    return connection


class Cpus:
    """The CPUs that the pool may use, and their holders."""

    def __init__(self, cpus: Sequence[int]) -> None:
        self._cpus = tuple(sorted(cpus))
        self._allocations: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._cpus)

    def allocate(self, holder: str, cores: int) -> tuple[int, ...]:
        """Allocate CPUs to this holder, instead of its present ones; all CPUs if there are fewer than requested."""
        self.release(holder)
        load = Counter(cpu for cpus in self._allocations.values() for cpu in cpus)
        # The CPUs with the fewest holders first: if more cores are allocated than exist, Shadows share CPUs evenly.
        found = tuple(sorted(sorted(self._cpus, key=lambda cpu: (load[cpu], cpu))[:cores]))
        self._allocations[holder] = found
        return found

    def release(self, holder: str) -> None:
        """Release the holder's CPUs. Does nothing if it has none."""
        self._allocations.pop(holder, None)

    @property
    def allocated(self) -> int:
        """The cores of all Shadows together: the CPU request that the pool's pod should have."""
        return sum(len(cpus) for cpus in self._allocations.values())
