"""An application of variants in virtual time: queries with constraints, their selection, and the scaling of variants and workers.

    trace ─▶ queries of each kind ─▶ VariantSelector ─▶ a member's queue ─▶ batches on the member's instances
                                         ▲ states, loads              │ counters
                                         └── each second ─────────────┴─▶ ApplicationObservation ─▶ policy ─▶ instances, workers

It follows a gateway with applications: a member has one queue in the order of arrival, an instance that is free takes a batch of
what waits, and the controller looks each second at the members' counters, tells the selector their states, and asks the policy.

**What is exact, and what is aggregated.** Every query has its own arrival time, batch and latency. Within a second the selector
learns no states and loads (the gateway's learns them at the controller's ticks too). It reads what waits at a member when a query
is there, so that queries are sent one by one in the order of arrival. Where the choice does not depend on that, because the
selector's rule is the printed one or a developer has fixed the variant, all queries of a kind in that second have one choice. An
instance that becomes ready within a second takes batches from then on, but queries are sent to its variant from the next tick on,
unless they were sent there to wait for it.

**Batches.** A batch is what waits, up to the variant's largest. It is smaller where only that answers its oldest query in time.
A query that even a batch of one would answer late is dropped; while more wait than a batch holds, so is one that a full batch
would answer late, because smaller batches would lower the throughput of an overloaded member. All systems are treated alike.

**Shadows.** Where a variant has a `SimulatedPair`, each instance that starts beside ready ones gives one of these a Shadow until
it is ready, as members of applications have it (`fixed+shadows`): batches that begin meanwhile take the pair's time. A Shadow
costs and takes as much as an instance, but for its memory.

**Not simulated.** Instances do not contend: each has its cores or accelerator to itself, so that none is Interfered. Batches take
exactly the time in their variant's profile. Starts never fail.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heapify, heappush, heapreplace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.simulation.variant_workers import Cluster, Worker, Workers
from gnomon_autoscaler.policies.infaas import workers as worker_policy
from gnomon_core.errors import bad_request
from gnomon_core.variant_scaling import DEMAND_WINDOW_S, ApplicationObservation, Demand, ScalingPlan, VariantMember
from gnomon_core.variants import Query, Variant
from gnomon_gateway.variants.selection import Rule, VariantSelector
from gnomon_gateway.variants.states import PERIOD_S, Lifecycle, Measurement
from gnomon_simulator.events import stream
from gnomon_simulator.traces import Trace

TICK_S: Final = 1.0
WINDOW_S: Final = round(DEMAND_WINDOW_S)
"""The window in seconds in which the load of each kind of query and of each member is measured."""
LEAST_RPS = 1e-3
"""The load assumed for a kind of query that arrived within `IDLE_S`, but not within the window."""
IDLE_S = 900.0
"""Seconds without a query after which a kind is no demand any more."""
WORKERS_PERIOD_S = 2
MOST_ANSWERED = 1000
"""Answered queries at the head of a member's queue before they are removed."""
ROUNDING = 1e-9

Times = npt.NDArray[np.float64]
Decide = Callable[[ApplicationObservation, Any], tuple[ScalingPlan, Any]]


@dataclass(frozen=True, slots=True)
class QueryKind:
    """Queries that ask for the same, and their share of all. `latency_s` of the query is their objective."""

    query: Query
    share: float

    @property
    def objective_s(self) -> float:
        return float("inf") if self.query.latency_s is None else self.query.latency_s


@dataclass(frozen=True, slots=True)
class SimulatedPair:
    """An instance of a variant with a Shadow: seconds of a batch by its size less one, and the Shadow's load time and memory."""

    latency_s: tuple[float, ...]
    load_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class System:
    """The system that serves the application: a policy with its first state, and how queries are sent.

    `fixed` names the variant of each kind of query where a developer has fixed it; else `rule` chooses.
    """

    name: str
    decide: Decide
    initial: object
    fixed: tuple[str, ...] = ()
    rule: Rule = Rule.SOONEST
    scales_workers: bool = True


