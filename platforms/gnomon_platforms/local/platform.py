"""The local platform: instances are processes of this machine, forked from zygotes that a small supervisor looks after.

Shadows are in `pairs`: the node's coordinator makes them from the containers of its pool.

With `lend_cores` the node lends cores to the batches of models whose engine can change its number of threads
(`gnomon_core.interfaces.LendsCores`).

The platform creates, ends and resizes instances on command, and reports events to the listener; it never decides to add an
instance. Everything runs on the event loop, and nothing there waits for a process.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from gnomon_core.background import Background
from gnomon_core.clock import Clock, WallClock
from gnomon_core.engines import ChosenEngine
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState, Node
from gnomon_core.functions import FunctionSpec
from gnomon_core.interfaces import Capabilities, InstanceRequest, ModelRepository, PlatformListener, Usage
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.signature import ModelSignature
from gnomon_platforms.common import Ids, StartingInstances, claimed_cores, requested_cores, starting
from gnomon_platforms.images import BuiltImages, ImageTable
from gnomon_platforms.local.cgroups import ResourceAccounting
from gnomon_platforms.local.instances import InstanceContext, LocalInstance, LocalProcess, describe_exit
from gnomon_platforms.local.nodes import LocalNode
from gnomon_platforms.local.pairs import BodyOrigin, LocalShadow, Pairs, ShadowContext
from gnomon_platforms.local.recipes import Recipe, Recipes, forbid_inspection, joining, limit_bytes
from gnomon_platforms.local.supervision import BARE, TORCH, Environment, Supervision, SupervisionListener
from gnomon_platforms.profile_files import ProfileFiles

START_TIMEOUT_S = 60.0
IDLE_S = 5.0
"""Seconds without a batch after which an instance reserves no cores: long enough for the gaps of steady traffic."""
STOP_LIMIT_S = 15.0
"""Seconds for instances to end when the platform stops: a Body disconnects its Shadow in 9 s and ends in 7."""

_LOG = logging.getLogger(__name__)


class LocalPlatform:
    """The `Platform` (`gnomon_core.interfaces`) of processes on this machine.

    `cores` is what the node gives away; more than the machine has shares its CPUs, and `reserved_cores` of them are held for
    Shadows. Without `preload_torch`, the zygote with torch starts when the first model is prepared, and with it the `pool`: that
    many empty containers from which Shadows are made. Profiles are read from the folder `profiles`, that of the machine called
    `machine_id` before others.
    """

    name = "local"
    capabilities = Capabilities(place=True, size=True, victim=True, resize=True, pair=True, promote=True, quick_model_starts=True)

    def __init__(
        self,
        state_dir: Path,
        repository: ModelRepository,
        built: BuiltImages,
        *,
        images: Path | None = None,
        cores: int | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
        preload_torch: bool = True,
        pool: int = 1,
        reserved_cores: float = 0.0,
        lend_cores: bool = False,
        profiles: Path | None = None,
        machine_id: str = "",
        clock: Clock | None = None,
    ) -> None:
        state_dir.mkdir(parents=True, exist_ok=True)
        self._profiles = ProfileFiles(profiles, machine_id)
        self._recipes = Recipes(state_dir, repository, built, ImageTable(images), self._profiles)
        self._node = LocalNode.this_machine(cores, reserved_cores, self._in_use, lends=lend_cores)
        self._pool = pool
        self._clock = clock or WallClock()
        self._start_timeout_s = start_timeout_s
        self._instances: dict[str, LocalInstance] = {}
        self._origins: dict[str, BodyOrigin] = {}
        self._started_pairs: Pairs | None = None
        self._starting = Background()
        self._ids = Ids()
        self._starting_instances = StartingInstances()
        self._accounts: ResourceAccounting | None = None
        self._context: InstanceContext | None = None
        at_start = (BARE, TORCH) if preload_torch and importlib.util.find_spec("torch") else (BARE,)
        self._supervisor = Supervision(at_start, self._clock)

    async def start(self, listener: PlatformListener) -> None:
        """Start the supervisor; zygotes warm up in the background."""
        forbid_inspection()
        self._accounts = ResourceAccounting()
        self._context = InstanceContext(self._supervisor.send, listener, self._clock.now_s, self._ended)
        context = ShadowContext(
            self._node,
            self._recipes,
            self._context,
            self._accounts,
            self._profiles,
            self._instances,
            self._origins,
            self._start_timeout_s,
            self._promoted,
        )
        self._started_pairs = Pairs(self._supervisor.send, context, self._pool)
        await self._supervisor.start(
            SupervisionListener(self._on_event, self._started_pairs.begin, self._started_pairs.pool.warm, self._lost)
        )
        _LOG.info("memory is limited by %s", self._accounts.description)

    async def stop(self) -> None:
        """End every instance, the zygotes and the supervisor. All remaining instances are reported gone."""
        self._supervisor.stop_restarting()
        await self._starting.end()
        for shadow in list(self._pairs.shadows.values()):
            shadow.kill("stopped")
        processes: list[LocalProcess] = [*self._instances.values(), *self._pairs.shadows.values()]
        for process in processes:
            process.stop()
        if processes:
            await asyncio.wait([process.gone for process in processes], timeout=STOP_LIMIT_S)
        self._pairs.close()
        await self._supervisor.stop()
        for process in processes:
            process.end(process.cpu_s, "the platform has stopped")
        if self._accounts is not None:
            self._accounts.close()

    def check(self, spec: FunctionSpec) -> None:
        """Raise if this function can never run here."""
        self._recipes.find(spec)
        if spec.secrets:
            self._supervisor.check_isolation()

    def revision(self, spec: FunctionSpec) -> str:
        """A digest of what the image and the model name now."""
        return self._recipes.find(spec).revision

    async def prepare(self, spec: FunctionSpec) -> None:
        """Warm the zygote that the function's instances are forked from."""
        recipe = await asyncio.to_thread(self._recipes.find, spec)
        environment = self._recipes.environment(recipe, spec, {})
        if environment.sandbox is None or not spec.secrets:
            await self._supervisor.warm_with_retries(environment)
        # The file is large; from now on only its modification time is checked.
        await asyncio.to_thread(recipe.profile, self._profiles)

    def signature(self, spec: FunctionSpec) -> ModelSignature | None:
        return self._recipes.find(spec).signature

    def engine(self, spec: FunctionSpec) -> ChosenEngine | None:
        recipe = self._recipes.find(spec)
        return recipe.engine if recipe.kind == "model" else None

    def nodes(self) -> tuple[Node, ...]:
        return (self._node.value(),)

    def instances(self, function: str) -> tuple[Instance, ...]:
        return (*(process.instance for process in self._processes_of(function)), *self._starting_instances.of(function))

    def contents(self) -> set[str]:
        """The built handlers that instances were made from which have not ended."""
        return {origin.recipe.content_id for origin in self._origins.values()} - {""}

    async def create(self, request: InstanceRequest) -> Instance:
        """Start an instance. Later events are reported to the listener."""
        assert self._context is not None
        spec = request.spec
        starting_instance = starting(self._ids.new(f"{spec.key.name}-"), request, self._node.name, 0, self._clock.now_s())
        with self._starting_instances.counted(starting_instance):
            recipe = await asyncio.to_thread(self._recipes.find, spec)
        self._node.check_name(request.node)
        claimed, kept_cores = _claim(spec, recipe, request.cores, request.idle_cores)
        self._node.allocate(
            starting_instance.id,
            claimed,
            recipe.memory_bytes,
            request.cores,
            idle_cores=kept_cores,
            held_while_idle=requested_cores(spec) is not None,
            first=all(
                process.instance.state is InstanceState.DRAINING for process in self._processes_of(starting_instance.function)
            ),
        )
        environment = self._recipes.environment(recipe, spec, request.secrets)
        instance = replace(starting_instance, memory_bytes=recipe.memory_bytes, idle_cores=kept_cores)
        process = self._instances[instance.id] = LocalInstance(instance, spec.key, environment.id, self._context)
        self._origins[instance.id] = BodyOrigin(request, recipe)
        # The instance may have got memory that the pool's empty containers hold: the pool has to shrink.
        self._pairs.pool.fit()
        self._starting.begin(self._begin(process, recipe, request, environment))
        return instance

    async def _begin(self, process: LocalInstance, recipe: Recipe, request: InstanceRequest, environment: Environment) -> None:
        try:
            await self._supervisor.warm_with_retries(environment)
            # The instance was destroyed while the zygote warmed up.
            if process.gone.done():
                return
            join = self._join(process.instance.id, request)
            cpus = self._node.allocation(process.instance.id).cpus
            order, join = joining(self._recipes.order(recipe, request, process.instance.id, cpus, limited=bool(join)), join)
            process.order(order, join, self._start_timeout_s, coordinated="layers" in recipe.options)
        except (GnomonError, OSError) as error:
            process.end(0.0, f"could not be started: {error}")
        except asyncio.CancelledError:
            process.stop()
            raise

    async def destroy(self, instance_id: str) -> None:
        """Stop an instance. The listener is notified when it has ended."""
        await self._starting_instances.begun(instance_id)
        process = self._instances.get(instance_id) or self._pairs.shadows.get(instance_id)
        # A frozen instance may take seconds to end, in which it computes nothing.
        self._node.give_back(instance_id)
        if process is not None:
            process.stop()

    async def resize(self, instance_id: str, cores: int, idle_cores: int | None = None) -> None:
        """Give an instance other CPUs, or let it borrow cores for each batch. Unknown ids are ignored.

        Raises:
            GnomonError: 503 `no_capacity`, 409 `cannot_borrow`; the instance keeps what it has.

        """
        shadow = self._pairs.shadows.get(instance_id)
        if shadow is not None and shadow.instance.pair is not None:
            self._pairs.change(shadow, replace(shadow.instance.pair, shadow_cores=cores))
        process = self._instances.get(instance_id)
        if process is not None:
            origin = self._origins[instance_id]
            claimed, kept_cores = _claim(origin.request.spec, origin.recipe, cores, idle_cores)
            allocation = self._node.resize(instance_id, claimed, cores, idle_cores=kept_cores)
            process.resized(cores, allocation.cpus, kept_cores)

    def lend(self, instance_id: str, cores: int) -> int:
        """Lend cores for the instance's next batch. See `gnomon_core.interfaces.LendsCores`."""
        return self._node.lend(instance_id, cores)

    def give_back(self, instance_id: str) -> None:
        """Take back the cores that the instance's last batch borrowed. Unknown ids are ignored."""
        self._node.give_back(instance_id)

    def share(self, instance_id: str) -> int:
        """The most cores that a batch of this instance may have now; 0 where it does not borrow."""
        return self._node.share(instance_id)

    async def create_shadow(self, body_id: str, pair: Pair) -> Instance:
        """Begin a Shadow for a Body. See `gnomon_core.interfaces.Platform`."""
        return await self._pairs.create(body_id, pair, self._ids.new(f"{body_id.rpartition('-')[0] or body_id}-s"))

    async def change_shadow(self, shadow_id: str, pair: Pair) -> None:
        """Give a Shadow other blocks, another split or other cores. Unknown ids are ignored.

        Raises:
            GnomonError: 503 `no_capacity`; it keeps what it has.

        """
        process = self._pairs.shadows.get(shadow_id)
        if process is not None:
            self._pairs.change(process, pair)

    async def promote_shadow(self, shadow_id: str) -> Instance:
        """Let a Shadow become a Body. See `gnomon_core.interfaces.Platform`."""
        return self._pairs.promote(shadow_id)

    def _promoted(self, process: LocalInstance, origin: BodyOrigin) -> None:
        """Register a Shadow that has become a Body, and report the Body as ready."""
        instance = process.instance
        self._instances[instance.id], self._origins[instance.id] = process, origin
        self._supervisor.send({"do": "promoted", "id": instance.id})
        assert self._context is not None
        assert process.channel is not None
        self._context.listener.instance_ready(instance, process.channel)

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        """The measured profile of the function's model; None without one."""
        return self._recipes.find(spec).profile(self._profiles)

    def usage(self, function: str) -> Usage:
        return Usage(0.0, 0) if self._accounts is None else self._accounts.of(function, self._processes_of(function))

    @property
    def _pairs(self) -> Pairs:
        assert self._started_pairs is not None, "the platform has not been started"
        return self._started_pairs

    def _processes_of(self, function: str) -> list[LocalProcess]:
        processes: list[LocalProcess] = [
            *self._instances.values(),
            *(() if self._started_pairs is None else self._started_pairs.shadows.values()),
        ]
        return [process for process in processes if process.instance.function == function]

    def _in_use(self, instance_id: str) -> bool:
        """True if an instance starts, works with a Shadow, executes, or did so within `IDLE_S`."""
        process = self._instances.get(instance_id)
        if (
            process is None
            or process.channel is None
            or process.instance.state is InstanceState.STARTING
            or process.instance.shadows
        ):
            return True
        return process.channel.idle_s < IDLE_S

    def _join(self, instance_id: str, request: InstanceRequest) -> list[str]:
        return [] if self._accounts is None else self._accounts.open(instance_id, limit_bytes(request.spec))

    def _on_event(self, event: dict[str, Any]) -> None:
        process = self._instances.get(event["id"]) or self._pairs.shadows.get(event["id"])
        if process is None:
            return
        if event["event"] == "forked":
            process.forked(event["pid"])
        elif (
            event["event"] == "gone" and event["status"] is None and isinstance(process, LocalInstance) and self._reorder(process)
        ):
            _LOG.info("the start of instance %s is retried: %s", process.instance.id, event["reason"])
        elif event["event"] == "gone":
            out_of_memory = self._accounts is not None and self._accounts.ran_out(process.instance.id)
            process.end(event["cpu_s"], describe_exit(event["status"], out_of_memory=out_of_memory) or event["reason"])

    def _ended(self, process: LocalProcess, cpu_s: float) -> None:
        """Clear up after an instance."""
        instance = process.instance
        if isinstance(process, LocalShadow):
            del self._pairs.shadows[instance.id]
            self._pairs.shadow_ended(process)
        else:
            del self._instances[instance.id]
            del self._origins[instance.id]
            self._pairs.body_gone(instance.id)
        self._node.release(instance.id)
        self._pairs.pool.fit()
        if self._accounts is not None:
            self._accounts.ended(instance, cpu_s)
        self._supervisor.zygotes.retire_unused({other.environment for other in self._instances.values()})

    def _lost(self) -> None:
        """Handle the end of the supervisor and all its instances. The next supervisor starts those that were not ready yet."""
        self._pairs.lost()
        for process in list(self._instances.values()):
            if not self._reorder(process):
                process.end(process.cpu_s, "the supervisor has ended")

    def _reorder(self, process: LocalInstance) -> bool:
        """Order an instance again whose zygote or supervisor ended before it was ready: the instance has not failed."""
        waits_for_zygote = process.channel is None
        if not process.withdraw():
            return False
        if not waits_for_zygote:
            origin = self._origins[process.instance.id]
            environment = self._recipes.environment(origin.recipe, origin.request.spec, origin.request.secrets)
            self._starting.begin(self._begin(process, origin.recipe, origin.request, environment))
        return True


def _claim(spec: FunctionSpec, recipe: Recipe, cores: int, idle_cores: int | None) -> tuple[float, int | None]:
    """The cores that an instance reserves, and those that it keeps between batches; None if all its cores are its own.

    Raises:
        GnomonError: 409 `cannot_borrow`.

    """
    if idle_cores is None:
        return claimed_cores(spec, cores), None
    if not recipe.borrows:
        raise GnomonError(
            409,
            "cannot_borrow",
            f"An instance of {spec.key} cannot borrow cores: its number of threads is fixed (engine {recipe.engine.name}).",
            "Give it cores of its own, or use a model with gnomon/engine: program.",
        )
    claimed = claimed_cores(spec, idle_cores)
    # What the deployment requests or limits is its own, whatever the policy says.
    return claimed, min(cores, max(idle_cores, int(claimed)))
