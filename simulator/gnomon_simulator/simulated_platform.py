"""A platform in virtual time: nodes with cores and memory, and instances that load, serve, and end.

It does what every platform does and decides nothing: an instance is created where there is room, is ready when its model has
loaded, takes as long for a batch as its profile says, and ends when it is told to, or crashes. How long each instance existed is
kept, because that is what a user pays for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState, Node
from gnomon_core.seam_values import Capabilities
from gnomon_simulator.events import Events
from gnomon_simulator.profiles import Factor, Profile

CAPABILITIES = Capabilities(place=True, size=True, victim=True, resize=True, pair=False)


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A machine of the simulated cluster."""

    name: str
    cores: int
    memory_bytes: int = 2**37


@dataclass(slots=True)
class Lifetime:
    """An instance from its creation to its end; what it costs adds up in `core_s` as its cores change."""

    instance: Instance
    profile: Profile
    factor: Factor | None
    cores_since_s: float
    core_s: float = 0.0
    gone_s: float | None = None

    def account(self, now_s: float) -> None:
        """Add what it has cost since it last changed."""
        self.core_s += self.instance.cores * (now_s - self.cores_since_s)
        self.cores_since_s = now_s


class SimulatedPlatform:
    """The cluster: what runs where, what is free, and what it cost."""

    name = "simulated"
    capabilities = CAPABILITIES

    def __init__(self, nodes: Iterable[NodePlan], events: Events, chance: random.Random) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._events = events
        self._chance = chance
        self._live: dict[str, Lifetime] = {}
        self._free = {node.name: (float(node.cores), node.memory_bytes) for node in self._nodes.values()}
        self.lifetimes: list[Lifetime] = []

    def nodes(self) -> tuple[Node, ...]:
        """The nodes and what is free on them."""
        return tuple(Node(node.name, node.cores, node.memory_bytes, *self._free[node.name]) for node in self._nodes.values())

    def instances(self, function: str) -> tuple[Instance, ...]:
        """The function's instances that are not gone, oldest first."""
        return tuple(life.instance for life in self._live.values() if life.instance.function == function)

    def has(self, instance_id: str) -> bool:
        """Whether the instance is not gone."""
        return instance_id in self._live

    def create(
        self, function: str, profile: Profile, cores: int, node: str | None, ready: Callable[[Instance], None]
    ) -> Instance:
        """Begin an instance, STARTING; `ready` is called when its model has loaded, unless it ends before.

        Raises:
            GnomonError: 503 `no_capacity` where no node has room.

        """
        place = self._place(cores, profile.memory_bytes, node)
        now_s = self._events.now_s
        identity = f"{function.partition('.')[0]}-{len(self.lifetimes) + 1}"
        instance = Instance(identity, function, 1, place, cores, profile.memory_bytes, InstanceState.STARTING, now_s)
        life = Lifetime(instance, profile, profile.noise.factor(), now_s)
        self.lifetimes.append(life)
        self._live[identity] = life
        self._take(place, cores, profile.memory_bytes)
        self._events.at(now_s + profile.load_s, self._loaded, identity, ready)
        return instance

    def drain(self, instance_id: str) -> None:
        """The instance gets no more batches."""
        self._change(instance_id, state=InstanceState.DRAINING)

    def destroy(self, instance_id: str) -> None:
        """The instance ends now. Unknown ids are ignored."""
        life = self._live.pop(instance_id, None)
        if life is None:
            return
        instance = life.instance
        life.account(self._events.now_s)
        life.gone_s = self._events.now_s
        self._take(instance.node, -instance.cores, -instance.memory_bytes)

    def resize(self, instance_id: str, cores: int) -> None:
        """Give the instance another number of cores, if its node has them.

        Raises:
            GnomonError: 503 `no_capacity` where it has not.

        """
        life = self._live[instance_id]
        more = cores - life.instance.cores
        if more > self._free[life.instance.node][0]:
            raise _no_capacity(more, 0)
        life.account(self._events.now_s)
        self._take(life.instance.node, more, 0)
        self._change(instance_id, cores=cores)

    def execution_s(self, instance_id: str, samples: int) -> float:
        """How long this batch will take there."""
        life = self._live[instance_id]
        profile = life.profile
        seconds = profile.seconds(profile.variant, life.instance.cores, samples)
        assert seconds is not None, "the profile was checked for the function's cores"
        return seconds if life.factor is None else seconds * life.factor(self._chance)

    def end(self) -> None:
        """The simulation is over: account for what still lives."""
        for life in self._live.values():
            life.account(self._events.now_s)

    def _loaded(self, instance_id: str, ready: Callable[[Instance], None]) -> None:
        if instance_id in self._live and self._live[instance_id].instance.state is InstanceState.STARTING:
            ready(self._change(instance_id, state=InstanceState.READY))

    def _change(self, instance_id: str, *, state: InstanceState | None = None, cores: int | None = None) -> Instance:
        life = self._live[instance_id]
        old = life.instance
        life.instance = Instance(
            old.id, old.function, old.version, old.node, cores or old.cores, old.memory_bytes, state or old.state, old.started_s
        )
        return life.instance

    def _place(self, cores: int, memory_bytes: int, node: str | None) -> str:
        names = [node] if node in self._nodes else sorted(self._nodes, key=lambda name: (-self._free[name][0], name))
        for name in names:
            free_cores, free_bytes = self._free[name]
            if free_cores >= cores and free_bytes >= memory_bytes:
                return name
        raise _no_capacity(cores, memory_bytes)

    def _take(self, node: str, cores: int, memory_bytes: int) -> None:
        free_cores, free_bytes = self._free[node]
        self._free[node] = (free_cores - cores, free_bytes - memory_bytes)


def _no_capacity(cores: int, memory_bytes: int) -> GnomonError:
    return GnomonError(
        503,
        "no_capacity",
        f"No node has {cores} free cores and {memory_bytes} free bytes.",
        "Give the cluster more or larger nodes.",
    )