@dataclass(slots=True)
class SimulatedApplication:
    """The outcome of the queries, and its cost.

    A query is answered in time, answered late, dropped, or refused because no variant satisfies it. `degraded` queries were sent
    to a variant that is less accurate than wished, and not below their floor. `memory_byte_s` is the integral of the memory of
    instances and of their `shadows`. `changes` are the instances that began and ended,
    as (time, variant, +1 or -1); `sent` counts queries by kind and variant. `asked_at` counts queries by
    the second in which they arrive, `in_time_at` those of them that are answered in time.
    """

    system: str
    duration_s: float
    queries: int = 0
    in_time: int = 0
    late: int = 0
    dropped: int = 0
    refused: int = 0
    degraded: int = 0
    shadows: int = 0
    memory_byte_s: float = 0.0
    instance_cost: float = 0.0
    worker_cost: float = 0.0
    instance_s: float = 0.0
    starts: int = 0
    batches: int = 0
    unplaced: int = 0
    latencies_s: array[float] = field(default_factory=lambda: array("f"))
    changes: list[tuple[float, str, int]] = field(default_factory=list)
    sent: Counter[tuple[int, str]] = field(default_factory=Counter)
    asked_at: Counter[int] = field(default_factory=Counter)
    in_time_at: Counter[int] = field(default_factory=Counter)

    @property
    def violations(self) -> int:
        """Queries that were not answered within their objective."""
        return self.queries - self.in_time

    @property
    def violation_share(self) -> float:
        return self.violations / max(1, self.queries)

    @property
    def goodput_rps(self) -> float:
        """Queries per second that were answered within their objective."""
        return self.in_time / self.duration_s

    @property
    def cost_per_s(self) -> float:
        """The mean cost of the running instances."""
        return self.instance_cost / self.duration_s

    def percentile_s(self, percent: float) -> float:
        """A percentile of the answered queries' latency; NaN where there are none."""
        return float(np.percentile(self.latencies_s, percent)) if self.latencies_s else float("nan")


def simulate_application(
    variants: Sequence[Variant],
    kinds: Sequence[QueryKind],
    load: Trace,
    system: System,
    *,
    cluster: Cluster | None = None,
    seed: int = 1,
    pairs: Mapping[str, SimulatedPair] | None = None,
) -> SimulatedApplication:
    """Serve the load in virtual time. Without a cluster resources are not bounded, and there are no workers to pay.

    `pairs` has the variants whose instances may have a Shadow, by id.

    Raises:
        GnomonError: 400 `bad_trace` where the trace's bins are not of a second; 400 `bad_query_kinds`.

    """
    if load.bin_s != TICK_S:
        raise bad_request("bad_trace", f"The trace has bins of {load.bin_s} s.", "Give counts per second.")
    if not kinds or not all(kind.share > 0.0 for kind in kinds) or len(system.fixed) not in (0, len(kinds)):
        raise bad_request("bad_query_kinds", "A kind of query has no share of the load, or no variant.", "Give one to each.")
    return _Simulation(variants, kinds, load, system, cluster=cluster, seed=seed, pairs=pairs or {}).run()


@dataclass(slots=True)
class _Instance:
    worker: Worker | None
    began_s: float
    ready_s: float
    helped_from_s: float = float("inf")
    helped_to_s: float = float("-inf")
    """The time until which the instance's last Shadow helps."""


