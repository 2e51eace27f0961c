"""A platform in virtual time: nodes with cores and memory, and instances that load, serve, and end.

The simulated platform does what every platform does and decides nothing: an instance is created where there is room, is ready
when its model has loaded, takes as long for a batch as its profile says, and ends on request, or crashes. A Shadow is
created on its Body's node or where its pair says, is of use when it has loaded its blocks, sooner where the node's pool has a
container for it, and ends with its Body. How long each instance existed is kept, because that is what a user pays for.

An instance with `idle_cores` claims only those. For each batch it borrows what its node's arbiter has left (`CoreArbiter`), and
the batch takes as long as the profile says for so many.

A node claims cores and memory as the local platform's does (`gnomon_platforms.local.nodes`): a Shadow's cores come from the
reserve as far as that goes, a Body gets what is left of it where it fits nowhere else, and what it gives back is reserve again.
The pool is the coordinator's, in virtual time: a Shadow that finds an empty container is there sooner by a fork, the containers'
memory is not free, and an instance that needs it gets it, because the pool then has to shrink.

    pool 1, three Shadows at once: one finds a container, two wait for forks; from now on three are kept
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from gnomon_coordinator.pool_size import PoolSize
from gnomon_core.core_arbiter import CoreArbiter
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState, Node
from gnomon_core.interfaces import Capabilities
from gnomon_core.pairs import MAX_SHADOWS, Pair
from gnomon_core.units import MEGABYTE, many
from gnomon_platforms.local.pairs import BURST_CONTAINERS, CONTAINER_BYTES
from gnomon_simulator.costs import InstanceLifetime
from gnomon_simulator.events import Events
from gnomon_simulator.profiles import Profile

_STARTING = InstanceState.STARTING
CAPABILITIES = Capabilities(place=True, size=True, victim=True, resize=True, pair=True, promote=True)


class SimulatedPlatform:
    """The simulated cluster: instances, free resources and costs."""

    name = "simulated"
    capabilities = CAPABILITIES

    def __init__(self, nodes: Iterable[NodePlan], events: Events, rng: random.Random) -> None:
        self._nodes = {plan.name: SimulatedNode(plan) for plan in nodes}
        self._events = events
        self._rng = rng
        self._live: dict[str, InstanceLifetime] = {}
        self._fleets: defaultdict[str, _Fleet] = defaultdict(_Fleet)
        self._node_values: tuple[Node, ...] = ()
        self._changed = set(self._nodes)
        """The nodes whose value is not in `_node_values`."""
        self._unchanged_until_s = 0.0
        """The time at which a node's pool next changes by itself."""
        self.instance_lifetimes: list[InstanceLifetime] = []

    def nodes(self) -> tuple[Node, ...]:
        """The nodes and what is free on them. Kept until one changes: a look costs the same however many there are."""
        now_s = self._events.now_s
        if self._changed or now_s >= self._unchanged_until_s:
            before = dict(zip(self._nodes, self._node_values, strict=bool(self._node_values)))
            self._node_values = tuple(
                [
                    node.value(now_s) if name in self._changed or now_s >= node.unchanged_until_s else before[name]
                    for name, node in self._nodes.items()
                ]
            )
            self._changed.clear()
            self._unchanged_until_s = min([node.unchanged_until_s for node in self._nodes.values()], default=math.inf)
        return self._node_values

    def instances(self, function: str) -> tuple[Instance, ...]:
        """The function's instances that are not gone, oldest first."""
        fleet = self._fleets[function]
        if fleet.instances is None:
            fleet.instances = tuple([lifetime.instance for lifetime in fleet.live.values()])
        return fleet.instances

    def stamp(self, function: str) -> int:
        """A number that changes with the function's instances."""
        return self._fleets[function].stamp

    def has(self, instance_id: str) -> bool:
        """True if the instance is not gone."""
        return instance_id in self._live

    def create(
        self,
        function: str,
        profile: Profile,
        cores: int,
        node: str | None,
        ready: Callable[[Instance], None],
        *,
        memory_mb: int | None = None,
        idle_cores: int | None = None,
    ) -> Instance:
        """Begin an instance, STARTING; `ready` is called when its model has loaded, unless it ends before.

        `memory_mb` is a memory size other than the profile's. With `idle_cores` it claims only those and borrows up to `cores`.

        Raises:
            GnomonError: 503 `no_capacity` where no node has enough free capacity.

        """
        memory_bytes = profile.memory_bytes if memory_mb is None else memory_mb * MEGABYTE
        memory_mb = None if memory_bytes == profile.memory_bytes else memory_mb
        node_name = self._place(cores if idle_cores is None else idle_cores, memory_bytes, node)
        name = self._name(function)
        planned = Instance(
            name, function, 1, node_name, cores, memory_bytes, _STARTING, 0.0, memory_mb=memory_mb, idle_cores=idle_cores
        )
        instance = self._begin(planned, profile)
        self._live[instance.id].call(profile.load_s)
        self._events.at(self._events.now_s + profile.load_s, self._loaded, instance.id, ready)
        return instance

    def create_shadow(self, body_id: str, pair: Pair, changed: Callable[[Instance], None]) -> Instance:
        """Begin a Shadow for a ready Body, STARTING; `changed` is called with the Body when the two are connected.

        Raises:
            GnomonError: 503 `no_capacity` where the node, the Body's unless the pair names another, has no room; 404
            `no_such_node` where there is none of that name; 409 `no_such_body` where the Body has gone or has `MAX_SHADOWS`.

        """
        lifetime = self._live.get(body_id)
        if (
            lifetime is None
            or lifetime.instance.state is not InstanceState.READY
            or len(self._shadows_of(lifetime.instance.function, body_id)) >= MAX_SHADOWS
        ):
            raise GnomonError(409, "no_such_body", f"{body_id} does not serve, or has {MAX_SHADOWS} Shadows.", "Decide again.")
        body, profile = lifetime.instance, lifetime.profile
        if pair.node is not None and pair.node not in self._nodes:
            raise GnomonError(404, "no_such_node", f"There is no node {pair.node}.", "Decide again.")
        memory_bytes = profile.shadow_memory_bytes(pair)
        node_name = self._place(pair.shadow_cores, memory_bytes, pair.node or body.node, shadow=True)
        name = self._name(body.function)
        shadow = Instance(
            name, body.function, 1, node_name, pair.shadow_cores, memory_bytes, _STARTING, 0.0,
            kind=InstanceKind.SHADOW, partner=body_id, pair=pair,
        )  # fmt: skip
        self._begin(shadow, profile)
        node = self._nodes[node_name]
        fork_s = 0.0 if node.take_container(self._events.now_s) else node.plan.fork_s
        self._changed.add(node_name)
        self._events.at(self._events.now_s + fork_s + profile.shadow_load_s(pair), self._registered, name, changed)
        return shadow

    def change_shadow(self, shadow_id: str, pair: Pair, changed: Callable[[Instance], None]) -> None:
        """Give a Shadow other blocks or another split, where it is. Unknown ids are ignored."""
        lifetime = self._live.get(shadow_id)
        if lifetime is None:
            return
        pair = replace(pair, node=lifetime.instance.pair.node if lifetime.instance.pair is not None else None)
        shadow = self._change(shadow_id, pair=pair)
        if shadow.state is InstanceState.READY and shadow.partner in self._live:
            changed(self._work_with(shadow.partner, shadow_id, pair))

    def promote_shadow(self, shadow_id: str, changed: Callable[[Instance], None], ready: Callable[[Instance], None]) -> Instance:
        """Promote a Shadow to a Body, STARTING; `changed` is called with its Body when it is alone, then `ready`.

        Raises:
            GnomonError: 503 `no_capacity` where the rest of the model does not fit; 409 `no_such_shadow` where it works for no
            Body.

        """
        lifetime = self._live.get(shadow_id)
        shadow = lifetime.instance if lifetime is not None else None
        serves = shadow is not None and shadow.kind is InstanceKind.SHADOW and shadow.state is InstanceState.READY
        if lifetime is None or shadow is None or not serves or shadow.partner not in self._live or shadow.pair is None:
            raise GnomonError(409, "no_such_shadow", f"{shadow_id} is no Shadow that works for a Body.", "Decide again.")
        more_bytes = lifetime.profile.memory_bytes - shadow.memory_bytes
        node, now_s = self._nodes[shadow.node], self._events.now_s
        if more_bytes > node.unclaimed_bytes:
            raise _no_capacity(0, more_bytes)
        lifetime.account(now_s)
        lifetime.gone_s = now_s
        body = replace(
            shadow, kind=InstanceKind.BODY, state=_STARTING, memory_bytes=lifetime.profile.memory_bytes, started_s=now_s,
            partner=None, pair=None,
        )  # fmt: skip
        self._hold(body)
        promoted = InstanceLifetime(body, lifetime.profile, lifetime.factor, now_s, was_of=shadow.partner)
        self.instance_lifetimes.append(promoted)
        self._live[shadow_id] = promoted
        self._fleets[body.function].put(promoted)
        self._events.at(now_s + lifetime.profile.promotion_s(shadow.pair), self._promoted, shadow_id, changed, ready)
        return body

    def drain(self, instance_id: str) -> None:
        """Mark the instance as draining: it gets no more batches."""
        self._change(instance_id, state=InstanceState.DRAINING)

    def destroy(self, instance_id: str) -> Instance | None:
        """End the instance now, a Body with its Shadows. Returns the Body of a Shadow, which continues without it, else None."""
        self.give_back(instance_id)
        lifetime = self._live.pop(instance_id, None)
        if lifetime is None:
            return None
        instance = lifetime.instance
        self._fleets[instance.function].remove(instance_id)
        lifetime.account(self._events.now_s)
        lifetime.gone_s = self._events.now_s
        self._nodes[instance.node].release(instance_id, self._events.now_s)
        self._changed.add(instance.node)
        if lifetime.was_of is not None:
            return self._work_with(lifetime.was_of, instance_id, None) if lifetime.was_of in self._live else None
        if instance.kind is InstanceKind.SHADOW:
            return self._work_with(instance.partner, instance_id, None) if instance.partner in self._live else None
        for shadow in self._shadows_of(instance.function, instance_id):
            self.destroy(shadow)
        return None

    def resize(self, instance_id: str, cores: int, idle_cores: int | None = None) -> None:
        """Give the instance cores of its own, if its node has them, or let it borrow them. Unknown ids are ignored.

        Raises:
            GnomonError: 503 `no_capacity` where it has not.

        """
        lifetime = self._live.get(instance_id)
        if lifetime is None:
            return
        arbiter = self._nodes[lifetime.instance.node].arbiter
        additional_cores = int((cores if idle_cores is None else idle_cores) - arbiter.claimed(instance_id))
        if additional_cores > arbiter.unclaimed:
            raise _no_capacity(additional_cores, 0)
        lifetime.account(self._events.now_s)
        if idle_cores is None:
            lifetime.borrowed_cores = 0
        self._hold(self._change(instance_id, cores=cores, idle_cores=idle_cores))

    def lend(self, instance_id: str, cores: int) -> int:
        """Lend up to so many cores for the instance's next batch, as its node has them. Returns how many the batch has."""
        lifetime = self._live[instance_id]
        idle_cores = lifetime.instance.idle_cores
        if idle_cores is None:
            return lifetime.instance.cores
        lifetime.account(self._events.now_s)
        lent = self._nodes[lifetime.instance.node].arbiter.lend(instance_id, cores)
        lifetime.borrowed_cores = lent - idle_cores
        return lent

    def share(self, instance_id: str) -> int:
        """The most cores that a batch of this instance may have now; 0 where it does not borrow."""
        lifetime = self._live.get(instance_id)
        return 0 if lifetime is None else self._nodes[lifetime.instance.node].arbiter.share(instance_id)

    def give_back(self, instance_id: str) -> None:
        """Take back the cores that the instance's batch borrowed. Unknown ids are ignored."""
        lifetime = self._live.get(instance_id)
        if lifetime is not None and lifetime.borrowed_cores:
            lifetime.account(self._events.now_s)
            lifetime.borrowed_cores = 0
            self._nodes[lifetime.instance.node].arbiter.give_back(instance_id)

    def execution_s(self, instance_id: str, samples: int) -> float:
        """Execution time of this batch on the instance, including cores borrowed for it."""
        lifetime = self._live[instance_id]
        profile = lifetime.profile
        body = lifetime.instance
        size = body.size if body.idle_cores is None else lifetime.held_cores
        seconds = profile.seconds(profile.variant, size, samples, body.pair)
        assert seconds is not None, "the profile was checked for the function's cores"
        factor = 1.0 if lifetime.factor is None else lifetime.factor(self._rng)
        if body.pair is not None:
            for (shadow, pair), share in zip(body.shadows.items(), body.pair.shares(samples), strict=True):
                self._live[shadow].busy_s += factor * profile.shadow_busy_s(pair, share)
        lifetime.call(seconds * factor)
        return seconds * factor

    def end(self) -> None:
        """End the simulation: account for all live instances."""
        for lifetime in self._live.values():
            lifetime.account(self._events.now_s)

    def _loaded(self, instance_id: str, ready: Callable[[Instance], None]) -> None:
        if instance_id in self._live and self._live[instance_id].instance.state is InstanceState.STARTING:
            ready(self._change(instance_id, state=InstanceState.READY))

    def _promoted(self, body_id: str, changed: Callable[[Instance], None], ready: Callable[[Instance], None]) -> None:
        lifetime = self._live.get(body_id)
        if lifetime is None or lifetime.instance.state is not InstanceState.STARTING:
            return
        before, lifetime.was_of = lifetime.was_of, None
        if before in self._live:
            changed(self._work_with(before, body_id, None))
        self._loaded(body_id, ready)

    def _registered(self, shadow_id: str, changed: Callable[[Instance], None]) -> None:
        lifetime = self._live.get(shadow_id)
        if lifetime is not None and lifetime.instance.partner in self._live:
            shadow = self._change(shadow_id, state=InstanceState.READY)
            assert shadow.partner is not None
            changed(self._work_with(shadow.partner, shadow_id, shadow.pair))

    def _work_with(self, body_id: str, shadow_id: str, pair: Pair | None) -> Instance:
        """Set the pair of a Body with one of its Shadows; None removes that Shadow."""
        lifetime = self._live[body_id]
        shadows = {**lifetime.instance.shadows, shadow_id: pair}
        lifetime.instance = lifetime.instance.working_with({shadow: pair for shadow, pair in shadows.items() if pair is not None})
        self._fleets[lifetime.instance.function].changed()
        return lifetime.instance

    def _shadows_of(self, function: str, body_id: str) -> list[str]:
        fleet = self._fleets[function]
        shadows = (lifetime.instance for lifetime in fleet.live.values() if lifetime.instance.kind is InstanceKind.SHADOW)
        return [shadow.id for shadow in shadows if shadow.partner == body_id]

    def _name(self, function: str) -> str:
        return f"{function.partition('.')[0]}-{len(self.instance_lifetimes) + 1}"

    def _begin(self, planned: Instance, profile: Profile) -> Instance:
        now_s = self._events.now_s
        instance = replace(planned, started_s=now_s)
        lifetime = InstanceLifetime(instance, profile, profile.noise.factor(), now_s)
        self.instance_lifetimes.append(lifetime)
        self._live[instance.id] = lifetime
        self._fleets[instance.function].put(lifetime)
        self._hold(instance)
        return instance

    def _change(self, instance_id: str, **changes: Any) -> Instance:
        lifetime = self._live[instance_id]
        lifetime.instance = replace(lifetime.instance, **changes)
        self._fleets[lifetime.instance.function].changed()
        return lifetime.instance

    def _place(self, cores: int, memory_bytes: int, node: str | None, *, shadow: bool = False) -> str:
        """The node with most free cores that has room, or the one that is named; a Body comes to a reserve last."""
        named = [self._nodes[node]] if node in self._nodes else []
        nodes = named or sorted(
            self._nodes.values(), key=lambda each: (each.reserve_cores - each.unclaimed_cores, each.plan.name)
        )
        for reserve in (True,) if shadow else (False, True):
            for each in nodes:
                if each.has_room(cores, memory_bytes, reserve=reserve):
                    return each.plan.name
        raise _no_capacity(cores, memory_bytes)

    def _hold(self, instance: Instance) -> None:
        shadow = instance.kind is InstanceKind.SHADOW
        claimed = instance.cores if instance.idle_cores is None else instance.idle_cores
        self._nodes[instance.node].hold(
            instance.id, claimed, instance.memory_bytes, self._events.now_s, shadow=shadow, idle_cores=instance.idle_cores
        )
        self._changed.add(instance.node)


