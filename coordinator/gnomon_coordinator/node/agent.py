"""The process on each node, put together: the kubelet's plugin, the Bodies' doors, the pool, the platform's port.

    kubelet ─ CSI ▶ volumes ─ doors ▶ bodies ─┐
    platform ─ HTTP ▶ control ▶ shadows ──────┴▶ pool (another container): supervisor, zygote, coordinator, Shadows
    Bodies of other nodes ─ HTTP ▶ arrivals ─┘

It holds nothing that cannot be had again: records of volumes lie on disk, Bodies come again by themselves, the platform wishes
again. When it ends the pool ends with it, and Bodies go on alone until the next one is there. It ends after the pods
that are told to end when it is (`leaving`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from gnomon_coordinator.node.arrivals import Arrivals
from gnomon_coordinator.node.bodies import Bodies
from gnomon_coordinator.node.control import Control
from gnomon_coordinator.node.csi import CsiPlugin
from gnomon_coordinator.node.pod_sockets import Epochs, Leaving, News, file_of
from gnomon_coordinator.node.pool import Cpus, Ears, Pool
from gnomon_coordinator.node.shadows import Shadows
from gnomon_coordinator.node.volumes import NAME, Volumes
from gnomon_core.coordination import NODE_PORT, PAIR_PORT
from gnomon_core.errors import GnomonError

KUBELET = Path("/var/lib/kubelet")
END_S = 2.0
"""What is under way on the platform's port may take so long when the process is told to end."""
LOOK_S = 0.25
"""How often it looks whether the pods that end have gone."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Where everything is. Paths of the kubelet's are the same in the container as on the node; a port 0 is any."""

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
    """How long it goes on, at most, for the pods that end when it is told to."""

    @property
    def state(self) -> Path:
        """Ours, on the node."""
        return self.kubelet / "plugins" / NAME


class Agent:
    """Made and used on an event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.news = News()
        ears = Ears(self._pool_begun, self._pool_lost, self._coordinator_said, self._process_ended)
        self.pool = Pool(settings.pool, settings.containers, settings.most, ears)
        self.bodies = Bodies(self.pool.to_supervisor, self.news.happened)
        self.cpus = Cpus(sorted(os.sched_getaffinity(0)))
        self.shadows = Shadows(self.pool, self.bodies, self.cpus, settings.models, self.news.happened)
        state = settings.state
        self.volumes = Volumes(settings.kubelet / "pods", state / "volumes", self.bodies.came, self.bodies.shut_out)
        registration = settings.kubelet / "plugins_registry" / f"{NAME}-reg.sock"
        self._csi = CsiPlugin(settings.node, self.volumes, state / "csi.sock", registration)
        control = Control(self.shadows, self.news, Epochs(file_of(state, settings.token)), self.state, settings.token)
        self._runner = web.AppRunner(control.application(), access_log=None, shutdown_timeout=END_S)
        self._arrivals = Arrivals(self.shadows)
        self._finding: asyncio.Task[None] | None = None
        self.port, self.pair_port = settings.port, settings.pair_port

    async def start(self) -> None:
        """Open the doors of pods that are there, find the pool, serve kubelet and platform.

        Raises:
            GnomonError: 500 `open_without_token`: it would listen beyond this machine without one.
            OSError: a socket cannot be made.

        """
        settings = self._settings
        if settings.token is None and not _loopback(settings.host):
            text = f"Without a token nobody may wish for Shadows over {settings.host}."
            raise GnomonError(500, "open_without_token", text, "Give it --token-file, or listen on 127.0.0.1.")
        self.volumes.recover()
        self._finding = asyncio.get_running_loop().create_task(self.pool.run())
        await self._runner.setup()
        site = web.TCPSite(self._runner, settings.host, settings.port, ssl_context=settings.tls)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self._arrivals.start(settings.host, settings.pair_port)
        self.pair_port = self._arrivals.port
        self._csi.start()

    async def stay(self) -> None:
        """Go on until the pods that end have gone, or are taken to stay: a kubelet cannot end them without us."""
        clock = asyncio.get_running_loop().time
        leaving = Leaving(clock(), self._settings.stay_s)
        while not leaving.may_go(clock(), self._published(), [row["pod_uid"] for row in self.bodies.rows()]):  # noqa: ASYNC110
            # That nothing happens is what it waits for, too.
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        """Be found no more, and let go of everything. Folders and records stay for whoever comes next."""
        await self._csi.stop()
        self.news.end()
        await self._arrivals.stop()
        await self._runner.cleanup()
        self.volumes.close()
        self.pool.close()
        self.shadows.lost()
        self.bodies.close()
        if self._finding is not None:
            self._finding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._finding

    def state(self) -> Mapping[str, Any]:
        """The node, for the platform."""
        pool = self.pool
        return {
            "node": self._settings.node,
            "pair_port": self.pair_port,
            "pool": {
                "ready": pool.warm and pool.coordinated,
                "containers": pool.containers,
                "cpus": len(self.cpus),
                "claimed_cores": self.cpus.claimed,
            },
            "bodies": self.bodies.rows(),
            "shadows": self.shadows.rows(),
        }

    def _published(self) -> list[str]:
        return [one.pod.uid for one in self.volumes]

    def _pool_begun(self) -> None:
        self.bodies.introduce_all()
        self.news.happened()

    def _pool_lost(self) -> None:
        self.shadows.lost()

    def _coordinator_said(self, event: Mapping[str, Any]) -> None:
        self.shadows.said(event)
        if event["event"] in ("ready", "pool"):
            self.news.happened()

    def _process_ended(self, instance: str, reason: str) -> None:
        self.shadows.ended(instance, reason)


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may be anybody's
        return False
