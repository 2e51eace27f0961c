"""What is looked at before a function is deployed or changed: whatever can never serve is refused, with the reason.

Images, models and secrets may be far away. Whatever reads them does so in a thread: requests of other functions do not wait.

Functions whose policy makes Shadows, where no node can make any now: Bodies serve alone, and that is said.

What nodes can do changes while functions serve: a coordinator comes, is exchanged, or is not installed yet. So it is no reason to
refuse a function. Its policy makes Shadows as soon as a node says that it can.

What is different where instances outlive the gateway (`gnomon_core.interfaces`): found again, or others' to count.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.interfaces import Lasting, Platform, SchedulingPolicy, Warns
from gnomon_core.policy_registry import refuse_strays
from gnomon_core.profiles import ModelProfile
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature
from gnomon_gateway.functions.context import ScalingControl, Surroundings
from gnomon_gateway.functions.deployments import Deployed
from gnomon_gateway.scheduling.registry import Schedulers, scheduling_policy


def outlive_us(platform: Platform) -> bool:
    """Whether instances run on when the gateway stops."""
    return isinstance(platform, Lasting)


def left_over(platform: Platform, deployed: Deployed) -> tuple[Instance, ...]:
    """The instances of a function that an earlier gateway has left, which are ours from now on, with those that we know."""
    if not isinstance(platform, Lasting):
        return ()
    platform.adopt(deployed.spec, deployed.version)
    return platform.instances(deployed.name)


def refuse_hindered(platform: Platform, function: str) -> None:
    """Raise why the function's instances are not ours to change now, if they are not.

    Raises:
        GnomonError: 409 `foreign_autoscaler`.

    """
    refusal: GnomonError | None = platform.hindrance(function) if isinstance(platform, Lasting) else None
    if refusal is not None:
        raise refusal


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


REASON = "BodiesAlone"
TEXT = "No node can make Shadows now: Bodies serve alone until a node's coordinator is connected."


def notice(around: Surroundings, spec: FunctionSpec) -> str:
    """What the function's users are to know; "" where it may have Shadows, or would have none."""
    wanting = around.makes_shadows(spec.settings) and not any(node.pairs for node in around.platform.nodes())
    return TEXT if wanting else ""


def say_if_alone(around: Surroundings, spec: FunctionSpec) -> None:
    """Say so in the function's log, and where the platform's own users look. Who leads does."""
    if not around.elsewhere.leads() or not notice(around, spec):
        return
    around.logs.append(spec.key, "", f"gnomon: {TEXT}")
    if isinstance(around.platform, Warns):
        around.platform.warn(str(spec.key), REASON, TEXT)
