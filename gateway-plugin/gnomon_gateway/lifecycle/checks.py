"""What is looked at before a function is deployed or changed: whatever can never serve is refused, with the reason."""

from __future__ import annotations

import asyncio

from gnomon_core.errors import bad_request
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.offers import refuse_strays
from gnomon_core.profiles import ModelProfile
from gnomon_core.seams import SchedulingPolicy
from gnomon_core.settings import Settings
from gnomon_gateway.lifecycle.lasting import outlive_us
from gnomon_gateway.lifecycle.surroundings import Surroundings
from gnomon_gateway.scheduling.registry import scheduling_policy


class Checks:
    """The checks, and what is learned by them."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    async def spec(self, spec: FunctionSpec, *, again: bool = False) -> dict[str, bytes]:
        """Refuse what can never serve; the values of the function's secrets otherwise.

        A function that is served `again` does without secrets that are gone where its instances have outlived us: they have them.

        Raises:
            GnomonError: 400, with what is wrong.

        """
        self.policy(spec.settings)
        if spec.settings.model is not None:
            await self._around.fetch_model(spec.settings.model)
        self._around.platform.check(spec)
        return await self.secrets(spec, lenient=again and outlive_us(self._around.platform))

    def policy(self, settings: Settings) -> SchedulingPolicy:
        """The scheduling policy that these settings name, or that their scaling policy asks for."""
        refuse_strays(settings, self._around.scaling.policies(), self._around.schedulers)
        default = self._around.scaling.check(settings)
        return scheduling_policy(settings.scheduler or default, settings, self._around.schedulers)

    async def secrets(self, spec: FunctionSpec, *, lenient: bool = False) -> dict[str, bytes]:
        """The values of the secrets that a function names; with `lenient`, of those that are there.

        Raises:
            GnomonError: 400 `secret_not_found`.

        """
        values: dict[str, bytes] = {}
        for name in spec.secrets:
            value = await asyncio.to_thread(self._around.store.secret, FunctionKey(name, spec.key.namespace))
            if value is not None:
                values[name] = value
            elif not lenient:
                raise bad_request(
                    "secret_not_found",
                    f"secret {name[:100]!r} is not in namespace {spec.key.namespace!r}.",
                    f"Create it with `gnomon secret create {name[:100]}`.",
                )
        return values

    async def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        """What was measured of the function's model: a file of some hundred kilobytes."""
        return await asyncio.to_thread(self._around.platform.profile, spec)
