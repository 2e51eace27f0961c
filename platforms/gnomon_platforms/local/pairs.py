"""Shadows on this machine: requests to the node's coordinator, its events, and the pool of empty containers.

    create ▶ cores and memory allocated ▶ requested of the coordinator ▶ forked: a pid ▶ registered: READY ▶ paired …
                                                     destroy: the Body unpairs, the process stops ▶ gone
                                                     promote ▶ complete, unpaired ▶ HELLO: a Body, in `LocalPlatform`

The listener is notified of a pair by `pair_changed(Body with its Shadow)`, and of its end, whatever the cause, by `pair_changed`
of the Body alone before `instance_gone` of the Shadow.

A Shadow is an instance like any other: pinned to CPUs, limited, in its function's sandbox, counted in its usage. But the
coordinator makes it, out of a pool container that belongs to no function before.

A coordinator that is replaced knows nothing of what was requested, so requests are repeated to its successor. For this the
platform keeps the request with its files, the order and the log's pipe, until the Shadow has registered, and those of a promotion
until the Shadow is a Body. From the promotion on, a Shadow is reported as the Body that it will be.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gnomon_core import packets
from gnomon_core.blocks import Layers
from gnomon_core.coordinator_client import CoordinatorClient
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import InstanceRequest
from gnomon_core.launch import Order
from gnomon_core.pairs import MAX_SHADOWS, Pair, predicted_ms
from gnomon_core.profiles import ModelProfile
from gnomon_platforms.common import claimed_cores, requested_cores, shadow_bytes
from gnomon_platforms.local.cgroups import ResourceAccounting
from gnomon_platforms.local.channel import UnixChannel, channel_pair
from gnomon_platforms.local.instances import InstanceContext, LocalInstance, LocalProcess
from gnomon_platforms.local.nodes import LocalNode
from gnomon_platforms.local.recipes import Recipe, Recipes, joining, limit_bytes, shadow_order
from gnomon_platforms.local.supervision import BASE_ENVIRONMENT, TORCH
from gnomon_platforms.profile_files import LayerFiles, ProfileFiles

STOP_S = 9.0
"""Seconds for the coordinator to end a Shadow: its Body may be executing a batch, and disconnects first."""


class LocalShadow(LocalProcess):
    """A Shadow on this machine. `send_coordinator` sends the coordinator a message. `channel` is for its life as a Body."""

    def __init__(
        self,
        instance: Instance,
        key: FunctionKey,
        environment: str,
        context: InstanceContext,
        send_coordinator: Callable[..., None],
    ) -> None:
        super().__init__(instance, key, environment, context)
        self.create_message: dict[str, Any] = {}
        """The request to the coordinator; empty before it is sent."""
        self._send_coordinator = send_coordinator
        self.body_id = instance.partner or ""
        self._launch_fds: tuple[int, ...] = ()
        """The order and the log's pipe, until the Shadow has registered: a new coordinator needs them again."""
        self._promotion_fds: tuple[int, ...] = ()
        """The order and the channel of the Body that it becomes, until it is one."""

    def order(self, message: Mapping[str, Any], order: int, timeout_s: float) -> None:
        """Request the Shadow. Takes ownership of the order, an anonymous file."""
        self._launch_fds = (order, self._open_log())
        self.create_message = dict(message)
        self._send_coordinator(self.create_message, self._launch_fds)
        self._after(timeout_s, lambda: self.kill(f"not ready after {timeout_s:g} s"))

    def repeat_requests(self) -> None:
        """Repeat the pending request to a new coordinator, which may not know this Shadow."""
        if self._stopping:
            self._send_coordinator({"do": "destroy", "shadow": self.instance.id})
        elif self.create_message:
            self._send_coordinator(self.create_message, self._launch_fds)
            if self._promotion_fds:
                self._send_coordinator({"do": "promote", "shadow": self.instance.id}, self._promotion_fds)

    def forked(self, pid: int) -> None:
        """Record the pid of the container that has become this Shadow."""
        self.pid = pid

    def registered(self) -> None:
        """Mark the Shadow READY: it has loaded its blocks."""
        self._close_launch_fds()
        if self._stopping or self.promoting or self.instance.state is not InstanceState.STARTING:
            return
        self._cancel_timer()
        self.instance = replace(self.instance, state=InstanceState.READY)

    def change(self, pair: Pair, cpus: tuple[int, ...], memory_bytes: int, expected_ms: list[list[float]]) -> None:
        """Change the Shadow's cores, CPUs, blocks and split."""
        self.instance = replace(self.instance, cores=pair.shadow_cores, memory_bytes=memory_bytes)
        details = {
            "cores": pair.shadow_cores,
            "cpus": list(cpus),
            "blocks": list(pair.blocks),
            "split": list(pair.split),
            "expected_ms": expected_ms,
        }
        self.create_message |= details
        self._send_coordinator({"do": "change", "shadow": self.instance.id, **details})

    def set_pair(self, pair: Pair | None) -> None:
        """Set the pair by which the Shadow works with its Body from now on."""
        if not self.promoting:
            self.instance = replace(self.instance, pair=pair)

    @property
    def promoting(self) -> bool:
        """True if the Shadow is being promoted to a Body."""
        return self.channel is not None

    def promote(self, order: Order, memory_bytes: int, timeout_s: float, promoted: Callable[[], None]) -> None:
        """Promote it to the Body of this order; `promoted` is called at its first message as one."""
        ours, theirs = channel_pair()
        self.channel = UnixChannel(ours, lambda _: None if self._stopping else promoted(), self._channel_lost)
        self._promotion_fds = (packets.sealed_file("order", order.to_json().encode()), theirs.detach())
        self.instance = replace(
            self.instance,
            kind=InstanceKind.BODY,
            state=InstanceState.STARTING,
            cores=order.launch.cores,
            memory_bytes=memory_bytes,
            started_s=self._context.now_s(),
            partner=None,
            pair=None,
        )
        self._send_coordinator({"do": "promote", "shadow": self.instance.id}, self._promotion_fds)
        self._after(timeout_s, lambda: self.kill(f"not a Body after {timeout_s:g} s"))

    def become_body(self) -> LocalInstance:
        """The Body that this Shadow has become, with its process, channel and log. This record is not used any more."""
        self._cancel_timer()
        self._close_fds()
        return LocalInstance.promoted(self, self._context)

    def _channel_lost(self, reason: str) -> None:
        if not self._stopping and not self.gone.done():
            self.kill(reason)

    def stop(self) -> None:
        """Stop the Shadow: its Body disconnects first. Idempotent."""
        if self._stopping or self.gone.done():
            return
        self._begin_to_stop("stopped")
        if not self.create_message:
            self.end(0.0, "stopped before it began")
            return
        self._send_coordinator({"do": "destroy", "shadow": self.instance.id})
        self._after(STOP_S, self._kill_now)

    def ending(self, reason: str) -> None:
        """Record that the coordinator ends the Shadow, requested or not."""
        if not self._stopping:
            self._begin_to_stop(reason)
            self._after(STOP_S, self._kill_now)

    def failed(self, reason: str) -> None:
        """Record that the coordinator has no process for it. The supervisor reports a process that has ended meanwhile."""
        if self.pid is None:
            self.end(0.0, reason)
        else:
            self._begin_to_stop(reason)
            self._kill_now()

    def kill(self, reason: str) -> None:
        """Kill the Shadow at once."""
        self._begin_to_stop(reason)
        self._kill_now()
        self._send_coordinator({"do": "destroy", "shadow": self.instance.id})

    def end(self, cpu_s: float, reason: str) -> None:
        """Record that the process has ended or never started. Notifies the listener, once."""
        self._close_fds()
        super().end(cpu_s, reason)

    def _begin_to_stop(self, reason: str) -> None:
        self._stopping = True
        self._reason = self._reason or reason
        if not self.gone.done():
            self.instance = replace(self.instance, state=InstanceState.DRAINING)

    def _kill_now(self) -> None:
        self._context.send({"do": "kill", "id": self.instance.id, "signal": int(signal.SIGKILL)})

    def _close_launch_fds(self) -> None:
        fds, self._launch_fds = self._launch_fds, ()
        for descriptor in fds:
            os.close(descriptor)

    def _close_fds(self) -> None:
        self._close_launch_fds()
        fds, self._promotion_fds = self._promotion_fds, ()
        for descriptor in fds:
            os.close(descriptor)


