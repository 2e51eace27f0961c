"""Validation before a function is deployed or updated: a function that can never serve is refused, with the reason.

Images, models and secrets may be remote. They are read in threads, so that requests of other functions are not delayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from gnomon_core.applications import refuse_endpoint
from gnomon_core.engines import ChosenEngine
from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.functions import FunctionKey, FunctionSpec, check_secret_name
from gnomon_core.interfaces import FunctionStore, Platform, RunsEngines, SchedulingPolicy, Warns
from gnomon_core.policy_registry import refuse_strays
from gnomon_core.profiles import ModelProfile
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature
from gnomon_core.units import parse_duration_s
from gnomon_gateway.functions.deployments import OtherReplicas
from gnomon_gateway.functions.instances import ScalingControl, outlive_gateway
from gnomon_gateway.functions.logs import LogBook
from gnomon_gateway.scheduling.registry import BUILT_IN, Schedulers, scheduling_policy

MODEL_NOT_HERE = "model_not_here"
ANSWER_S = 20.0
"""The longest time that a deployment waits for its model. Clients give up after a minute, and capturing may take longer."""


def scheduler_of(settings: Settings, scaling: ScalingControl, schedulers: Schedulers) -> SchedulingPolicy:
    """The scheduling policy that the settings name, or that their scaling policy requires.

    Raises:
        GnomonError: 400 for an unknown or unsupported policy, and for settings that no policy reads.

    """
    refuse_strays(settings, scaling.policies(), schedulers)
    default = scaling.check(settings)
    return scheduling_policy(settings.scheduler or default, settings, schedulers)


@dataclass(frozen=True, slots=True)
class FunctionInputs:
    """The inputs of a deployed function: secrets, the revision of image and model, the model's signature and profile."""

    secrets: dict[str, bytes]
    revision: str
    signature: ModelSignature | None
    profile: ModelProfile | None
    engine: ChosenEngine | None = None
    """The engine that runs the model; None where the platform has one engine, or without a model."""


