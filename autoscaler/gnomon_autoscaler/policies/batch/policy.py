"""`batch` and `batch+`: a buffer plan from the arrivals of the last hour, and the instances that it takes (BATCH, SC'20).

The policy keeps the arrivals per second of the last hour. The planner fits an arrival process to them and finds the cheapest (B,
T) whose percentile is within the SLO (`gnomon/slo-ms`, `gnomon/slo-percentile`), with the present service times. The number of
instances is the 99.9 % quantile of concurrent batches. `batch` applies T by `fixed` scheduling; `batch+` leaves the wait to
`adaptive-fill`, so that only B and the number come from the plan. With `gnomon/plan-cores: any` the plan also chooses the cores
of an instance, or on Lambda its memory, by the function's profile (`sizes.py`).

A plan is valid for as long as the interval of its arrivals, at most an hour (or `gnomon/plan-window`): the first one is made
after 30 s, better ones after 60, 120, … s. A new plan is made when the rate has changed (from the counts since the change), when
service times differ by a tenth from the plan's or are known for larger batches, when the settings change, and when the number of
queues changes. The first plan needs 100 arrivals. Without a plan no batch waits and the number is that of `lv`; the reason
explains why. docs/decisions/0022-batch-policies.md has a worked example.

**Memory.** The policy's memory has the plan in force, with its service times, and the arrivals per second of the last hour (or of
`gnomon/plan-window`). An observation's history covers 300 s; each decision appends the seconds since the last decision. During a
pause between decisions, such as a restart, nothing is recorded, and the counts continue without a gap.

**Overload.** A plan is made from past arrivals: the test for changes needs a bin or more, and a plan needs 100 arrivals. Requests
that arrive meanwhile wait, and are late after one SLO. Each decision therefore compares the present demand with the rate of the
plan's instances at full batches:

    demand = arrivals of the last second + backlog / SLO          backlog: requests beyond the next batch of each instance
    carried = instances × max(B / S_B of the plan, b / S_b of the best batch with 2 S_b ≤ SLO)

A request that finds every instance busy waits up to S_b and executes for S_b, hence 2 S_b. If the demand exceeds the carried
rate, the number of instances is raised to carry it at a utilization of `BUSY`, but to at most twice the number for the arrivals
alone (a backlog that accumulates while a model loads does not indicate a higher rate). Batches may be as large as b: the queue
fills them by itself. This lasts for `HOLD_S` after the last excess, or until the next plan.

Example: S_b = 40 + 5 b ms, SLO 300 ms: the best batch is 16 in 120 ms, 133/s. A plan of one instance for 20/s sees 160 arrivals
in a second and 90 that wait: (160 + 74 / 0.3) / (0.8 · 133) = 3.8, so that four instances are wanted instead of one; two
decisions later there is a plan for 160/s.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import cast

from gnomon_autoscaler.policies.batch.plans import RULE, ChangeRule, CusumState, Reference, Task, plan_for, watch
from gnomon_autoscaler.policies.batch.sizes import all_cores, may_have, own_size, sized, towards_size
from gnomon_autoscaler.policies.rates import LAST_VALUE_PERIOD_S, Rate
from gnomon_autoscaler.replica_policy import (
    DesiredCount,
    Memory,
    count_in,
    inner_memory,
    memory_of,
    own_cores,
    timestamp_in,
    whole,
)
from gnomon_autoscaler.wrappers import standard
from gnomon_core.errors import GnomonError
from gnomon_core.scaling import Action, Decision, DestroyShadow, Observation, PolicyState, SetBufferPlan, StateValue
from gnomon_core.settings import Settings

MOVED = 0.1
"""The relative change of service times from which a new plan is made."""
MOST_KNOWN = 1024
"""The `longest` of plans that were stored without one: above any batch, so that these plans stay valid."""


@dataclass(frozen=True, slots=True)
class InForce:
    """The plan in force, with its time, its validity and the service times it was made for; with `batch` 0, why there is no plan.

    `size` is the instances': cores, or MB where that is what they have. The arrivals are shared among `queues`. `longest` is the
    largest batch whose service time was known. `rate_rps` and `dispersion` are those of all bins, `active_rps` and
    `short_dispersion` those of bins that were not idle in short windows, by which jumps are seen.
    """

    planned_at_s: float
    holds_s: float
    service_s: tuple[float, ...]
    batch: int
    timeout_s: float
    instances: int
    rate_rps: float
    dispersion: float
    said: str
    size: int
    queues: int
    longest: int
    active_rps: float
    short_dispersion: float

    @staticmethod
    def of(memory: Memory) -> InForce | None:
        """Parse the plan in the memory. A plan of an earlier version is for one queue and for all sizes then known."""
        remembered = memory.get("plan")
        if not isinstance(remembered, Mapping):
            return None
        whole = {"active_rps": remembered.get("rate_rps"), "short_dispersion": remembered.get("dispersion")}
        kept = {"queues": 1, "longest": MOST_KNOWN, **whole, **remembered}
        if any(each.name not in kept for each in fields(InForce)):
            return None
        return InForce(**{each.name: kept[each.name] for each in fields(InForce)})  # type: ignore[arg-type]

    def moved(self, service_s: Sequence[float]) -> bool:
        """Return whether service times have changed since the plan, or are known for larger batches now."""
        if len(service_s) > self.longest:
            return True
        pairs = zip(self.service_s[: self.batch], service_s, strict=False)
        return any(abs(now_s - then_s) > MOVED * then_s for then_s, now_s in pairs)


BIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Counts:
    """The arrivals per second up to `until_s`; the last `new` bins were added after the last decision."""

    bins: tuple[float, ...]
    until_s: float
    new: int

    @property
    def seconds(self) -> float:
        """Seconds that the counts cover."""
        return len(self.bins) * BIN_S

    @property
    def arrivals(self) -> float:
        """The number of arrivals."""
        return sum(self.bins)

    @property
    def latest(self) -> tuple[float, ...]:
        """The bins that are new since the last decision."""
        return self.bins[len(self.bins) - self.new :]

    def since(self, since_s: float) -> Counts:
        """The counts since this time, without earlier ones."""
        bin_count = max(0, min(len(self.bins), round((self.until_s - since_s) / BIN_S)))
        return Counts(self.bins[len(self.bins) - bin_count :], self.until_s, 0)


def counted(memory: Memory, observation: Observation, *, away: bool) -> Counts:
    """The remembered counts, followed by the history's counts since then, in whole seconds."""
    history, remembered = observation.history, memory.get("counts")
    each = max(1, round(BIN_S / history.bin_s))
    until_s = timestamp_in(memory, "counted_at_s")
    bin_count = len(history.arrivals)
    if until_s is not None:
        bin_count = 0 if away else max(0, min(bin_count, round((history.end_s - until_s) / history.bin_s)))
    incomplete = bin_count % each
    first, last = len(history.arrivals) - bin_count, len(history.arrivals) - incomplete
    new = tuple(round(sum(history.arrivals[begin : begin + each]), 3) for begin in range(first, last, each))
    old = cast("tuple[float, ...]", remembered) if isinstance(remembered, tuple) else ()
    bins = (old + new)[-round(observation.settings.plan_window_s / BIN_S) :]
    return Counts(bins, history.end_s - incomplete * history.bin_s, len(new))


