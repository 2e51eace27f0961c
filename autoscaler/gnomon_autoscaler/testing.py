"""Test bench for policies: an in-memory fleet whose load you set, and a timeline whose clock you move.

    timeline = Timeline(Settings(autoscaler="kpa", scale=ScaleSettings(max=10)))
    timeline.rps = timeline.concurrency = 7.0
    timeline.play(60)
    assert timeline.live == 10

Nothing is random and no time passes by itself, so that a test states seconds and instances exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gnomon_autoscaler.registry import BUILT_IN, Policies
from gnomon_autoscaler.runner import Runner
from gnomon_autoscaler.windows import BIN_S
from gnomon_core.actuation import Actuator, carry_out
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState, Node
from gnomon_core.lambda_pricing import LARGEST_MB
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
from gnomon_core.units import MEGABYTE

FUNCTION = "echo.openfaas-fn"
MEMORY_BYTES = 100 * MEGABYTE
PLACE_BYTES = LARGEST_MB * MEGABYTE


@dataclass(slots=True)
class MemoryFunction:
    """A function with a constant load, whose counters grow as time passes."""

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

    With `places` it is like Lambda: so many instances there may be, each in the place of the largest. With `lends` its nodes lend
    cores to batches.
    """

    def __init__(
        self,
        now_s: Callable[[], float],
        nodes: Sequence[tuple[str, int]] = (("node-1", 64),),
        start_s: float = 0.0,
        places: int | None = None,
        *,
        lends: bool = False,
    ) -> None:
        self.known: dict[str, MemoryFunction] = {}
        self.now_s = now_s
        self._nodes = tuple(nodes)
        self._start_s = start_s
        self._made = 0
        self._places = places
        self._lends = lends
        self._node_bytes = 2**40 if places is None else places * PLACE_BYTES
        self._place_bytes = 0 if places is None else PLACE_BYTES

    def functions(self) -> Sequence[str]:
        return tuple(self.known)

    def load(self, function: str) -> FunctionLoad | None:
        """The state now. A request of the operator is shown once."""
        state = self.known.get(function)
        if state is None:
            return None
        now_s = self.now_s()
        state.count(now_s)
        for instance in list(state.instances.values()):
            if instance.state is InstanceState.STARTING and now_s - instance.started_s >= self._start_s:
                state.instances[instance.id] = replace(instance, state=InstanceState.READY)
                body = state.instances.get(instance.partner or "")
                if body is not None:
                    state.instances[body.id] = _working(body, instance.id, instance.pair)
        requested, state.requested = state.requested, None
        arrivals, concurrency_s, busy_s = state.totals
        # Steady rates make fractions of requests; the gateway counts whole ones.
        whole = int(arrivals + 1e-6)
        counters = LoadCounters(
            whole, whole, concurrency_s, busy_s, state.queued, state.executing, float(state.queued > 0), state.last_request_s
        )
        instances = tuple(state.instances.values())
        return FunctionLoad(
            state.settings, counters, instances, self.nodes(), state.latency_s, requested, state.profile,
            state.latency_spread, state.queues, state.plan,
        )  # fmt: skip

    async def apply(self, function: str, actions: Sequence[Action]) -> None:
        self.carry_out(function, actions)

    def carry_out(self, function: str, actions: Sequence[Action]) -> None:
        """Carry out actions in order.

        Raises:
            PartlyRefused: 503 `no_capacity` where no node has room, as `ScaledFleet.apply` says.

        """
        carry_out(self.actuator(function), actions)

    def actuator(self, function: str) -> Actuator[None]:
        """The actuator of a function. Tests replace it by one that refuses."""
        return MemoryActuator(self, function)

    def add(self, function: str, cores: int, node: str, memory_bytes: int, **fields: Any) -> None:
        """Add an instance of a function that starts now."""
        self._made += 1
        state, id_ = self.known[function], f"i-{self._made}"
        state.instances[id_] = Instance(
            id_, function, state.version, node, cores, memory_bytes, InstanceState.STARTING, self.now_s(), **fields
        )

    def refuse_without_place(self) -> None:
        """Refuse where all places are taken.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        if self._places is not None and sum(len(function.instances) for function in self.known.values()) >= self._places:
            raise GnomonError(503, "no_capacity", f"All {self._places} places are taken.", "Allow more.")

    def nodes(self) -> tuple[Node, ...]:
        used = {name: 0 for name, _ in self._nodes}
        held = dict(used)
        for state in self.known.values():
            for instance in state.instances.values():
                used[instance.node] += instance.given_cores
                held[instance.node] += 1
        return tuple(
            Node(
                name,
                cores,
                self._node_bytes,
                cores - used[name],
                max(0, self._node_bytes - held[name] * self._place_bytes),
                lends=self._lends,
            )
            for name, cores in self._nodes
        )


class MemoryActuator(Actuator[None]):
    """Carries out actions on one function of a `MemoryFleet`, at once."""

    def __init__(self, fleet: MemoryFleet, function: str) -> None:
        self._fleet, self._function = fleet, function
        self._known = fleet.known[function]

    def create_body(self, action: CreateBody) -> None:
        self._fleet.refuse_without_place()
        nodes = self._fleet.nodes()
        cores = action.cores if action.idle_cores is None else action.idle_cores
        fitting = [node.name for node in nodes if node.free_cores >= cores and action.node in (None, node.name)]
        if not fitting:
            raise GnomonError(503, "no_capacity", f"No node has {cores} cores free.", "Remove a function or add a node.")
        own_mb = self._known.settings.memory_mb
        size_mb = action.memory_mb or own_mb
        memory_bytes = MEMORY_BYTES if size_mb is None else size_mb * MEGABYTE
        memory_mb = action.memory_mb if action.memory_mb != own_mb else None
        self._fleet.add(self._function, action.cores, fitting[0], memory_bytes, memory_mb=memory_mb, idle_cores=action.idle_cores)

    def destroy_body(self, action: DestroyBody) -> None:
        self._end(action.id)

    def destroy_shadow(self, action: DestroyShadow) -> None:
        self._end(action.id)

    def create_shadow(self, action: CreateShadow) -> None:
        instances, pair = self._known.instances, action.pair
        body = instances.get(action.body)
        shadows = [
            instance
            for instance in instances.values()
            if instance.kind is InstanceKind.SHADOW and instance.partner == action.body
        ]
        if body is None or len(shadows) >= MAX_SHADOWS:
            raise GnomonError(409, "no_such_body", f"{action.body} has gone or has {MAX_SHADOWS} Shadows.", "Look again.")
        place = pair.node or body.node
        if not any(node.name == place and node.free_cores >= pair.shadow_cores for node in self._fleet.nodes()):
            raise GnomonError(503, "no_capacity", f"{place} has no {pair.shadow_cores} cores free.", "Add a node.")
        self._fleet.add(
            self._function, pair.shadow_cores, place, MEMORY_BYTES, kind=InstanceKind.SHADOW, partner=body.id, pair=pair
        )

    def change_shadow(self, action: ChangeShadow) -> None:
        shadow = self._known.instances[action.id]
        self._known.instances[action.id] = replace(shadow, pair=action.pair)
        if shadow.state is InstanceState.READY:
            self._let_work(shadow.partner, action.id, action.pair)

    def promote_shadow(self, action: PromoteShadow) -> None:
        shadow = self._known.instances[action.id]
        starting = replace(shadow, kind=InstanceKind.BODY, state=InstanceState.STARTING, partner=None, pair=None)
        self._known.instances[action.id] = replace(starting, memory_bytes=MEMORY_BYTES, started_s=self._fleet.now_s())
        self._let_work(shadow.partner, action.id, None)

    def resize(self, action: Resize) -> None:
        resized = replace(self._known.instances[action.id], cores=action.cores, coming_cores=None, idle_cores=action.idle_cores)
        self._known.instances[action.id] = resized

    def set_buffer_plan(self, action: SetBufferPlan) -> None:
        self._known.plan = action

    def _let_work(self, body_id: str | None, shadow_id: str, pair: Pair | None) -> None:
        if body_id in self._known.instances:
            self._known.instances[body_id] = _working(self._known.instances[body_id], shadow_id, pair)

    def _end(self, id_: str) -> None:
        """End an instance. A Body ends with its Shadows; a Shadow's Body continues without it."""
        instances = self._known.instances
        if instances.pop(id_, None) is None:
            return
        for other in list(instances.values()):
            if other.partner == id_ and other.kind is InstanceKind.SHADOW:
                del instances[other.id]
            elif id_ in other.shadows:
                instances[other.id] = _working(other, id_, None)


