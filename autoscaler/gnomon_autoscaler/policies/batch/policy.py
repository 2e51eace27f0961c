"""`batch` and `batch+`: a buffer plan from the arrivals of the last hour, and the instances that it takes (BATCH, SC'20).

Counts per second of the last hour are kept; from them the planner fits how requests arrive and finds the cheapest (B, T) whose
percentile is within the SLO (`gnomon/slo-ms`, `gnomon/slo-percentile`), with service times as they are known now. The number of
instances is the 99.9 % quantile of concurrent batches. `batch` has T served by `fixed` scheduling; `batch+` leaves the time to
`adaptive-fill`, so that only B and the number are the plan's. With `gnomon/plan-cores: any` the plan has the cores of an
instance too, or on Lambda its memory, by the function's profile (`sizes.py`).

A plan holds for as long as the time it was made from, at most an hour (or `gnomon/plan-window`): after 30 s there is one, after
60, 120, … a better one. It is made anew when the rate has changed (then from the counts since it did), when batches take a tenth
more or less than it counted on or larger ones are known, when the settings change, and when the arrivals wait in another number
of queues. The first plan needs 100 arrivals. Without a plan there is no wait for a batch and the number is `lv`'s; the reason
says why. docs/decisions/0022-batch-policies.md has a worked example.

**Memory.** The policy keeps the plan in force with the service times that it counts on, and counts per second of the last hour.
`gnomon/plan-window` names another time than an hour. The history that every policy sees reaches back 300 s; these counts go on
from where the last decision left them. While nobody asked, as during a restart, nothing is counted: what came before is followed
by what came after.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import cast

from gnomon_autoscaler.policies.batch.overload import Overload, overloaded
from gnomon_autoscaler.policies.batch.plans import RULE, ChangeRule, Evidence, Reference, Task, plan_for, watch
from gnomon_autoscaler.policies.batch.sizes import all_cores, may_have, own_size, sized, towards_size
from gnomon_autoscaler.policies.rates import LAST_VALUE_PERIOD_S, Rate
from gnomon_autoscaler.replica_policy import DesiredCount, Memory, count_in, inner_memory, timestamp_in
from gnomon_autoscaler.wrappers import standard
from gnomon_core.errors import GnomonError
from gnomon_core.scaling import Action, Decision, DestroyShadow, Observation, PolicyState, SetBufferPlan, StateValue
from gnomon_core.settings import Settings

MOVED = 0.1
"""Relative change of service times that makes a new plan."""
MOST_KNOWN = 1024
"""`longest` of plans that were stored before it was: larger than any batch, so that these plans stay."""


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
        """Return whether batches take other times than it counted on, or larger ones are known by now."""
        if len(service_s) > self.longest:
            return True
        pairs = zip(self.service_s[: self.batch], service_s, strict=False)
        return any(abs(now_s - then_s) > MOVED * then_s for then_s, now_s in pairs)


BIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Counts:
    """Arrivals per second up to `until_s`; the last `new` of them were not there at the decision before."""

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
        kept = max(0, min(len(self.bins), round((self.until_s - since_s) / BIN_S)))
        return Counts(self.bins[len(self.bins) - kept :], self.until_s, 0)


def counted(memory: Memory, seen: Observation, *, away: bool) -> Counts:
    """The counts that are remembered and those of the history that have come since, in whole seconds."""
    history, before = seen.history, memory.get("counts")
    each = max(1, round(BIN_S / history.bin_s))
    until_s = timestamp_in(memory, "counted_at_s")
    there = len(history.arrivals)
    if until_s is not None:
        there = 0 if away else max(0, min(there, round((history.end_s - until_s) / history.bin_s)))
    incomplete = there % each
    first, last = len(history.arrivals) - there, len(history.arrivals) - incomplete
    new = tuple(round(sum(history.arrivals[begin : begin + each]), 3) for begin in range(first, last, each))
    old = cast("tuple[float, ...]", before) if isinstance(before, tuple) else ()
    bins = (old + new)[-round(seen.settings.plan_window_s / BIN_S) :]
    return Counts(bins, history.end_s - incomplete * history.bin_s, len(new))


VERSION = 2
DEFAULT_SCHEDULERS = {"batch": "fixed", "batch+": "adaptive-fill"}
ADAPTIVE = ("adaptive", "adaptive-fill", "adaptive-paper")
"""Schedulers that find the time of each batch by themselves."""
PERIOD_S = 1.0
FEWEST_ARRIVALS = 100.0
FIRST_S = 30.0
AGAIN_S = 60.0
"""Minimum seconds before a failed plan, or a plan whose service times changed, is made again."""
MOST_SPREAD = 0.2
"""A first batch that was cold weighs for some dozens of batches; it is no law for all of them."""
AWAY_S = 10.0
"""A longer pause between decisions means a restart: earlier bins of the history are already counted."""


class Batch:
    """Counts, a plan for them, and the plan's instances within what every function's owner relies on."""

    period_s = PERIOD_S

    def __init__(self, name: str, settings: Settings, rule: ChangeRule | None = RULE) -> None:
        """`rule` says what is a change of the rate; with None none is looked for, and a plan holds for its time."""
        self.name = name
        self._rule = rule
        self.default_scheduler = DEFAULT_SCHEDULERS[name]
        self.needs = frozenset({"size", "resize"} if settings.plan_cores == "any" else ())
        self._adaptive = (settings.scheduler or self.default_scheduler) in ADAPTIVE

    def decide(self, seen: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        """Actions towards the plan's instances and, if another buffer plan is in force, its buffer."""
        memory: Memory = state.values if (state.policy, state.version) == (self.name, VERSION) else {}
        decided_at_s = timestamp_in(memory, "decided_at_s")
        away = decided_at_s is not None and not 0.0 <= seen.now_s - decided_at_s <= AWAY_S
        basis = zlib.crc32(repr(seen.settings).encode())
        counts, plan = counted(memory, seen, away=away), InForce.of(memory)
        seen = sized(seen, _size_of(memory, seen))
        if plan is not None and (basis, plan.queues) != (memory.get("basis"), seen.queues):
            plan = self._replanned(plan, counts, seen)
        counts, plan, evidence = self._followed(memory, counts, plan, seen)
        if plan is not None and plan.batch:
            seen = sized(seen, plan.size)
        wanted = _wanted(counts, plan, seen)
        batch = plan.batch if plan is not None and plan.batch else seen.settings.max_batch
        # Another plan ends what was held against the one before.
        held = memory if plan == InForce.of(memory) else {}
        overload = overloaded(seen, max(1, wanted.count), batch, held)
        if overload is not None:
            wanted = DesiredCount(max(overload.count, wanted.count), f"{overload.reason}; {wanted.reason}")
        desired = standard(_FixedCount(self.name, wanted)).desired_count(seen, inner_memory(memory))
        buffer = self._buffer(plan, seen, overload, planned=memory.get("planned") is True)
        shadows = tuple(DestroyShadow(shadow.id) for shadow in seen.shadows)
        remembered: dict[str, StateValue] = {
            "inner": desired.memory, "decided_at_s": seen.now_s, "basis": basis, "planned": buffer is not None,
            "counts": counts.bins, "counted_at_s": counts.until_s, "size": own_size(seen), **evidence,
            **(overload.remembered() if overload is not None else {}),
        }  # fmt: skip
        if plan is not None:
            remembered["plan"] = asdict(plan)
        buffer_actions: tuple[Action, ...] = (buffer,) if buffer is not None and buffer != seen.plan else ()
        decision = Decision((*shadows, *buffer_actions, *towards_size(desired.count, seen)), desired.reason, desired.count)
        return decision, PolicyState(self.name, VERSION, remembered)

    def _buffer(
        self, plan: InForce | None, seen: Observation, overload: Overload | None, *, planned: bool
    ) -> SetBufferPlan | None:
        """The bounds that batches are to have. None for whatever is in force: who has never planned may follow one who has."""
        if plan is not None and plan.batch:
            # What queues in an overload fills larger batches by itself; the plan's T goes on for what does not queue.
            return SetBufferPlan(max(plan.batch, overload.batch if overload else 1), self._wait_s(plan, seen.settings))
        return SetBufferPlan(seen.settings.max_batch, self._wait_s(None, seen.settings)) if planned else None

    def _followed(
        self, memory: Memory, counts: Counts, plan: InForce | None, seen: Observation
    ) -> tuple[Counts, InForce | None, dict[str, StateValue]]:
        """Counts, plan and evidence after what has come since the last decision."""
        if plan is not None and plan.batch and plan == InForce.of(memory):
            begin_s, new = counts.until_s - counts.new * BIN_S, counts.latest
            reference = Reference(plan.rate_rps, plan.dispersion, plan.active_rps, plan.short_dispersion)
            evidence, change = watch(_evidence(memory), reference, self._rule, new, bin_s=BIN_S, begin_s=begin_s)
            if change is not None:
                since = counts.since(change.since_s)
                return self._first(since, seen, changed=True)
            kept: dict[str, StateValue] = {
                "evidence": (evidence.more, evidence.less, evidence.up, evidence.down),
                "evidence_since_at_s": (
                    evidence.more_since_s,
                    evidence.less_since_s,
                    evidence.up_since_s,
                    evidence.down_since_s,
                ),
            }
            late_s = seen.now_s - plan.planned_at_s
            if late_s < plan.holds_s and not (late_s >= AGAIN_S and plan.moved(seen.latency_s)):
                return counts, plan, kept
            return counts, self._replanned(plan, counts, seen), {}
        if plan is None or not 0.0 <= seen.now_s - plan.planned_at_s < plan.holds_s:
            return self._first(counts, seen, changed=memory.get("changed") is True)
        return counts, plan, {}

    def _first(self, counts: Counts, seen: Observation, *, changed: bool) -> tuple[Counts, InForce | None, dict[str, StateValue]]:
        """The first plan, or the first since a change: that one as soon as there are arrivals enough for it."""
        if _can_plan(seen, counts, 0.0 if changed else FIRST_S):
            return counts, self._made(counts, seen), {}
        return counts, None, {"changed": changed}

    def _replanned(self, plan: InForce, counts: Counts, seen: Observation) -> InForce:
        """A new plan; the present one if there are no counts to make it from."""
        return self._made(counts, seen) if _can_plan(seen, counts) else plan

    def _made(self, counts: Counts, seen: Observation) -> InForce:
        """Make a plan, or record why there is none."""
        settings = seen.settings
        longest_s = settings.slo_s if settings.max_wait_s is None or self._adaptive else min(settings.slo_s, settings.max_wait_s)
        memory_bytes = max((one.memory_bytes for one in seen.instances), default=0)
        task = Task(
            settings.slo_s, settings.slo_percentile, seen.latency_s, settings.cores, memory_bytes, longest_s, settings.scale.max,
            settings.memory_mb, may_have(seen), all_cores(seen), round(min(seen.latency_spread, MOST_SPREAD), 2), seen.queues,
        )  # fmt: skip
        try:
            found = plan_for(counts.bins, BIN_S, task)
        except GnomonError as error:
            why = error.message.rstrip(".")
            return InForce(
                seen.now_s, AGAIN_S, (), 0, 0.0, 0, 0.0, 1.0, why, own_size(seen), seen.queues, len(seen.latency_s), 0.0, 1.0
            )
        holds_s = min(settings.plan_window_s, max(FIRST_S, counts.seconds))
        known_s = tuple(sized(seen, found.size).latency_s)
        said = (
            f"{found.said}, {settings.slo_s * 1e3:g} ms asked for{'; T is left to adaptive scheduling' if self._adaptive else ''}"
        )
        return InForce(
            seen.now_s, holds_s, known_s[: found.batch], found.batch, found.timeout_s, found.instances, found.rate_rps,
            found.dispersion, said, found.size, seen.queues, len(known_s), found.active_rps, found.short_dispersion,
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

    def desired_count(self, seen: Observation, memory: Memory) -> DesiredCount:  # noqa: ARG002 - it was given
        return self.given


def _wanted(counts: Counts, plan: InForce | None, seen: Observation) -> DesiredCount:
    if plan is not None and plan.batch:
        return DesiredCount(plan.instances, plan.said)
    last = Rate("lv", LAST_VALUE_PERIOD_S).desired_count(seen, {})
    why = "service times are not known" if not seen.latency_s else f"{counts.arrivals:.0f} arrivals in {counts.seconds:g} s"
    return DesiredCount(last.count, f"no plan ({plan.said if plan is not None else why}); as lv: {last.reason}")


def _can_plan(seen: Observation, counts: Counts, seconds: float = 0.0) -> bool:
    return bool(seen.latency_s) and counts.arrivals >= FEWEST_ARRIVALS and counts.seconds >= seconds


def _size_of(memory: Memory, seen: Observation) -> int:
    """The size that instances have by the last plan; the function's own where it is not for plans to choose it."""
    chosen = count_in(memory, "size")
    return chosen if chosen is not None and chosen in may_have(seen) else own_size(seen)


def _evidence(memory: Memory) -> Evidence:
    """The evidence in the policy's memory; zero at first."""
    sums, since_s = memory.get("evidence"), memory.get("evidence_since_at_s")
    if not isinstance(sums, tuple) or not isinstance(since_s, tuple):
        return Evidence()
    # The second pair of each is that of jumps, which earlier versions had not.
    both = (*sums[:2], *since_s[:2], *sums[2:], *since_s[2:])
    return Evidence(*(float(one) for one in both if isinstance(one, int | float)))