VERSION = 2
DEFAULT_SCHEDULERS = {"batch": "fixed", "batch+": "adaptive-fill"}
ADAPTIVE = ("adaptive", "adaptive-fill", "adaptive-paper")
"""The schedulers that choose the time of each batch themselves."""
PERIOD_S = 1.0
FEWEST_ARRIVALS = 100.0
FIRST_S = 30.0
AGAIN_S = 60.0
"""Minimum seconds before a failed plan, or a plan whose service times changed, is made again."""
MOST_SPREAD = 0.2
"""The bound of the latency spread in a plan: a cold first batch raises the measured spread for some dozens of batches."""
AWAY_S = 10.0
"""The pause between decisions from which a restart is assumed: the bins of the history before it are counted already."""


class Batch:
    """The scaling policies `batch` and `batch+`: arrivals, the plan for them, and the plan's instances within the wrappers."""

    period_s = PERIOD_S

    def __init__(self, name: str, settings: Settings, rule: ChangeRule | None = RULE) -> None:
        """Initialise; `rule` detects changes of the rate; with None a plan is valid for its whole time."""
        self.name = name
        self._rule = rule
        self.default_scheduler = DEFAULT_SCHEDULERS[name]
        self.needs = frozenset({"size", "resize"} if settings.plan_cores == "any" else ())
        self._adaptive = (settings.scheduler or self.default_scheduler) in ADAPTIVE

    def decide(self, observation: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Actions towards the plan's instances and, if another buffer plan is in force, its buffer."""
        memory = memory_of(state, self.name, VERSION)
        decided_at_s = timestamp_in(memory, "decided_at_s")
        away = decided_at_s is not None and not 0.0 <= observation.now_s - decided_at_s <= AWAY_S
        basis = zlib.crc32(repr(observation.settings).encode())
        counts, plan = counted(memory, observation, away=away), InForce.of(memory)
        observation = sized(observation, _size_of(memory, observation))
        if plan is not None and (basis, plan.queues) != (memory.get("basis"), observation.queues):
            plan = self._replanned(plan, counts, observation)
        counts, plan, evidence = self._followed(memory, counts, plan, observation)
        if plan is not None and plan.batch:
            observation = sized(observation, plan.size)
        wanted = _wanted(counts, plan, observation)
        batch = plan.batch if plan is not None and plan.batch else observation.settings.max_batch
        # Another plan ends what was held against the one before.
        held_state = memory if plan == InForce.of(memory) else {}
        overload = overloaded(observation, max(1, wanted.count), batch, held_state)
        if overload is not None:
            wanted = DesiredCount(max(overload.count, wanted.count), f"{overload.reason}; {wanted.reason}")
        desired = standard(_FixedCount(self.name, wanted)).desired_count(observation, inner_memory(memory))
        buffer = self._buffer(plan, observation, overload, planned=memory.get("planned") is True)
        shadows = tuple(DestroyShadow(shadow.id) for shadow in observation.shadows)
        remembered: dict[str, StateValue] = {
            "inner": desired.memory, "decided_at_s": observation.now_s, "basis": basis, "planned": buffer is not None,
            "counts": counts.bins, "counted_at_s": counts.until_s, "size": own_size(observation), **evidence,
            **(overload.remembered() if overload is not None else {}),
        }  # fmt: skip
        if plan is not None:
            remembered["plan"] = asdict(plan)
        buffer_actions: tuple[Action, ...] = (buffer,) if buffer is not None and buffer != observation.plan else ()
        changes = (*shadows, *own_cores(observation), *buffer_actions)
        decision = Decision((*changes, *towards_size(desired.count, observation)), desired.reason, desired.count)
        return decision, PolicyState(self.name, VERSION, remembered)

    def _buffer(
        self, plan: InForce | None, observation: Observation, overload: Overload | None, *, planned: bool
    ) -> SetBufferPlan | None:
        """The buffer plan; None to keep the plan in force: before its first plan the policy may inherit another policy's."""
        if plan is not None and plan.batch:
            # In an overload the queue fills larger batches by itself; T still applies to requests that find no queue.
            return SetBufferPlan(max(plan.batch, overload.batch if overload else 1), self._wait_s(plan, observation.settings))
        return SetBufferPlan(observation.settings.max_batch, self._wait_s(None, observation.settings)) if planned else None

    def _followed(
        self, memory: Memory, counts: Counts, plan: InForce | None, observation: Observation
    ) -> tuple[Counts, InForce | None, dict[str, StateValue]]:
        """The counts, plan and change-detection evidence after the arrivals since the last decision."""
        if plan is not None and plan.batch and plan == InForce.of(memory):
            begin_s, new = counts.until_s - counts.new * BIN_S, counts.latest
            reference = Reference(plan.rate_rps, plan.dispersion, plan.active_rps, plan.short_dispersion)
            evidence, change = watch(_evidence(memory), reference, self._rule, new, bin_s=BIN_S, begin_s=begin_s)
            if change is not None:
                since = counts.since(change.since_s)
                return self._first(since, observation, changed=True)
            kept: dict[str, StateValue] = {
                "evidence": (evidence.more, evidence.less, evidence.up, evidence.down),
                "evidence_since_at_s": (
                    evidence.more_since_s,
                    evidence.less_since_s,
                    evidence.up_since_s,
                    evidence.down_since_s,
                ),
            }
            late_s = observation.now_s - plan.planned_at_s
            if late_s < plan.holds_s and not (late_s >= AGAIN_S and plan.moved(observation.latency_s)):
                return counts, plan, kept
            return counts, self._replanned(plan, counts, observation), {}
        if plan is None or not 0.0 <= observation.now_s - plan.planned_at_s < plan.holds_s:
            return self._first(counts, observation, changed=memory.get("changed") is True)
        return counts, plan, {}

    def _first(
        self, counts: Counts, observation: Observation, *, changed: bool
    ) -> tuple[Counts, InForce | None, dict[str, StateValue]]:
        """The first plan, or the first since a change, which is made as soon as enough arrivals are known."""
        if _can_plan(observation, counts, 0.0 if changed else FIRST_S):
            return counts, self._made(counts, observation), {}
        return counts, None, {"changed": changed}

    def _replanned(self, plan: InForce, counts: Counts, observation: Observation) -> InForce:
        """A new plan; the present one if there are no counts to make it from."""
        return self._made(counts, observation) if _can_plan(observation, counts) else plan

    def _made(self, counts: Counts, observation: Observation) -> InForce:
        """Make a plan, or record why there is none."""
        settings = observation.settings
        longest_s = settings.slo_s if settings.max_wait_s is None or self._adaptive else min(settings.slo_s, settings.max_wait_s)
        memory_bytes = max((instance.memory_bytes for instance in observation.instances), default=0)
        spread = round(min(observation.latency_spread, MOST_SPREAD), 2)
        task = Task(
            settings.slo_s, settings.slo_percentile, observation.latency_s, settings.cores, memory_bytes, longest_s,
            settings.scale.max, settings.memory_mb, may_have(observation), all_cores(observation), spread, observation.queues,
        )  # fmt: skip
        try:
            plan = plan_for(counts.bins, BIN_S, task)
        except GnomonError as error:
            why = error.message.rstrip(".")
            return InForce(
                planned_at_s=observation.now_s, holds_s=AGAIN_S, service_s=(), batch=0, timeout_s=0.0, instances=0, rate_rps=0.0,
                dispersion=1.0, said=why, size=own_size(observation), queues=observation.queues,
                longest=len(observation.latency_s), active_rps=0.0, short_dispersion=1.0,
            )  # fmt: skip
        holds_s = min(settings.plan_window_s, max(FIRST_S, counts.seconds))
        known_s = tuple(sized(observation, plan.size).latency_s)
        adaptive = "; T is left to adaptive scheduling" if self._adaptive else ""
        said = f"{plan.reason}, {settings.slo_s * 1e3:g} ms asked for{adaptive}"
        return InForce(
            observation.now_s, holds_s, known_s[: plan.batch], plan.batch, plan.timeout_s, plan.instances, plan.rate_rps,
            plan.dispersion, said, plan.size, observation.queues, len(known_s), plan.active_rps, plan.short_dispersion,
        )  # fmt: skip

    def _wait_s(self, plan: InForce | None, settings: Settings) -> float:
        """T: the plan's, or without one no wait; under adaptive scheduling none beyond the function's own."""
        own_s = settings.max_wait_s
        if self._adaptive:
            return settings.slo_s if own_s is None else own_s
        return plan.timeout_s if plan is not None else own_s or 0.0


@dataclass(frozen=True, slots=True)
class _FixedCount:
    """A count policy with a fixed answer."""

    name: str
    given: DesiredCount
    version: int = VERSION
    period_s: float = PERIOD_S
    default_scheduler: str = ""

    def desired_count(self, observation: Observation, memory: Memory) -> DesiredCount:  # noqa: ARG002 - it was given
        return self.given


def _wanted(counts: Counts, plan: InForce | None, observation: Observation) -> DesiredCount:
    if plan is not None and plan.batch:
        return DesiredCount(plan.instances, plan.said)
    last = Rate("lv", LAST_VALUE_PERIOD_S).desired_count(observation, {})
    why = (
        "service times are not known" if not observation.latency_s else f"{counts.arrivals:.0f} arrivals in {counts.seconds:g} s"
    )
    return DesiredCount(last.count, f"no plan ({plan.said if plan is not None else why}); as lv: {last.reason}")


def _can_plan(observation: Observation, counts: Counts, seconds: float = 0.0) -> bool:
    return bool(observation.latency_s) and counts.arrivals >= FEWEST_ARRIVALS and counts.seconds >= seconds


def _size_of(memory: Memory, observation: Observation) -> int:
    """The size that instances have by the last plan; the function's own where it is not for plans to choose it."""
    chosen = count_in(memory, "size")
    return chosen if chosen is not None and chosen in may_have(observation) else own_size(observation)


def _evidence(memory: Memory) -> CusumState:
    """The evidence in the policy's memory; zero at first."""
    sums, since_s = memory.get("evidence"), memory.get("evidence_since_at_s")
    if not isinstance(sums, tuple) or not isinstance(since_s, tuple):
        return CusumState()
    # The second pair of each is that of jumps, which earlier versions had not.
    both = (*sums[:2], *since_s[:2], *sums[2:], *since_s[2:])
    return CusumState(*(float(value) for value in both if isinstance(value, int | float)))


WINDOW_S = 1.0
HOLD_S = 5.0
BUSY = 0.8
"""The target utilization of instances: at 1 a queue never shortens."""
MOST_FACTOR = 2.0
"""The most instances for a backlog, as a multiple of those for the arrivals."""


@dataclass(frozen=True, slots=True)
class Overload:
    """An overload: the instances and largest batch for it, the reason, and its end."""

    count: int
    batch: int
    until_s: float
    reason: str

    def remembered(self) -> dict[str, StateValue]:
        """The overload as JSON for the policy's memory."""
        return {"overload": (self.count, self.batch), "overload_until_at_s": self.until_s}


def overloaded(observation: Observation, planned: int, batch: int, memory: Memory) -> Overload | None:
    """The present overload, or the one of the last `HOLD_S` seconds. `planned` instances make batches of up to `batch`."""
    previous = _held(memory, observation.now_s)
    if not observation.latency_s:
        return None
    best, best_rps = _best(observation.latency_s, observation.settings.slo_s)
    within = min(batch, len(observation.latency_s))
    each_rps = max(best_rps, within / observation.latency_s[within - 1])
    rate_rps = observation.history.rate_rps(observation.history.arrivals, WINDOW_S)
    backlog = max(0, observation.queued - max(1, len(observation.ready)) * max(batch, best))
    demand_rps = rate_rps + backlog / observation.settings.slo_s
    if demand_rps <= planned * each_rps:
        return previous if previous is not None and previous.count > planned else None
    most = whole(MOST_FACTOR * rate_rps / each_rps) + 1
    count = max(planned + 1, min(most, whole(demand_rps / (BUSY * each_rps))), previous.count if previous is not None else 0)
    reason = f"overload: {rate_rps:.2f} rps and {backlog} more than fit, of {planned * each_rps:.2f} rps that {planned} carry"
    return Overload(count, max(batch, best), observation.now_s + HOLD_S, reason)


def _held(memory: Memory, now_s: float) -> Overload | None:
    values, until_s = memory.get("overload"), timestamp_in(memory, "overload_until_at_s")
    if until_s is None or not now_s < until_s <= now_s + HOLD_S or not isinstance(values, tuple):
        return None
    pair = dict(zip(("count", "batch"), values, strict=True))
    count, batch = count_in(pair, "count") or 0, count_in(pair, "batch") or 1
    return Overload(count, batch, until_s, f"overload a moment ago: {count} for {HOLD_S:g} s")


def _best(latency_s: Sequence[float], slo_s: float) -> tuple[int, float]:
    """The batch of the highest rate within half of the SLO, with the rate; else a batch of one."""
    timely = [number for number, seconds in enumerate(latency_s, start=1) if 2.0 * seconds <= slo_s]
    batch = max(timely or [1], key=lambda number: number / latency_s[number - 1])
    return batch, batch / latency_s[batch - 1]