class Timeline(MemoryFunction):
    """A function, its runner and a clock: set the load, advance the clock, expect a decision."""

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
        lends: bool = False,
    ) -> None:
        super().__init__(settings, profile=profile)
        self.now_s = 0.0
        self.decisions: list[tuple[float, Decision]] = []
        self.errors: list[str] = []
        self.fleet = MemoryFleet(lambda: self.now_s, nodes, start_s, places, lends=lends)
        self.fleet.known[FUNCTION] = self
        self.runner = runner or Runner(FUNCTION, policies)
        self._ticks = 0
        self.tick()

    def play(self, duration_s: float) -> list[Decision]:
        """Advance the clock, a bin at a time; return the decisions made meanwhile."""
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
        """The number of live Bodies."""
        return sum(instance.kind is InstanceKind.BODY for instance in self.instances.values())

    @property
    def shadows(self) -> list[Instance]:
        """The Shadows there are."""
        return [instance for instance in self.instances.values() if instance.kind is InstanceKind.SHADOW]

    @property
    def reason(self) -> str:
        """The reason of the last decision."""
        return self.decisions[-1][1].reason


def _working(body: Instance, shadow: str, pair: Pair | None) -> Instance:
    """The Body with this pair for one of its Shadows, or without that Shadow."""
    shadows = {**body.shadows, shadow: pair}
    return body.working_with({name: pair for name, pair in shadows.items() if pair is not None})