class _Member:
    """A variant's queue and instances."""

    def __init__(
        self, variant: Variant, result: SimulatedApplication, workers: Workers | None, pair: SimulatedPair | None
    ) -> None:
        self.variant = variant
        self._pair = pair
        self.lifecycle = Lifecycle()
        self.arrived: deque[int] = deque([0] * WINDOW_S, maxlen=WINDOW_S)
        self._arrived_now = 0
        self._batches_of_period = 0
        self._result = result
        self._workers = workers
        sizes = sorted(variant.latency_s)
        table = [variant.latency_s[size] for size in sizes]
        # Seconds of a batch, by its size less one.
        self._seconds = [float(np.interp(size, sizes, table)) for size in range(1, variant.max_batch + 1)]
        self.instances: dict[int, _Instance] = {}
        self._free: list[tuple[float, int]] = []
        self._sizes: dict[int, int] = {}
        """The size of each instance's last batch."""
        self._number = 0
        self._ending: list[tuple[float, Worker]] = []
        self._added: list[tuple[Times, float]] = []
        self._times: list[float] = []
        self._deadlines: list[float] = []
        self._head = 0

    @property
    def waiting(self) -> bool:
        return self._head < len(self._times) or bool(self._added)

    @property
    def running(self) -> int:
        return len(self.instances)

    def ready(self, now_s: float) -> int:
        """The number of instances that can take batches."""
        return sum(1 for instance in self.instances.values() if instance.ready_s <= now_s)

    @property
    def load_rps(self) -> float:
        return sum(self.arrived) / WINDOW_S

    @property
    def last_rps(self) -> float:
        """The load of the last period."""
        return sum(list(self.arrived)[-int(PERIOD_S / TICK_S) :]) / PERIOD_S

    # Instances

    def scale(self, count: int, now_s: float) -> None:
        """Set the number of instances. The last one stays while queries wait."""
        if not count and self.waiting:
            count = min(1, self.running)
        while self.running < count and self.start(now_s, now_s + self.variant.load_s):
            pass
        if self.running > count:
            # Loading instances end first, then idle ones, then those that are free soonest.
            victims = sorted(
                self.instances, key=lambda number: (self.instances[number].ready_s <= now_s, self._free_s(number), -number)
            )
            for number in victims[: self.running - count]:
                self._stop(number, now_s)

    def start(self, now_s: float, ready_s: float) -> bool:
        """Begin an instance; False where it fits on no worker."""
        worker = None
        if self._workers is not None:
            worker = self._workers.place(self.variant, now_s)
            if worker is None:
                self._result.unplaced += 1
                return False
        self._number += 1
        self.instances[self._number] = _Instance(worker, now_s, ready_s)
        heappush(self._free, (ready_s, self._number))
        self._result.starts += 1
        self._result.changes.append((now_s, self.variant.id, 1))
        if self._pair is not None:
            self._help(self._pair, now_s, ready_s)
        return True

    def _help(self, pair: SimulatedPair, now_s: float, until_s: float) -> None:
        """Give a Shadow to a ready instance that has none, where there is room for one."""
        if now_s + pair.load_s >= until_s:
            return
        for instance in self.instances.values():
            if instance.ready_s > now_s or instance.helped_to_s > now_s:
                continue
            if instance.worker is not None:
                if not instance.worker.fits(self.variant):
                    continue
                instance.worker.take(self.variant, 1)
                self._ending.append((until_s, instance.worker))
            instance.helped_from_s, instance.helped_to_s = now_s + pair.load_s, until_s
            self._result.shadows += 1
            self._result.instance_cost += self.variant.cost_per_s * (until_s - now_s)
            self._result.memory_byte_s += pair.memory_bytes * (until_s - now_s)
            return

    def _free_s(self, number: int) -> float:
        return next(free_s for free_s, busy_number in self._free if busy_number == number)

    def _stop(self, number: int, now_s: float) -> None:
        """End an instance: at once where it is idle or loads, else after its batch."""
        instance = self.instances.pop(number)
        self._sizes.pop(number, None)
        end_s = now_s if instance.ready_s > now_s else max(now_s, self._free_s(number))
        self._free = [busy for busy in self._free if busy[1] != number]
        heapify(self._free)
        self._account(instance, end_s)
        if instance.worker is not None:
            self._ending.append((end_s, instance.worker))

    def _account(self, instance: _Instance, end_s: float) -> None:
        self._result.instance_s += end_s - instance.began_s
        self._result.instance_cost += self.variant.cost_per_s * (end_s - instance.began_s)
        self._result.memory_byte_s += self.variant.memory_bytes * (end_s - instance.began_s)
        self._result.changes.append((end_s, self.variant.id, -1))

    def release(self, now_s: float) -> None:
        """Give back what ended instances had."""
        for end_s, worker in self._ending:
            if end_s <= now_s:
                worker.take(self.variant, -1)
        self._ending = [ending for ending in self._ending if ending[0] > now_s]

    def finish(self, end_s: float) -> None:
        """End the simulation: queries that wait are violations, instances are paid until `end_s`."""
        self.merge()
        self._result.dropped += len(self._times) - self._head
        for instance in self.instances.values():
            self._account(instance, max(end_s, instance.began_s))

    # Queries

    def add(self, times: Times, objective_s: float) -> None:
        """Add queries of this second, ascending."""
        self._added.append((times, objective_s))
        self._arrived_now += len(times)

    def merge(self) -> None:
        """Put what was added into the queue, in the order of arrival."""
        if not self._added:
            return
        if self._head:
            del self._times[: self._head], self._deadlines[: self._head]
            self._head = 0
        times = np.concatenate([added_s for added_s, _ in self._added])
        deadlines = np.concatenate([arrivals_s + objective_s for arrivals_s, objective_s in self._added])
        if len(self._added) > 1:
            order = np.argsort(times, kind="stable")
            times, deadlines = times[order], deadlines[order]
        self._times += times.tolist()
        self._deadlines += deadlines.tolist()
        self._added.clear()

    def arrive(self, time_s: float, objective_s: float) -> None:
        """Add a query of this second, later than all earlier ones."""
        self.merge()
        if self._head > MOST_ANSWERED:
            del self._times[: self._head], self._deadlines[: self._head]
            self._head = 0
        self._times.append(time_s)
        self._deadlines.append(time_s + objective_s)
        self._arrived_now += 1

    def pending_at(self, time_s: float) -> int:
        """The number of queries that wait or execute at that time."""
        self.serve(time_s)
        executing = sum([self._sizes.get(number, 0) for free_s, number in self._free if free_s > time_s])
        return executing + len(self._times) - self._head

    def serve(self, until_s: float) -> None:
        """Execute every batch that starts before `until_s`."""
        self.merge()
        times, deadlines, free, pair = self._times, self._deadlines, self._free, self._pair
        oldest, count, largest, result = self._head, len(times), self.variant.max_batch, self._result
        answered = result.latencies_s
        while oldest < count and free:
            free_s, number = free[0]
            start_s = max(free_s, times[oldest])
            if start_s >= until_s:
                break
            seconds: Sequence[float] = self._seconds
            if pair is not None and self.instances[number].helped_from_s <= start_s < self.instances[number].helped_to_s:
                seconds = pair.latency_s
            waiting = bisect_right(times, start_s, oldest, count) - oldest
            size = min(waiting, largest)
            in_time = bisect_right(seconds, deadlines[oldest] - start_s + ROUNDING)
            if not in_time or (in_time < size and waiting > largest):
                result.dropped += 1
                oldest += 1
                continue
            size = min(size, in_time)
            finish_s = start_s + seconds[size - 1]
            for index in range(oldest, oldest + size):
                answered.append(finish_s - times[index])
                if finish_s <= deadlines[index] + ROUNDING:
                    result.in_time += 1
                    result.in_time_at[int(times[index])] += 1
                else:
                    result.late += 1
            oldest += size
            result.batches += 1
            self._batches_of_period += 1
            heapreplace(free, (finish_s, number))
            self._sizes[number] = size
        self._head = oldest

    def end_second(self) -> None:
        self.arrived.append(self._arrived_now)
        self._arrived_now = 0

    def measure(self, now_s: float) -> None:
        """The state after a period."""
        peak_rps = self.variant.saturation_rps * max(1, self.ready(now_s))
        self.lifecycle = self.lifecycle.measured(Measurement(self.last_rps, peak_rps, 1.0, self._batches_of_period))
        self._batches_of_period = 0


