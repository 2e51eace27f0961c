"""The process on each node: the CSI plugin, the Bodies' sockets, the pool, and the platform's API.

    kubelet ─ CSI ▶ csi ▶ volumes ─ pod_sockets ▶ bodies ─┐
    platform ─ HTTP ▶ api ▶ shadows ──────────────────────┴▶ pool (another container): supervisor, zygote, coordinator, Shadows
    Bodies of other nodes ─ HTTP ▶ pair_listener ─────────┘

All of the agent's state can be rebuilt: records of volumes are on disk, Bodies reconnect, the platform repeats its requests. When
the agent ends, the pool ends with it, and Bodies serve alone until the next agent has started. The agent exits after the pods
that are terminated at the same time (`ExitDelay`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from gnomon_coordinator.node.api import ChangeFeed, Epochs, NodeApi, epoch_file
from gnomon_coordinator.node.bodies import Bodies
from gnomon_coordinator.node.csi import CsiPlugin
from gnomon_coordinator.node.pair_listener import PairListener
from gnomon_coordinator.node.pool import Cpus, Pool, PoolEvents
from gnomon_coordinator.node.shadows import NodeShadows
from gnomon_coordinator.node.volumes import NAME, Volumes
from gnomon_core.coordination import NODE_PORT, PAIR_PORT
from gnomon_core.errors import GnomonError

KUBELET = Path("/var/lib/kubelet")
END_S = 2.0
"""Seconds that requests in flight on the platform's port may take after SIGTERM."""
CHECK_S = 0.25
"""Seconds between checks whether the terminating pods have gone."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Paths, addresses and sizes. Paths of the kubelet's are the same in the container as on the node; a port 0 is any."""

    node: str
    kubelet: Path = KUBELET
    pool: Path = Path("/run/gnomon/pool.sock")
    models: Path = Path("/models")
    host: str = "127.0.0.1"
    port: int = NODE_PORT
    pair_port: int = PAIR_PORT
    token: str | None = None
    containers: int = 1
    most: int = 4
    tls: ssl.SSLContext | None = None
    stay_s: float = 0.0
    """The most seconds that the agent keeps serving terminating pods after SIGTERM."""

    @property
    def state(self) -> Path:
        """The agent's own folder on the node."""
        return self.kubelet / "plugins" / NAME


SETTLED_S = 40.0
"""Seconds without any change after which pods count as staying. Knative lets a pod drain for half a minute before its Body is
told."""


class ExitDelay:
    """Decides when an agent may exit after SIGTERM: after the pods that end at the same time, and after `longest_s` at most.

    A kubelet ends a pod with our volume by asking the driver to remove the volume. Where an installation is deleted as a whole,
    its functions' pods and their node's driver get SIGTERM in the same second, and a driver that exits first leaves pods that
    are `Terminating` for ever, and their namespaces with them. The agent reads no API server and does not know why it is to
    end. It sees which pods have volumes, and which of them have a connected Body:

        no volume                                               exit
        a volume whose Body has gone, or never connected        its pod ends, most likely: stay
        volumes whose Bodies are all connected                  an update, or pods that drain: stay until nothing changes

    and in any case no longer than the operator says, which is less than the pod's own grace.

    Worked example, 50 s at most: three Bodies drain, one disconnects after 2 s and its volume goes after 3 s, the others after
    41 s; the agent exits with the last volume. In an update the three stay where they are, and the agent exits after 40 s.
    """

    def __init__(self, now_s: float, longest_s: float, settled_s: float = SETTLED_S) -> None:
        self._until_s = now_s + longest_s
        self._settled_s = settled_s
        self._changed_s = now_s
        self._seen: tuple[frozenset[str], frozenset[str]] | None = None

    def may_exit(self, now_s: float, volumes: Collection[str], bodies: Collection[str]) -> bool:
        """True if the agent may exit, by the uids of pods with a `volumes` entry and of pods with a connected Body."""
        observed = frozenset(volumes), frozenset(bodies)
        if observed != self._seen:
            self._seen, self._changed_s = observed, now_s
        if not volumes or now_s >= self._until_s:
            return True
        return observed[0] <= observed[1] and now_s - self._changed_s >= self._settled_s


