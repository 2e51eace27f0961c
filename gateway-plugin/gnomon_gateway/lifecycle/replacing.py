"""Bodies of earlier versions, which go as those of the present one begin to serve.

    update ─▶ one is begun for each that serves ─▶ ready ─▶ an old one retires ─▶ … until there is none
                └ not even one has room ─▶ an old one retires ─▶ gone ─▶ one is begun in its place

No fewer serve meanwhile than did before, or than are wanted now, but for the one that makes room.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Protocol

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_gateway.lifecycle.control import ScalingControl
from gnomon_gateway.lifecycle.deployed import Deployed
from gnomon_gateway.lifecycle.elsewhere import Elsewhere

_LOG = logging.getLogger("gnomon.functions")


class Bodies(Protocol):
    """Whoever makes and stops the instances."""

    def of(self, deployed: Deployed) -> tuple[Instance, ...]:
        """Those of this function that are not gone."""
        ...

    async def create(self, deployed: Deployed, cores: int) -> None:
        """Begin one, while the function is there.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        ...

    def stop(self, deployed: Deployed, instance_id: str) -> None:
        """Drain one, then stop it."""
        ...


class Replacing:
    """Replaces `bodies`. `scaling` says how many are wanted; only who leads retires any."""

    def __init__(self, bodies: Bodies, scaling: ScalingControl, elsewhere: Elsewhere) -> None:
        self._bodies = bodies
        self._scaling = scaling
        self._elsewhere = elsewhere

    async def update(self, deployed: Deployed) -> None:
        """Its version is another one now.

        What is of an earlier one and starts is given up: nobody waits for it, and it costs those that are to serve instead.
        """
        there = self._bodies.of(deployed)
        deployed.keep_old = len(deployed.old(there))
        self._retire(deployed, deployed.old(there, InstanceState.STARTING))
        await self._begin(deployed)

    async def take_over(self, deployed: Deployed) -> None:
        """An earlier gateway has left its instances: those of an earlier version, as if the update had just been asked for."""
        old = [one for one in self._bodies.of(deployed) if one.version < deployed.version]
        deployed.keep_old = sum(one.kind is InstanceKind.BODY for one in old)
        if self._elsewhere.leads():
            await self._begin(deployed)

    def retire(self, deployed: Deployed) -> None:
        """Let go as many of earlier versions as the new ones make up for."""
        if self._elsewhere.leads():
            self._retire(deployed, deployed.made_up_for(self._bodies.of(deployed), self._scaling.desired(deployed.name)))

    async def take_place(self, deployed: Deployed) -> None:
        """An old one has made room: a new one begins in it if one is missing."""
        missing = (self._scaling.desired(deployed.name) or 0) - len(deployed.live(self._bodies.of(deployed)))
        if missing > 0:
            with contextlib.suppress(GnomonError):  # somebody else was quicker: the autoscaler tries again
                await self._bodies.create(deployed, deployed.spec.settings.cores)
        self._scaling.poke(deployed.name)

    async def _begin(self, deployed: Deployed) -> None:
        """One for each old one that serves; those that have no room begin as others get ready, one after the other."""
        for begun in range(deployed.keep_old):
            try:
                await self._bodies.create(deployed, deployed.spec.settings.cores)
            except GnomonError as refused:
                _LOG.info("%s: %s", deployed.name, refused)
                if not begun and not deployed.retired:
                    deployed.keep_old -= 1
                    self.retire(deployed)
                return

    def _retire(self, deployed: Deployed, old: Sequence[Instance]) -> None:
        for instance in old:
            deployed.retired.add(instance.id)
            self._bodies.stop(deployed, instance.id)
