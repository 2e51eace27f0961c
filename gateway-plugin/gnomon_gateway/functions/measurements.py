"""What was measured of functions' models: gone by while they serve, not only from their next deployment on.

    every half a minute ▶ each function with a model ▶ its platform's profile ─ another one ─▶ latency ▶ sizes of batches, policy

A model is deployed first and measured then, or measured anew when its machines are others. What was learned while it served,
without that profile or against the last one, speaks no more; what was planned of its batches stays until it is planned again. A
profile that is equal to the last changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from gnomon_core.functions import FunctionKey
from gnomon_core.profiles import REREAD_S
from gnomon_gateway.functions.context import Surroundings
from gnomon_gateway.functions.deployments import Deployed
from gnomon_gateway.functions.validation import Checks

_LOG = logging.getLogger("gnomon.functions")


class Measurements:
    """Those of these functions. `lock` is what whoever changes one of them holds."""

    def __init__(
        self,
        around: Surroundings,
        checks: Checks,
        functions: Mapping[FunctionKey, Deployed],
        lock: Callable[[FunctionKey], asyncio.Lock],
    ) -> None:
        self._around, self._checks, self._functions, self._lock = around, checks, functions, lock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look again and again, until `stop`."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self, deployed: Deployed) -> None:
        """Go by what has been measured of the function's model by now, as a process does that starts now.

        Where that cannot be read now, the last holds: one function's fault must not keep the others from theirs.
        """
        try:
            await self._look(deployed)
        except Exception:  # noqa: BLE001 - as said
            _LOG.exception("what was measured of the model of %s cannot be read", deployed.name)

    async def _look(self, deployed: Deployed) -> None:
        spec = deployed.spec
        profile = await self._checks.profile(spec)
        # One that was changed meanwhile has its profile from that.
        if deployed.spec is spec and profile != deployed.profile:
            deployed.profile = profile
            self._around.foretell(deployed.runtime.variants, profile)
            deployed.runtime.set_profile(profile)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(REREAD_S)
            for key, deployed in list(self._functions.items()):
                await self._again(key, deployed)

    async def _again(self, key: FunctionKey, deployed: Deployed) -> None:
        lock = self._lock(key)
        # Whoever changes it reads its profile as well, and may take minutes.
        if deployed.spec.settings.model is None or lock.locked():
            return
        async with lock:
            if self._functions.get(key) is deployed:
                await self.look(deployed)