class Agent:
    """The agent of a node. Made and used on an event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.changes = ChangeFeed()
        events = PoolEvents(self._pool_started, self._pool_lost, self._coordinator_event, self._process_ended)
        self.pool = Pool(settings.pool, settings.containers, settings.most, events)
        self.bodies = Bodies(self.pool.to_supervisor, self.changes.changed)
        self.cpus = Cpus(sorted(os.sched_getaffinity(0)))
        self.shadows = NodeShadows(self.pool, self.bodies, self.cpus, settings.models, self.changes.changed)
        state = settings.state
        self.volumes = Volumes(settings.kubelet / "pods", state / "volumes", self.bodies.connected, self.bodies.volume_removed)
        registration = settings.kubelet / "plugins_registry" / f"{NAME}-reg.sock"
        self._csi = CsiPlugin(settings.node, self.volumes, state / "csi.sock", registration)
        api = NodeApi(self.shadows, self.changes, Epochs(epoch_file(state, settings.token)), self.state, settings.token)
        self._runner = web.AppRunner(api.application(), access_log=None, shutdown_timeout=END_S)
        self._pair_listener = PairListener(self.shadows)
        self._pool_task: asyncio.Task[None] | None = None
        self.port, self.pair_port = settings.port, settings.pair_port

    async def start(self) -> None:
        """Open the sockets of existing pods, connect to the pool, and serve the kubelet and the platform.

        Raises:
            GnomonError: 500 `open_without_token`: it would listen beyond this machine without one.
            OSError: a socket cannot be made.

        """
        settings = self._settings
        if settings.token is None and not _loopback(settings.host):
            text = f"Requests for Shadows over {settings.host} need a token."
            raise GnomonError(500, "open_without_token", text, "Give it --token-file, or listen on 127.0.0.1.")
        self.volumes.recover()
        self._pool_task = asyncio.get_running_loop().create_task(self.pool.run())
        await self._runner.setup()
        site = web.TCPSite(self._runner, settings.host, settings.port, ssl_context=settings.tls)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self._pair_listener.start(settings.host, settings.pair_port)
        self.pair_port = self._pair_listener.port
        self._csi.start()

    async def stay(self) -> None:
        """Keep serving until terminating pods have gone or no change is expected: a kubelet needs the driver to end them."""
        clock = asyncio.get_running_loop().time
        delay = ExitDelay(clock(), self._settings.stay_s)
        while not delay.may_exit(clock(), self._published(), [row["pod_uid"] for row in self.bodies.rows()]):  # noqa: ASYNC110
            # A poll, because the end of a period without changes is not an event.
            await asyncio.sleep(CHECK_S)

    async def stop(self) -> None:
        """Remove the registration and close everything. Folders and records stay for the next process."""
        await self._csi.stop()
        self.changes.close()
        await self._pair_listener.stop()
        await self._runner.cleanup()
        self.volumes.close()
        self.pool.close()
        self.shadows.lost()
        self.bodies.close()
        if self._pool_task is not None:
            self._pool_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._pool_task

    def state(self) -> Mapping[str, Any]:
        """The node's state as a JSON document for the platform."""
        pool = self.pool
        return {
            "node": self._settings.node,
            "pair_port": self.pair_port,
            "pool": {
                "ready": pool.warm and pool.coordinated,
                "containers": pool.containers,
                "cpus": len(self.cpus),
                "claimed_cores": self.cpus.allocated,
            },
            "bodies": self.bodies.rows(),
            "shadows": self.shadows.rows(),
        }

    def _published(self) -> list[str]:
        return [volume.pod.uid for volume in self.volumes]

    def _pool_started(self) -> None:
        self.bodies.introduce_all()
        self.changes.changed()

    def _pool_lost(self) -> None:
        self.shadows.lost()

    def _coordinator_event(self, event: Mapping[str, Any]) -> None:
        self.shadows.coordinator_event(event)
        if event["event"] in ("ready", "pool"):
            self.changes.changed()

    def _process_ended(self, instance: str, reason: str) -> None:
        self.shadows.ended(instance, reason)


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may resolve to any address
        return False
