"""Carrying out decisions: instances made, drained and stopped.

What concerns Bodies is here; what concerns their Shadows is next door (`shadows`), as is how an update goes (`replacing`).

This is the gateway's side of two seams: the autoscaler's `ScaledFleet`, and the platform's listener. Commands are begun here and
go on behind it; an instance that is drained is first cut off from new batches, then left until it has acknowledged zero in
flight, then stopped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from gnomon_core.background import Background
from gnomon_core.carrying_out import CarryingOut
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.scaling import Action, CreateBody, DestroyBody, DestroyShadow, FunctionLoad, LoadCounters, Resize, SetBufferPlan
from gnomon_core.seam_values import InstanceRequest
from gnomon_core.seams import BatchChannel, Platform
from gnomon_gateway.dispatch.refusals import function_removed
from gnomon_gateway.lifecycle.control import ScalingControl
from gnomon_gateway.lifecycle.deployed import Deployed, SchedulerOf
from gnomon_gateway.lifecycle.elsewhere import Elsewhere, Lost
from gnomon_gateway.lifecycle.lasting import left_over, refuse_hindered
from gnomon_gateway.lifecycle.replacing import Replacing
from gnomon_gateway.lifecycle.shadows import ShadowAction, Shadows
from gnomon_gateway.serving.function_runtime import FunctionRuntime

_LOG = logging.getLogger("gnomon.functions")


class Instances:
    """The instances of every function.

    `log` keeps a line that an instance wrote; `scaling` is told what happens to instances and asked how many are wanted; `policy`
    makes the scheduling policy for changed settings. While `elsewhere` another process leads, what it does is only followed.
    """

    def __init__(
        self,
        platform: Platform,
        log: Callable[[FunctionKey, str, str], None],
        scaling: ScalingControl,
        policy: SchedulerOf,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._platform = platform
        self._elsewhere = elsewhere or Elsewhere()
        self._log = log
        self._policy = policy
        self._scaling = scaling
        self._deployed: dict[str, Deployed] = {}
        self._owners: dict[str, Deployed] = {}
        self.shadows = Shadows(platform, log)
        self.replacing = Replacing(self, scaling, self._elsewhere)
        self._background = Background()
        self._begin = self._background.begin

    def adopt(self, deployed: Deployed) -> None:
        """Look after this function from now on."""
        self._deployed[deployed.name] = deployed

    def release(self, deployed: Deployed, *, leave: bool = False) -> None:
        """The function is removed: answer what waits, then stop everything. Goes on behind the caller.

        With `leave` it is only we who stop: its instances run on, for whoever adopts them.
        """
        self._deployed.pop(deployed.name, None)
        self._begin(self._wind_down(deployed, leave=leave))

    async def take_over(self, deployed: Deployed) -> None:
        """Look after what an earlier gateway has left of this function's instances; those of an earlier version are replaced."""
        for instance in left_over(self._platform, deployed):
            self._owners.setdefault(instance.id, deployed)
        self._tell_starting(deployed)
        if self._elsewhere.leads():
            self.shadows.take_over(deployed, self.of(deployed))
        await self.replacing.take_over(deployed)

    def of(self, deployed: Deployed) -> tuple[Instance, ...]:
        """Its instances, without those that still answer for a function of that name that was removed."""
        there = self._platform.instances(deployed.name)
        return tuple(one for one in there if self._owners.get(one.id, deployed) is deployed)

    def runtime_of(self, instance_id: str) -> FunctionRuntime | None:
        """The function of an instance."""
        deployed = self._owners.get(instance_id)
        return None if deployed is None else deployed.runtime

    async def settle(self) -> None:
        """Return when nothing that was begun here is under way any more."""
        await self._background.settled()

    def cannot_start(self, deployed: Deployed) -> GnomonError | None:
        """Why a call of this function, which has no instance that is ready, is refused; None where it is worth waiting."""
        if deployed.start_failures.problem is None:
            return None
        return deployed.start_failures.refusal(
            time.monotonic(),
            starting=deployed.runtime.starting,
            instances=len(self._platform.instances(deployed.name)),
            backoff_s=self._scaling.start_backoff_s(deployed.name),
        )

    def seen(self, function: str) -> tuple[Instance, ...]:
        """All its instances that are not gone, of earlier versions as well."""
        deployed = self._deployed.get(function)
        return deployed.seen(self._platform.instances(function)) if deployed is not None else ()

    def plan_buffer(self, function: str, plan: SetBufferPlan | None) -> None:
        """Make its batches within these bounds from now on, None for those that it was deployed with. One may say so often."""
        deployed = self._deployed.get(function)
        if deployed is not None:
            deployed.plan_buffer(plan, self._policy)

    def plans(self) -> dict[str, SetBufferPlan]:
        """The plans in force."""
        return {name: deployed.plan for name, deployed in self._deployed.items() if deployed.plan is not None}

    # ScaledFleet: what the autoscaler sees and does

    def functions(self) -> Sequence[str]:
        return tuple(self._deployed)

    def load(self, function: str) -> FunctionLoad | None:
        deployed = self._deployed.get(function)
        return None if deployed is None else deployed.load(self._platform.instances(function), self._platform.nodes())

    def stamp(self, function: str) -> object:
        """A value that is another one as soon as anything has happened to the function that the autoscaler would see."""
        deployed = self._deployed.get(function)
        return None if deployed is None else deployed.stamp(self._platform.instances(function))

    def standing(self, function: str) -> object:
        """A value that is another one as soon as anything but a request has happened to the function."""
        deployed = self._deployed.get(function)
        return None if deployed is None else deployed.standing(self._platform.instances(function))

    def counters(self, function: str) -> LoadCounters | None:
        """Its load here and at other replicas."""
        deployed = self._deployed.get(function)
        return None if deployed is None else deployed.counters()

    async def apply(self, function: str, actions: Sequence[Action]) -> None:
        deployed = self._deployed.get(function)
        if deployed is None:
            return
        refuse_hindered(self._platform, function)
        carrying = CarryingOut(actions)
        for action in carrying:
            with carrying.attempt(action):
                await self._apply_one(deployed, action)
        self.replacing.retire(deployed)
        carrying.end()

    async def _apply_one(self, deployed: Deployed, action: Action) -> None:
        match action:
            case CreateBody(cores, node, memory_mb):
                await self.create(deployed, cores, node, memory_mb)
            case DestroyBody(instance_id):
                self.stop(deployed, instance_id)
            case DestroyShadow(shadow_id):
                self._begin(self.shadows.end(deployed, shadow_id))
            case Resize(instance_id, cores):
                await self._platform.resize(instance_id, cores)
                self._resized(deployed, instance_id)
            case SetBufferPlan():
                deployed.plan_buffer(action, self._policy)
            case _:
                await self._apply_to_shadow(deployed, action)

    async def create(self, deployed: Deployed, cores: int, node: str | None = None, memory_mb: int | None = None) -> None:
        """Begin an instance, while the function is there.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        if not self._is_there(deployed):
            return
        request = InstanceRequest(deployed.spec, deployed.version, cores, node, deployed.secrets, memory_mb)
        try:
            begun = await self._platform.create(request)
        except GnomonError as refused:
            if deployed.start_failures.refused(time.monotonic(), refused):
                self._log(deployed.spec.key, "", f"gnomon: an instance cannot be made: {refused}")
            deployed.runtime.refuse_waiting()
            raise
        deployed.start_failures.created()
        self._own(deployed, begun)
        self._tell_starting(deployed)

    async def _apply_to_shadow(self, deployed: Deployed, action: ShadowAction) -> None:
        shadow = await self.shadows.apply(deployed, action)
        if shadow is not None:
            self._own(deployed, shadow)
        self._tell_starting(deployed)

    def _resized(self, deployed: Deployed, instance_id: str) -> None:
        """It counts with the cores that it has by now: a platform that gives them later tells of it then."""
        cores = {one.id: one.cores for one in self._platform.instances(deployed.name)}
        if instance_id in cores:
            deployed.runtime.instance_resized(instance_id, cores[instance_id])

    def _is_there(self, deployed: Deployed) -> bool:
        return self._deployed.get(deployed.name) is deployed

    def _own(self, deployed: Deployed, begun: Instance) -> None:
        """This instance is the function's; where that was removed while it was being begun, nobody needs it."""
        self._owners[begun.id] = deployed
        if not self._is_there(deployed):
            deployed.draining.add(begun.id)
            self._begin(self._platform.destroy(begun.id))

    def stop(self, deployed: Deployed, instance_id: str) -> None:
        """Drain an instance, then stop it. Goes on behind the caller."""
        if instance_id not in deployed.draining:
            deployed.draining.add(instance_id)
            self._begin(self._drain(deployed, instance_id))

    def frozen(self, instance_id: str, reason: str) -> None:
        """An instance does not answer any more: stop it, its batch fails with it, and it is replaced."""
        deployed = self._owners.get(instance_id)
        if deployed is not None:
            deployed.draining.add(instance_id)
            self._log(deployed.spec.key, instance_id, f"gnomon: instance {instance_id} is stopped: {reason}")
        if not self._elsewhere.leads():
            self._elsewhere.lose(instance_id, Lost(reason))
        self._begin(self._platform.destroy(instance_id))

    def lost_elsewhere(self, instance_id: str, lost: Lost) -> None:
        """The replica that sent batches to an instance has lost it."""
        deployed = self._owners.get(instance_id)
        if deployed is not None and instance_id not in deployed.draining:
            if lost.served:
                self._scaling.served(deployed.name)
            self.frozen(instance_id, lost.reason)

    # PlatformListener

    def instance_ready(self, instance: Instance, channel: BatchChannel) -> None:
        deployed = self._owners.get(instance.id)
        if deployed is None and instance.function in self._deployed and not self._elsewhere.leads():
            deployed = self._owners[instance.id] = self._deployed[instance.function]
        if deployed is None or instance.id in deployed.draining:
            self._begin(self._platform.destroy(instance.id))
            return
        deployed.been_ready = True
        if instance.version == deployed.version:
            deployed.start_failures.ready()
        deployed.runtime.instance_ready(instance, channel)
        if instance.pair is not None:
            self.shadows.pair_changed(deployed, instance)  # it was known before it was ready
        self._tell_starting(deployed)
        if deployed.old(self.of(deployed)):
            deployed.runtime.learn_afresh()  # those of earlier versions have served on, and were measured
        self.replacing.retire(deployed)
        self._scaling.poke(deployed.name)

    def instance_gone(self, instance_id: str, reason: str) -> None:
        deployed = self._owners.pop(instance_id, None)
        if deployed is None:
            return
        if instance_id in deployed.shadows:
            self.shadows.gone(deployed, instance_id, reason)
            self._scaling.poke(deployed.name)
            return
        failed = not deployed.runtime.has_been_ready(instance_id) and instance_id not in deployed.draining
        served = deployed.runtime.forget(instance_id)
        if not self._elsewhere.leads():
            self._elsewhere.lose(instance_id, Lost(reason, served))
        elif instance_id not in deployed.draining:
            if served:
                self._scaling.served(deployed.name)
            self._log(deployed.spec.key, instance_id, f"gnomon: instance {instance_id} has ended: {reason}")
            _LOG.warning("%s: instance %s has ended: %s", deployed.name, instance_id, reason)
            if failed:
                deployed.start_failures.failed(time.monotonic(), reason)
        deployed.draining.discard(instance_id)
        deployed.runtime.instance_gone(instance_id, reason)
        if not self._is_there(deployed) and not deployed.runtime.ready:
            deployed.runtime.give_up(function_removed())  # nobody makes another for it
        self._begin(self.shadows.end_those_of(deployed, instance_id))
        self._tell_starting(deployed)
        deployed.runtime.refuse_waiting()
        if instance_id in deployed.retired:
            deployed.retired.discard(instance_id)
            self._begin(self.replacing.take_place(deployed))
        else:
            self._scaling.poke(deployed.name)

    def pair_changed(self, body: Instance) -> None:
        deployed = self._owners.get(body.id)
        if deployed is not None:
            self.shadows.pair_changed(deployed, body)
            self._scaling.poke(deployed.name)

    def shadow_found(self, shadow: Instance) -> None:
        deployed = self._owners.get(shadow.partner or "")
        if deployed is not None and self.shadows.found(deployed, shadow):
            self._owners[shadow.id] = deployed
            self._scaling.poke(deployed.name)
        else:
            self._begin(self._platform.destroy(shadow.id))

    def log_line(self, function: FunctionKey, instance_id: str, text: str) -> None:
        self._log(function, instance_id, text)

    # What goes on behind the callers

    async def _drain(self, deployed: Deployed, instance_id: str) -> None:
        await deployed.runtime.drain(instance_id)
        await self.shadows.end_those_of(deployed, instance_id)
        await self._platform.destroy(instance_id)

    async def _wind_down(self, deployed: Deployed, *, leave: bool) -> None:
        mine = [instance_id for instance_id, owner in self._owners.items() if owner is deployed]
        await deployed.answer_all()
        deployed.draining.update(mine)
        if not leave:
            await asyncio.gather(*(self._platform.destroy(instance_id) for instance_id in mine))
        deployed.runtime.close()

    def _tell_starting(self, deployed: Deployed) -> None:
        bodies = (one for one in self._platform.instances(deployed.name) if one.kind is InstanceKind.BODY)
        deployed.runtime.set_starting(sum(body.state is InstanceState.STARTING for body in bodies))
