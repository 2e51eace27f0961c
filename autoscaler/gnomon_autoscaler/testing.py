"""A stage for trying a policy: an in-memory fleet whose load you set, and a timeline whose clock you move.

    timeline = Timeline(Settings(autoscaler="kpa", scale=ScaleSettings(max=10)))
    timeline.rps = timeline.concurrency = 7.0
    timeline.play(60)
    assert timeline.live == 10

Nothing is random and no time passes by itself, so that a test states seconds and instances exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from gnomon_autoscaler.registry import BUILT_IN, Policies
from gnomon_autoscaler.runner import Runner
from gnomon_autoscaler.windows import BIN_S
from gnomon_core.actuation import CarryingOut
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState, Node
from gnomon_core.pairs import MAX_SHADOWS, Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import (
    Action,
    ChangeShadow,
    CreateBody,
    CreateShadow,
    Decision,
    DestroyBody,
    DestroyShadow,
    FunctionLoad,
    LoadCounters,
    PromoteShadow,
    Resize,
    SetBufferPlan,
)
from gnomon_core.settings import Settings
from gnomon_core.units import LARGEST_MB, MEGABYTE

FUNCTION = "echo.openfaas-fn"
MEMORY_BYTES = 100 * MEGABYTE
PLACE_BYTES = LARGEST_MB * MEGABYTE


@dataclass(slots=True)
class MemoryFunction:
    """A function and its steady load, which counts up as time passes."""

    settings: Settings
    rps: float = 0.0
    concurrency: float = 0.0
    busy_cores: float = 0.0
    queued: int = 0
    executing: int = 0
    last_request_s: float = 0.0
    latency_s: tuple[float, ...] = ()
    latency_spread: float = 0.0
    queues: int = 1
    plan: SetBufferPlan | None = None
    requested: int | None = None
    profile: ModelProfile | None = None
    version: int = 1
    instances: dict[str, Instance] = field(default_factory=dict)
    totals: tuple[float, float, float] = (0.0, 0.0, 0.0)
    counted_s: float | None = None

    def count(self, now_s: float) -> None:
        """Add what happened since the last count; every request succeeds."""
        span_s = now_s - (now_s if self.counted_s is None else self.counted_s)
        arrivals, concurrency_s, busy_s = self.totals
        self.totals = (arrivals + self.rps * span_s, concurrency_s + self.concurrency * span_s, busy_s + self.busy_cores * span_s)
        self.counted_s = now_s
        if self.rps or self.queued or self.executing:
            self.last_request_s = now_s


class MemoryFleet:
    """A `ScaledFleet` in memory: nodes with cores, instances that are ready `start_s` after they were created.

    With `places` it is like Lambda: so many instances there may be, each in the place of the largest.
    """

    def __init__(
        self,
        now_s: Callable[[], float],
        nodes: Sequence[tuple[str, int]] = (("node-1", 64),),
        start_s: float = 0.0,
        places: int | None = None,
    ) -> None:
        self.known: dict[str, MemoryFunction] = {}
        self._now_s = now_s
        self._nodes = tuple(nodes)
        self._start_s = start_s
        self._made = 0
        self._places = places
        self._node_bytes = 2**40 if places is None else places * PLACE_BYTES
        self._place_bytes = 0 if places is None else PLACE_BYTES

    def functions(self) -> Sequence[str]:
        return tuple(self.known)

    def load(self, function: str) -> FunctionLoad | None:
        """The state now. A request of the operator is shown once."""
        known = self.known.get(function)
        if known is None:
            return None
        now_s = self._now_s()
        known.count(now_s)
        for instance in list(known.instances.values()):
            if instance.state is InstanceState.STARTING and now_s - instance.started_s >= self._start_s:
                known.instances[instance.id] = replace(instance, state=InstanceState.READY)
                body = known.instances.get(instance.partner or "")
                if body is not None:
                    known.instances[body.id] = _working(body, instance.id, instance.pair)
        requested, known.requested = known.requested, None
        arrivals, concurrency_s, busy_s = known.totals
        # Steady rates make fractions of requests; the gateway counts whole ones.
        whole = int(arrivals + 1e-6)
        counters = LoadCounters(
            whole, whole, concurrency_s, busy_s, known.queued, known.executing, float(known.queued > 0), known.last_request_s
        )
        instances = tuple(known.instances.values())
        return FunctionLoad(
            known.settings, counters, instances, self._seen_nodes(), known.latency_s, requested, known.profile,
            known.latency_spread, known.queues, known.plan,
        )  # fmt: skip

    async def apply(self, function: str, actions: Sequence[Action]) -> None:
        self.carry_out(function, actions)

    def carry_out(self, function: str, actions: Sequence[Action]) -> None:
        """Carry out actions in order.

        Raises:
            PartlyRefused: 503 `no_capacity` where no node has room, as `ScaledFleet.apply` says.

        """
        carrying = CarryingOut(actions)
        for action in carrying:
            with carrying.attempt(action):
                self._carry_out(function, self.known[function], action)
        carrying.end()

    def _carry_out(self, function: str, known: MemoryFunction, action: Action) -> None:
        match action:
            case CreateBody(cores, node, memory_mb):
                self._create(function, known, cores, node, memory_mb)
            case DestroyBody(id_) | DestroyShadow(id_):
                self._end(known, id_)
            case CreateShadow(body, pair):
                self._create_shadow(function, known, body, pair)
            case ChangeShadow(id_, pair):
                shadow = known.instances[id_]
                known.instances[id_] = replace(shadow, pair=pair)
                if shadow.state is InstanceState.READY and shadow.partner in known.instances:
                    known.instances[shadow.partner] = _working(known.instances[shadow.partner], id_, pair)
            case PromoteShadow(id_):
                shadow = known.instances[id_]
                starting = replace(shadow, kind=InstanceKind.BODY, state=InstanceState.STARTING, partner=None, pair=None)
                known.instances[id_] = replace(starting, memory_bytes=MEMORY_BYTES, started_s=self._now_s())
                if shadow.partner in known.instances:
                    known.instances[shadow.partner] = _working(known.instances[shadow.partner], id_, None)
            case Resize(id_, cores):
                known.instances[id_] = replace(known.instances[id_], cores=cores, coming_cores=None)
            case SetBufferPlan():
                known.plan = action

    def _create(self, function: str, known: MemoryFunction, cores: int, node: str | None, memory_mb: int | None = None) -> None:
        if self._places is not None and sum(len(one.instances) for one in self.known.values()) >= self._places:
            raise GnomonError(503, "no_capacity", f"All {self._places} places are taken.", "Allow more.")
        room = [seen.name for seen in self._seen_nodes() if seen.free_cores >= cores and node in (None, seen.name)]
        if not room:
            raise GnomonError(503, "no_capacity", f"No node has {cores} cores free.", "Remove a function or add a node.")
        self._made += 1
        own_mb = known.settings.memory_mb
        size_mb = memory_mb or own_mb
        memory_bytes = MEMORY_BYTES if size_mb is None else size_mb * MEGABYTE
        made = Instance(
            f"i-{self._made}", function, known.version, room[0], cores, memory_bytes, InstanceState.STARTING, self._now_s(),
            memory_mb=memory_mb if memory_mb != own_mb else None,
        )  # fmt: skip
        known.instances[made.id] = made

    def _create_shadow(self, function: str, known: MemoryFunction, body_id: str, pair: Pair) -> None:
        body = known.instances.get(body_id)
        shadows = [one for one in known.instances.values() if one.kind is InstanceKind.SHADOW and one.partner == body_id]
        if body is None or len(shadows) >= MAX_SHADOWS:
            raise GnomonError(409, "no_such_body", f"{body_id} has gone or has {MAX_SHADOWS} Shadows.", "Look again.")
        place = pair.node or body.node
        if not any(node.name == place and node.free_cores >= pair.shadow_cores for node in self._seen_nodes()):
            raise GnomonError(503, "no_capacity", f"{place} has no {pair.shadow_cores} cores free.", "Add a node.")
        self._made += 1
        made = Instance(
            f"i-{self._made}", function, known.version, place, pair.shadow_cores, MEMORY_BYTES, InstanceState.STARTING,
            self._now_s(), kind=InstanceKind.SHADOW, partner=body_id, pair=pair,
        )  # fmt: skip
        known.instances[made.id] = made

    def _end(self, known: MemoryFunction, id_: str) -> None:
        """A Body takes its Shadows along; a Shadow leaves its Body without it."""
        ended = known.instances.pop(id_, None)
        if ended is None:
            return
        for other in list(known.instances.values()):
            if other.partner == id_ and other.kind is InstanceKind.SHADOW:
                del known.instances[other.id]
            elif id_ in other.shadows:
                known.instances[other.id] = _working(other, id_, None)

    def _seen_nodes(self) -> tuple[Node, ...]:
        used = {name: 0 for name, _ in self._nodes}
        held = dict(used)
        for known in self.known.values():
            for instance in known.instances.values():
                used[instance.node] += instance.given_cores
                held[instance.node] += 1
        return tuple(
            Node(name, cores, self._node_bytes, cores - used[name], max(0, self._node_bytes - held[name] * self._place_bytes))
            for name, cores in self._nodes
        )


class Timeline(MemoryFunction):
    """One function, its runner and a clock: set the load, move the clock, expect a decision."""

    def __init__(
        self,
        settings: Settings,
        *,
        policies: Policies = BUILT_IN,
        nodes: Sequence[tuple[str, int]] = (("node-1", 64),),
        start_s: float = 0.0,
        runner: Runner | None = None,
        profile: ModelProfile | None = None,
        places: int | None = None,
    ) -> None:
        super().__init__(settings, profile=profile)
        self.now_s = 0.0
        self.decisions: list[tuple[float, Decision]] = []
        self.errors: list[str] = []
        self.fleet = MemoryFleet(lambda: self.now_s, nodes, start_s, places)
        self.fleet.known[FUNCTION] = self
        self.runner = runner or Runner(FUNCTION, policies)
        self._ticks = 0
        self.tick()

    def play(self, duration_s: float) -> list[Decision]:
        """Move the clock, a bin at a time; what was decided meanwhile."""
        before = len(self.decisions)
        for _ in range(round(duration_s / BIN_S)):
            self._ticks += 1
            self.now_s = self._ticks * BIN_S
            self.tick()
        return [decision for _, decision in self.decisions[before:]]

    def tick(self) -> Decision | None:
        """Look at the function now, as after a poke."""
        load = self.fleet.load(FUNCTION)
        assert load is not None
        decision = self.runner.tick(self.now_s, load)
        if decision is not None:
            self.decisions.append((self.now_s, decision))
            try:
                self.fleet.carry_out(FUNCTION, decision.actions)
            except GnomonError as error:
                self.errors.append(error.code)
                self.runner.refused(self.now_s, error)
            else:
                self.runner.carried_out(decision)
        return decision

    @property
    def live(self) -> int:
        """How many Bodies there are."""
        return sum(instance.kind is InstanceKind.BODY for instance in self.instances.values())

    @property
    def shadows(self) -> list[Instance]:
        """The Shadows there are."""
        return [instance for instance in self.instances.values() if instance.kind is InstanceKind.SHADOW]

    @property
    def reason(self) -> str:
        """Why the last decision was taken."""
        return self.decisions[-1][1].reason


def _working(body: Instance, shadow: str, pair: Pair | None) -> Instance:
    """The Body as it does this with one of its Shadows, or nothing any more."""
    shadows = {**body.shadows, shadow: pair}
    return body.working_with({name: doing for name, doing in shadows.items() if doing is not None})