class _Fleet:
    """The live instances of one function, by id; `instances` is their cached view, None after a change."""

    __slots__ = ("instances", "live", "stamp")

    def __init__(self) -> None:
        self.live: dict[str, InstanceLifetime] = {}
        self.instances: tuple[Instance, ...] | None = None
        self.stamp = 0

    def put(self, lifetime: InstanceLifetime) -> None:
        self.live[lifetime.instance.id] = lifetime
        self.changed()

    def remove(self, instance_id: str) -> None:
        del self.live[instance_id]
        self.changed()

    def changed(self) -> None:
        self.instances = None
        self.stamp += 1


def _no_capacity(cores: int, memory_bytes: int) -> GnomonError:
    requested = [many(cores, "core")] * bool(cores) + [f"{math.ceil(memory_bytes / MEGABYTE)} MiB"] * bool(memory_bytes)
    return GnomonError(
        503,
        "no_capacity",
        f"No node has {' and '.join(requested)} free.",
        "Give the cluster more or larger nodes.",
    )


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A machine of the simulated cluster.

    `reserved_cores` are held for Shadows, `pool` empty containers are kept, more after bursts, as `gnomon serve` has it. `fork_s`
    is what a Shadow takes longer that finds none: medians of 22.9 beside 13.2 ms were measured (`benchmarks.shadow starts`).
    """

    name: str
    cores: int
    memory_bytes: int = 2**37
    reserved_cores: float = 0.0
    pool: int = 1
    fork_s: float = 0.01


class SimulatedNode:
    """A simulated machine with its free resources."""

    def __init__(self, plan: NodePlan) -> None:
        self.plan = plan
        self.arbiter = CoreArbiter(plan.cores)
        self.unclaimed_bytes = plan.memory_bytes
        self._held: dict[str, tuple[int, int]] = {}
        """Each instance's memory in bytes, and its cores if it is a Shadow."""
        self._shadows_cores = 0
        self._pool = PoolSize()
        self._reported_pool: tuple[int, int] | None = None
        self._containers = 0
        self._ready_s = 0.0
        """The time at which the youngest of the containers is ready."""
        self._fit(-plan.fork_s)

    @property
    def unclaimed_cores(self) -> float:
        """Cores that no instance has for its life."""
        return self.arbiter.unclaimed

    def value(self, now_s: float) -> Node:
        """Capacity and free resources of the node; the reserve is separate, the pool's containers are deducted."""
        self._fill(now_s)
        reserve = self.reserve_cores
        return Node(
            name=self.plan.name,
            cores=self.plan.cores,
            memory_bytes=self.plan.memory_bytes,
            free_cores=self.unclaimed_cores - reserve,
            free_memory_bytes=max(0, self.unclaimed_bytes - self._pool.target * CONTAINER_BYTES),
            reserve_cores=reserve,
            lends=True,
        )

    @property
    def reserve_cores(self) -> float:
        """Cores held for Shadows now: fewer than configured while Shadows use them, or while Bodies need them."""
        return max(0.0, min(self.plan.reserved_cores - self._shadows_cores, self.unclaimed_cores))

    @property
    def unchanged_until_s(self) -> float:
        """Time of the pool's next fork or removal of containers if no event comes before; infinity at its target size."""
        due_s = self._pool.due_s(self._containers)
        return math.inf if due_s is None else due_s

    def has_room(self, cores: int, memory_bytes: int, *, reserve: bool) -> bool:
        """True if an instance fits, into the reserve as well or beside it."""
        free_cores = self.unclaimed_cores - (0.0 if reserve else self.reserve_cores)
        return cores <= free_cores and memory_bytes <= self.unclaimed_bytes

    def hold(
        self, name: str, cores: int, memory_bytes: int, now_s: float, *, shadow: bool = False, idle_cores: int | None = None
    ) -> None:
        """Give an instance cores and memory, in the place of what it held. With `idle_cores` it borrows others for each batch."""
        self._forget(name)
        self.arbiter.claim(name, cores, idle_cores=idle_cores)
        self._held[name] = memory_bytes, cores if shadow else 0
        self.unclaimed_bytes -= memory_bytes
        self._shadows_cores += cores if shadow else 0
        self._fit(now_s)

    def release(self, name: str, now_s: float) -> None:
        """Release the instance's cores and memory."""
        self._forget(name)
        self.arbiter.release(name)
        self._fit(now_s)

    def _forget(self, name: str) -> None:
        memory_bytes, shadow_cores = self._held.pop(name, (0, 0))
        self.unclaimed_bytes += memory_bytes
        self._shadows_cores -= shadow_cores

    def take_container(self, now_s: float) -> bool:
        """Take a container for a new Shadow. Returns whether an empty one was ready."""
        self._fill(now_s)
        was_ready = self._containers > 0 and self._ready_s <= now_s
        self._containers -= was_ready
        self._pool.taken(now_s)
        return was_ready

    def _fit(self, now_s: float) -> None:
        """Keep as many containers as there is memory for (`gnomon_platforms.local.recipes`)."""
        capacity = max(0, self.unclaimed_bytes // CONTAINER_BYTES)
        size = min(self.plan.pool, capacity)
        most = min(max(size, BURST_CONTAINERS), capacity) if size else 0
        if (size, most) != self._reported_pool:
            self._reported_pool = size, most
            self._pool.resize(size, now_s, most)
        self._fill(now_s)

    def _fill(self, now_s: float) -> None:
        """Fork missing containers, from the time they were due, and end superfluous ones."""
        due_s = self._pool.due_s(self._containers)
        missing = self._pool.missing(self._containers, now_s)
        self._containers += missing
        if missing > 0 and due_s is not None:
            self._ready_s = due_s + self.plan.fork_s