Send = Callable[..., None]


@dataclass(frozen=True, slots=True)
class BodyOrigin:
    """The request and recipe of a Body; its Shadows are made from the same."""

    request: InstanceRequest
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class ShadowContext:
    """The objects that the platform's Shadows share with its other instances."""

    node: LocalNode
    recipes: Recipes
    instances: InstanceContext
    accounts: ResourceAccounting
    profiles: ProfileFiles
    bodies: Mapping[str, LocalInstance]
    origins: Mapping[str, BodyOrigin]
    start_timeout_s: float
    promoted: Callable[[LocalInstance, BodyOrigin], None]
    """Takes a Shadow that has become a Body."""


class Pairs:
    """Every Shadow of this platform. `pool` empty containers are kept in reserve, more after bursts, as far as memory allows."""

    def __init__(self, send: Send, context: ShadowContext, pool: int) -> None:
        self._send = send
        self._context = context
        self._coordinator: CoordinatorClient | None = None
        self._layers = LayerFiles()
        self.shadows: dict[str, LocalShadow] = {}
        self.pool = ContainerPool(self._send_coordinator, context.node, pool)

    # The coordinator

    def begin(self) -> None:
        """Start a coordinator, unless one is running."""
        if self._coordinator is None:
            self._coordinator = CoordinatorClient(self._send, self._on_event, BASE_ENVIRONMENT)

    def lost(self) -> None:
        """Record the end of the supervisor, and with it of the coordinator and every Shadow."""
        self.pool.lost()
        self.close()
        for shadow in list(self.shadows.values()):
            shadow.end(shadow.cpu_s, "the supervisor has ended")

    def close(self) -> None:
        """Release the socket to the coordinator."""
        if self._coordinator is not None:
            self._coordinator.close()
            self._coordinator = None

    def _send_coordinator(self, message: Mapping[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        if self._coordinator is not None:
            self._coordinator.send(message, descriptors)

    # Requests of the platform

    async def create(self, body_id: str, pair: Pair, shadow_id: str) -> Instance:
        """Begin a Shadow for a ready Body.

        Raises:
            GnomonError: 503 `no_capacity`; 409 `no_such_body` where it has gone, has `MAX_SHADOWS`, or no layer blocks; 404
                `no_such_node` for another node than this one.

        """
        context, origin = self._context, self._context.origins.get(body_id)
        known = None if origin is None else await asyncio.to_thread(self._blocks_and_profile, origin.recipe)
        body = context.bodies.get(body_id)
        if body is None or origin is None or known is None or not self._accepts_shadow(body):
            raise _no_such_body(f"The Body has ended, has {MAX_SHADOWS} Shadows already, or its model has no layer blocks.")
        layers, profile = known
        if pair.node not in (None, context.node.name):
            raise GnomonError(
                404, "no_such_node", f"There is no node {pair.node}.", f"This platform is {context.node.name} alone."
            )
        if not pair.blocks or max(pair.blocks) >= len(layers.blocks):
            raise _no_such_body(f"Its model has blocks 0 to {len(layers.blocks) - 1}, not {pair.blocks}.")
        memory_bytes = shadow_bytes(layers, pair, profile, origin.recipe.weight_mode)
        allocation = context.node.allocate(shadow_id, pair.shadow_cores, memory_bytes, pair.shadow_cores, from_reserve=True)
        instance = Instance(
            id=shadow_id,
            function=body.instance.function,
            version=body.instance.version,
            node=context.node.name,
            cores=pair.shadow_cores,
            memory_bytes=memory_bytes,
            state=InstanceState.STARTING,
            started_s=context.instances.now_s(),
            kind=InstanceKind.SHADOW,
            partner=body.instance.id,
            pair=pair,
        )
        shadow = self.shadows[shadow_id] = LocalShadow(
            instance, body.key, body.environment, context.instances, self._send_coordinator
        )
        try:
            join = context.accounts.open(shadow_id, limit_bytes(origin.request.spec))
            request = replace(origin.request, cores=pair.shadow_cores)
            order = context.recipes.order(origin.recipe, request, shadow_id, allocation.cpus, limited=bool(join))
            order, join = joining(shadow_order(order, body.instance.id), join)
            message = {**_create_message(instance, order.launch.options, allocation.cpus, origin), "join": join}
            message["expected_ms"] = predicted_ms(profile, pair)
            shadow.order(message, packets.sealed_file("order", order.to_json().encode()), context.start_timeout_s)
            self.pool.fit()
        except OSError as error:
            shadow.end(0.0, f"could not be started: {error}")
        return shadow.instance

    def change(self, shadow: LocalShadow, pair: Pair) -> None:
        """Change a Shadow's blocks, split or cores.

        Raises:
            GnomonError: 503 `no_capacity`; the Shadow keeps what it has.

        """
        origin = None if shadow.promoting else self._context.origins.get(shadow.body_id)
        known = None if origin is None else self._blocks_and_profile(origin.recipe)
        if known is None or origin is None or not pair.blocks or max(pair.blocks) >= len(known[0].blocks):
            return
        layers, profile = known
        memory_bytes = shadow_bytes(layers, pair, profile, origin.recipe.weight_mode)
        allocation = self._context.node.allocate(
            shadow.instance.id, pair.shadow_cores, memory_bytes, pair.shadow_cores, from_reserve=True
        )
        shadow.change(pair, allocation.cpus, memory_bytes, predicted_ms(profile, pair))
        self.pool.fit()

    def promote(self, shadow_id: str) -> Instance:
        """Promote a Shadow that works with its Body, and return the Body that it becomes.

        Raises:
            GnomonError: 503 `no_capacity`; it remains a Shadow. 409 `no_such_shadow` if the id is not of a Shadow.

        """
        context, shadow = self._context, self.shadows.get(shadow_id)
        body = None if shadow is None else context.bodies.get(shadow.body_id)
        origin = None if shadow is None else context.origins.get(shadow.body_id)
        if (
            shadow is None
            or body is None
            or origin is None
            or shadow.promoting
            or shadow.instance.state is not InstanceState.READY
        ):
            raise _no_such_shadow(shadow_id)
        cores = shadow.instance.cores
        request = replace(origin.request, cores=cores)
        memory_bytes = origin.recipe.memory_bytes
        held = requested_cores(request.spec) is not None
        allocation = context.node.allocate(
            shadow_id, claimed_cores(request.spec, cores), memory_bytes, cores, held_while_idle=held
        )
        # Its control group limits its memory, as for every instance of the function.
        order = context.recipes.order(origin.recipe, request, shadow_id, allocation.cpus, limited=True)
        whole = replace(origin, request=request)
        shadow.promote(order, memory_bytes, context.start_timeout_s, lambda: self._promoted(shadow, whole))
        self.pool.fit()
        return shadow.instance

    def _promoted(self, shadow: LocalShadow, origin: BodyOrigin) -> None:
        """Register a promoted Shadow as a Body after its first message as one."""
        self._set_body_pair(shadow, None)
        del self.shadows[shadow.instance.id]
        self._context.promoted(shadow.become_body(), origin)

    def _accepts_shadow(self, body: LocalInstance) -> bool:
        has = sum(shadow.instance.partner == body.instance.id for shadow in self.shadows.values())
        return body.instance.state is InstanceState.READY and has < MAX_SHADOWS

    def _blocks_and_profile(self, recipe: Recipe) -> tuple[Layers, ModelProfile | None] | None:
        """The blocks of the recipe's model, and its profile; None without blocks."""
        layers = self._layers.of(recipe.options)
        if layers is None:
            return None
        # The file is read again if it changed: a profile may be newer than the Body.
        return layers, recipe.profile(self._context.profiles)

    def body_gone(self, body_id: str) -> None:
        """Kill the Shadows of a Body that has ended, except those in promotion. The coordinator, if it is up, does the same."""
        for shadow in list(self.shadows.values()):
            if shadow.body_id == body_id and not shadow.promoting:
                shadow.kill("its Body has gone")

    # Events of the coordinator

    def _on_event(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "pool":
            self.pool.set_containers(int(event["containers"]))
            return
        if kind == "ready":
            self.pool.send_size()
            for each in list(self.shadows.values()):
                each.repeat_requests()
            return
        shadow = self.shadows.get(event.get("shadow", ""))
        if shadow is None:
            return
        if kind == "registered":
            shadow.registered()
        elif kind == "paired":
            pair = Pair(shadow.instance.cores, tuple(event["blocks"]), tuple(event["split"]))
            shadow.set_pair(pair)
            self._set_body_pair(shadow, pair)
        elif kind == "unpaired":
            self._set_body_pair(shadow, None)
        elif kind == "ending":
            shadow.ending(str(event["reason"]))
        elif kind == "failed":
            shadow.failed(str(event["reason"]))

    def shadow_ended(self, shadow: LocalShadow) -> None:
        """Report a Body without this ended Shadow, if that was not reported before."""
        self._set_body_pair(shadow, None)

    def _set_body_pair(self, shadow: LocalShadow, pair: Pair | None) -> None:
        body = self._context.bodies.get(shadow.body_id)
        if body is not None and not body.gone.done():
            body.set_pair(shadow.instance.id, pair)


CONTAINER_BYTES = 32 * 2**20
"""The private memory of an empty container once it has rehearsed: 11 MB were measured, and the tables of its pages."""
BURST_CONTAINERS = 4
"""Containers that the pool may keep after a burst, for the next one."""


class ContainerPool:
    """The number of empty containers that the coordinator keeps, and the memory that they take of the node.

    The pool has the configured `size`, and more after bursts, within the memory that instances leave: instances come first, and
    the pool shrinks for them. The memory of a container counts whether it is there or about to be forked: one that becomes a
    Shadow is replaced.
    """

    def __init__(self, send_coordinator: Callable[[Mapping[str, Any]], None], node: LocalNode, size: int) -> None:
        self._send_coordinator = send_coordinator
        self._node = node
        self._size = size
        self._warm = False
        self._sent: tuple[int, int] | None = None

    def warm(self) -> None:
        """The zygote that containers are forked from is warm."""
        self._warm = True
        self.send_size()

    def send_size(self) -> None:
        """Send the pool size to the coordinator again, because it may be a new process."""
        self._sent = None
        self.fit()

    def fit(self) -> None:
        """Fit the pool to the free memory. Called when allocations of instances have changed."""
        capacity = max(0, self._node.unallocated_memory_bytes // CONTAINER_BYTES)
        size = min(self._size, capacity)
        most = min(max(size, BURST_CONTAINERS), capacity) if size else 0
        if self._warm and (size, most) != self._sent:
            self._sent = size, most
            self._send_coordinator({"do": "pool", "size": size, "most": most, "zygote": TORCH.id})

    def set_containers(self, containers: int) -> None:
        """Record the number of containers that the coordinator keeps."""
        self._node.set_pool_bytes(containers * CONTAINER_BYTES)

    def lost(self) -> None:
        """Forget the pool: its containers have ended with the supervisor."""
        self._warm = False
        self.set_containers(0)


def _create_message(instance: Instance, options: Mapping[str, Any], cpus: tuple[int, ...], origin: BodyOrigin) -> dict[str, Any]:
    assert instance.pair is not None
    pair = instance.pair
    return {
        "do": "create",
        "zygote": TORCH.id,
        "shadow": instance.id,
        "body": instance.partner,
        **{name: options[name] for name in ("program", "weights", "layers", "weight_mode", "engine", "graph") if name in options},
        "cores": pair.shadow_cores,
        "cpus": list(cpus),
        "blocks": list(pair.blocks),
        "split": list(pair.split),
        "max_batch": max(origin.request.spec.settings.max_batch, len(pair.split)),
    }


def _no_such_shadow(shadow_id: str) -> GnomonError:
    return GnomonError(
        409,
        "no_such_shadow",
        f"{shadow_id} cannot become a Body: it works with no Body, or is being promoted already.",
        "Decide again from the present instances.",
    )


def _no_such_body(why: str) -> GnomonError:
    return GnomonError(
        409, "no_such_body", f"The Body cannot have this Shadow. {why}", "Decide again from the present instances."
    )