class _Simulation:
    def __init__(
        self,
        variants: Sequence[Variant],
        kinds: Sequence[QueryKind],
        load: Trace,
        system: System,
        *,
        cluster: Cluster | None,
        seed: int,
        pairs: Mapping[str, SimulatedPair],
    ) -> None:
        self._kinds = kinds
        self._load = load
        self._system = system
        self._state: Any = system.initial
        self._rng = np.random.default_rng(stream(seed, "queries").getrandbits(64))
        self._workers = None if cluster is None else Workers(cluster)
        self._result = SimulatedApplication(system.name, load.duration_s)
        self._members = {variant.id: _Member(variant, self._result, self._workers, pairs.get(variant.id)) for variant in variants}
        # A fixed variant is chosen whatever waits there.
        self._selector = VariantSelector(variants, Rule.PRINTED if system.fixed else system.rule)
        self._queries = [self._sent_as(place) for place in range(len(kinds))]
        self._demands = [demand_of(query).among(variants) for query in self._queries]
        """The demand of each kind of query; None where no variant satisfies it."""
        self._sending_s = 0.0
        self._asked = [deque([0] * WINDOW_S, maxlen=WINDOW_S) for _ in kinds]
        self._last_asked_s = [float("-inf")] * len(kinds)
        self._edges = np.cumsum([kind.share for kind in kinds]) / sum(kind.share for kind in kinds)
        self._edges[-1] = 1.0
        # Members with instances or queries, in a fixed order.
        self._loaded: dict[str, _Member] = {}

    def _sent_as(self, kind: int) -> Query:
        """The query of a kind as the selector gets it."""
        return Query(variant=self._system.fixed[kind]) if self._system.fixed else self._kinds[kind].query

    def run(self) -> SimulatedApplication:
        self._warm()
        for number, expected in enumerate(self._load.counts):
            now_s = number * TICK_S
            if number:
                self._tick(number, now_s)
            self._send(expected, now_s)
            for member in list(self._loaded.values()):
                if not member.running and member.waiting:
                    member.start(now_s, now_s + member.variant.load_s)
                member.serve(now_s + TICK_S)
                member.end_second()
        end_s = self._load.duration_s
        for member in self._members.values():
            member.finish(end_s)
        if self._workers is not None:
            self._result.worker_cost = self._workers.cost(end_s)
        self._result.changes.sort(key=lambda change: (change[0], -change[2]))
        return self._result

    def _warm(self) -> None:
        """Start with the instances, ready, that the system wants for the mean load of the first seconds."""
        first = self._load.counts[:WINDOW_S]
        mean_rps = sum(first) / len(first)
        shares = np.diff(self._edges, prepend=0.0)
        for kind, share in enumerate(shares):
            count = round(mean_rps * share * WINDOW_S)
            self._asked[kind].extend([0] * (WINDOW_S - 1) + [count])
            self._last_asked_s[kind] = 0.0
            if self._system.fixed:
                self._members[self._system.fixed[kind]].arrived.append(count)
        plan, self._state = self._system.decide(self._observation(0.0), self._state)
        for name, instances in plan.instances.items():
            for _ in range(instances):
                if self._members[name].start(0.0, 0.0):
                    self._loaded[name] = self._members[name]
        self._tell(0.0)

    def _tick(self, number: int, now_s: float) -> None:
        """The controller's work of one second."""
        for member in self._loaded.values():
            member.release(now_s)
            if number % int(PERIOD_S) == 0:
                member.measure(now_s)
        plan, self._state = self._system.decide(self._observation(now_s), self._state)
        # What ends makes room for what begins.
        for name in sorted(
            self._loaded, key=lambda variant_name: plan.instances.get(variant_name, 0) - self._loaded[variant_name].running
        ):
            if plan.instances.get(name, 0) <= self._loaded[name].running:
                self._loaded[name].scale(plan.instances.get(name, 0), now_s)
                self._loaded[name].release(now_s)
        for name, count in plan.instances.items():
            if count > self._members[name].running:
                self._loaded[name] = self._members[name]
                self._members[name].scale(count, now_s)
        if self._workers is not None and self._system.scales_workers and number % WORKERS_PERIOD_S == 0:
            self._scale_workers(self._workers, now_s)
        self._tell(now_s)

    def _scale_workers(self, workers: Workers, now_s: float) -> None:
        states = {name: member.lifecycle.state for name, member in self._members.items()}
        plan = worker_policy.decide(workers.observations(now_s, states), worker_policy.WorkerOptions(most=workers.most))
        for hardware in plan.add:
            workers.add(hardware, now_s)
        for name in plan.remove:
            workers.remove(name, now_s)

    def _observation(self, now_s: float) -> ApplicationObservation:
        members = tuple(
            VariantMember(
                member.variant,
                member.running,
                member.ready(now_s),
                member.load_rps,
                member.lifecycle.state,
                last_rps=member.last_rps,
            )
            if member.running
            else VariantMember(member.variant, load_rps=member.load_rps)
            for member in self._members.values()
        )
        demands = []
        for place, demand in enumerate(self._demands):
            if self._system.fixed or demand is None or now_s - self._last_asked_s[place] >= IDLE_S:
                continue
            demands.append(replace(demand, load_rps=max(LEAST_RPS, sum(self._asked[place]) / WINDOW_S)))
        capacity = {} if self._workers is None else self._workers.capacity(now_s)
        return ApplicationObservation(now_s, "simulated", members, tuple(demands), capacity)

    def _tell(self, now_s: float) -> None:
        """Update the selector: which variants are loaded, and in which state."""
        for name, member in list(self._loaded.items()):
            ready = member.ready(now_s)
            member.lifecycle = member.lifecycle.loaded() if ready else member.lifecycle.unloaded()
            if ready:
                load = member.load_rps / (member.variant.saturation_rps * ready)
                pending = partial(self._pending, member)
                self._selector.instance_loaded(name, "", member.lifecycle.state, load, instances=ready, pending=pending)
            else:
                self._selector.instance_unloaded(name, "")
                if not member.running and not member.waiting and not member.load_rps:
                    member.release(float("inf"))
                    del self._loaded[name]

    def _send(self, expected: float, now_s: float) -> None:
        """Send the queries of a second to their variants."""
        count = int(expected)
        if expected > count and self._rng.random() < expected - count:
            count += 1
        self._result.queries += count
        self._result.asked_at[int(now_s)] += count
        times = np.sort(self._rng.random(count)) * TICK_S + now_s
        kinds = np.searchsorted(self._edges, self._rng.random(count), side="right")
        counts = np.bincount(kinds, minlength=len(self._kinds)).tolist()
        for kind, number in enumerate(counts):
            self._asked[kind].append(number)
            if number:
                self._last_asked_s[kind] = now_s
        if self._system.fixed or self._system.rule is Rule.PRINTED:
            for kind in range(len(self._kinds)):
                self._send_kind(kind, times[kinds == kind])
        else:
            for time_s, kind in zip(times.tolist(), kinds.tolist(), strict=True):
                self._send_one(kind, time_s)

    def _send_kind(self, kind: int, times: Times) -> None:
        """Send queries of a kind that all have one choice."""
        choice = self._selector.select(self._queries[kind])
        if not choice.satisfies:
            self._result.refused += len(times)
        elif len(times):
            member = self._loaded[choice.variant.id] = self._members[choice.variant.id]
            self._result.sent[kind, choice.variant.id] += len(times)
            member.add(times, self._kinds[kind].objective_s)

    def _send_one(self, kind: int, time_s: float) -> None:
        self._sending_s = time_s
        choice = self._selector.select(self._queries[kind])
        if not choice.satisfies:
            self._result.refused += 1
            return
        name = choice.variant.id
        member = self._loaded[name] = self._members[name]
        self._result.sent[kind, name] += 1
        self._result.degraded += choice.degraded
        member.arrive(time_s, self._kinds[kind].objective_s)

    def _pending(self, member: _Member) -> int:
        return member.pending_at(self._sending_s)


def demand_of(query: Query) -> Demand:
    """The demand of queries that ask for this, without a load."""
    return Demand(0.0, query.latency_s, query.accuracy, query.cost_per_s, query.architecture or "", query.accuracy_floor)
