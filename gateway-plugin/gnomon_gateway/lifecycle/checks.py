"""What is looked at before a function is deployed or changed: whatever can never serve is refused, with the reason.

Images, models and secrets may be far away. Whatever reads them does so in a thread: requests of other functions do not wait.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.offers import refuse_strays
from gnomon_core.profiles import ModelProfile
from gnomon_core.seams import SchedulingPolicy
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature
from gnomon_gateway.lifecycle.control import ScalingControl
from gnomon_gateway.lifecycle.lasting import outlive_us
from gnomon_gateway.lifecycle.surroundings import Surroundings
from gnomon_gateway.scheduling.registry import Schedulers, scheduling_policy


def scheduler_of(settings: Settings, scaling: ScalingControl, schedulers: Schedulers) -> SchedulingPolicy:
    """The scheduling policy that these settings name, or that their scaling policy asks for.

    Raises:
        GnomonError: 400 for a policy that is not known or not to be had here, and for settings of none.

    """
    refuse_strays(settings, scaling.policies(), schedulers)
    default = scaling.check(settings)
    return scheduling_policy(settings.scheduler or default, settings, schedulers)


@dataclass(frozen=True, slots=True)
class Means:
    """What serves a function: its secrets' values, what its image and model mean now, what was measured of the model."""

    secrets: dict[str, bytes]
    revision: str
    signature: ModelSignature | None
    profile: ModelProfile | None


class Checks:
    """The checks, and what is learned by them."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    async def spec(self, spec: FunctionSpec, *, again: bool = False) -> Means:
        """Refuse what can never serve; what serves it otherwise.

        A function that is served `again` does without secrets that are gone where its instances have outlived us: they have them.

        Raises:
            GnomonError: 400, with what is wrong.

        """
        self.policy(spec.settings)
        try:
            if spec.settings.model is not None:
                await self._around.fetch_model(spec.settings.model)
            await asyncio.to_thread(self._around.platform.check, spec)
        except GnomonError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            # Clients read a 404 to an update as "there is no such function" and create it, which would answer 409.
            raise bad_request(error.code, error.message, error.hint) from error
        return await self.means(spec, lenient=again and outlive_us(self._around.platform))

    async def means(self, spec: FunctionSpec, *, lenient: bool = False) -> Means:
        """What serves a function that is known to be possible. With `lenient` it does without secrets that are not there.

        Raises:
            GnomonError: 400 `secret_not_found`.

        """
        secrets = await self._secrets(spec, lenient=lenient)
        return Means(secrets, *await asyncio.to_thread(self._meaning, spec))

    def _meaning(self, spec: FunctionSpec) -> tuple[str, ModelSignature | None, ModelProfile | None]:
        platform = self._around.platform
        return platform.revision(spec), platform.signature(spec), platform.profile(spec)

    def policy(self, settings: Settings) -> SchedulingPolicy:
        """See `scheduler_of`."""
        return scheduler_of(settings, self._around.scaling, self._around.schedulers)

    async def _secrets(self, spec: FunctionSpec, *, lenient: bool) -> dict[str, bytes]:
        """The values of the secrets that a function names; with `lenient`, of those that are there."""
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