class Checks:
    """Checks functions before they are deployed, and reads the inputs that serving them needs.

    `fetch_model` brings a model into the repository; None if there is nowhere to fetch one from.
    """

    def __init__(
        self,
        store: FunctionStore,
        platform: Platform,
        scaling: ScalingControl,
        fetch_model: Callable[[str], Awaitable[None]] | None = None,
        schedulers: Schedulers = BUILT_IN,
    ) -> None:
        self._store = store
        self._platform = platform
        self._scaling = scaling
        self._fetch_model = fetch_model
        self._schedulers = schedulers

    async def spec(self, spec: FunctionSpec, *, again: bool = False, patience_s: float | None = None) -> FunctionInputs:
        """Check the function and return its inputs.

        With `again`, after a restart of the gateway, secrets may be missing if instances outlive the gateway: those have them.

        With `patience_s`, the model must come to this machine within that time; it goes on coming afterwards.

        Raises:
            GnomonError: 400, with what is wrong; 503 `model_not_here` after `patience_s`.

        """
        refuse_endpoint(spec.settings)
        if not again:
            _check_timeouts(spec)
        self.policy(spec.settings)
        try:
            await self._fetched(spec.settings.model, patience_s)
            await asyncio.to_thread(self._platform.check, spec)
        except GnomonError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            # OpenFaaS clients treat a 404 of an update as "no such function" and create it, which would answer 409.
            raise bad_request(error.code, error.message, error.hint) from error
        return await self.inputs(spec, lenient=again and outlive_gateway(self._platform))

    async def _fetched(self, model: str | None, patience_s: float | None) -> None:
        if model is None or self._fetch_model is None:
            return
        try:
            async with asyncio.timeout(patience_s) as patience:
                await self._fetch_model(model)
        except TimeoutError:
            if not patience.expired():
                raise
            raise GnomonError(
                503,
                MODEL_NOT_HERE,
                f"Model {model[:200]} is being captured or downloaded.",
                "Deploy again in a minute; what is deployed serves on.",
                retry_after_s=patience_s,
            ) from None

    async def inputs(self, spec: FunctionSpec, *, lenient: bool = False) -> FunctionInputs:
        """The inputs of a function that was checked before. With `lenient`, missing secrets are left out.

        Raises:
            GnomonError: 400 `secret_not_found`, or `invalid_name` for a name that no secret can have.

        """
        secrets = await self._secrets(spec, lenient=lenient)
        return FunctionInputs(secrets, *await asyncio.to_thread(self._platform_inputs, spec))

    def _platform_inputs(self, spec: FunctionSpec) -> tuple[str, ModelSignature | None, ModelProfile | None, ChosenEngine | None]:
        platform = self._platform
        engine = platform.engine(spec) if isinstance(platform, RunsEngines) else None
        return platform.revision(spec), platform.signature(spec), platform.profile(spec), engine

    def policy(self, settings: Settings) -> SchedulingPolicy:
        """The scheduling policy that these settings name, as `scheduler_of` makes it."""
        return scheduler_of(settings, self._scaling, self._schedulers)

    async def _secrets(self, spec: FunctionSpec, *, lenient: bool) -> dict[str, bytes]:
        """The values of the function's secrets; with `lenient`, of those that exist."""
        values: dict[str, bytes] = {}
        for name in spec.secrets:
            value = await asyncio.to_thread(self._store.secret, FunctionKey(name, spec.key.namespace))
            if value is not None:
                values[name] = value
            elif not lenient:
                check_secret_name(name)
                raise bad_request(
                    "secret_not_found",
                    f"secret {name[:100]!r} is not in namespace {spec.key.namespace!r}.",
                    f"Create it with `gnomon secret create {name[:100]}`.",
                )
        return values

    async def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        """The profile of the function's model. Read in a thread: the file has some hundred kilobytes."""
        return await asyncio.to_thread(self._platform.profile, spec)


_TIMEOUTS = ("exec_timeout", "read_timeout", "write_timeout")


def _check_timeouts(spec: FunctionSpec) -> None:
    """Refuse variables of the watchdog that are not durations.

    Gnomon's runtime refuses them at its start; OpenFaaS's watchdog silently uses its default instead of the bound.
    """
    for name in _TIMEOUTS:
        try:
            parse_duration_s(spec.environment.get(name) or "0")
        except ValueError as error:
            raise bad_request("invalid_setting", f"environment variable {name}: {error}.", f"Example: {name}: 30s") from None


class ShadowNotice:
    """Reports functions whose policy makes Shadows while no node can.

    Nodes change while functions serve: a coordinator connects, is replaced, or is not installed yet. So a missing coordinator is
    no reason to refuse a function. Its Bodies serve alone until a node can make Shadows.
    """

    REASON = "BodiesAlone"
    TEXT = "No node can make Shadows now: Bodies serve alone until a node's coordinator is connected."

    def __init__(self, platform: Platform, scaling: ScalingControl, other_replicas: OtherReplicas, logs: LogBook) -> None:
        self._platform, self._scaling, self._other_replicas, self._logs = platform, scaling, other_replicas, logs

    def text(self, spec: FunctionSpec) -> str:
        """The notice for the function's users; "" if Shadows are possible, or the function would have none."""
        alone = self._scaling.makes_shadows(spec.settings) and not any(node.pairs for node in self._platform.nodes())
        return self.TEXT if alone else ""

    def report(self, spec: FunctionSpec) -> None:
        """Write the notice to the function's log, and to the platform's events if it has any. Only the leader reports."""
        if not self._other_replicas.leads or not self.text(spec):
            return
        self._logs.append(spec.key, "", f"gnomon: {self.TEXT}")
        if isinstance(self._platform, Warns):
            self._platform.warn(str(spec.key), self.REASON, self.TEXT)
