"""The use of the planner by `batch` and `batch+`: fit a plan to counts, and test whether the arrivals still match the plan.

Only this part of the policies needs numpy, so that the registry imports the package when a function chooses one of them.

A plan is searched among the `BATCHES` up to the largest and 12 timeouts up to the SLO, denser for short ones: SLO·(i/12)². The
search must end within the second that a decision may take. Therefore only the few best candidates are settled exactly, and there
is no plan if full batches would keep more than `MOST_BUSY` instances busy. If every plan needs more instances than allowed, the
plan with the fewest is taken, and the reason names it.

If calls are billed, as on Lambda, instances are unlimited: a plan is chosen by its price alone, which needs no settling, so that
48 timeouts are considered, SLO·i/48. The user's bound of concurrent slots does not change the plan; the reason names an excess.

If instances may have several sizes, the cheapest plan of each size is computed, and the cheapest of these that meets the SLO and
fits the nodes' cores is taken. The present size stays unless another one saves a tenth: until all instances have changed, both
are paid.

If the arrivals are distributed among several queues, each fills its batches from its own share, more slowly: the plan is made for
one queue, with its instances for each. That is conservative, because the queues' peaks do not coincide. Changes are detected in
the sum of all arrivals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gnomon_core.errors import GnomonError
from gnomon_core.lambda_pricing import MB_PER_CORE
from gnomon_core.units import MEGABYTE
from gnomon_planner.billing import FARGATE, LAMBDA, Billing, PerCall, Provisioned
from gnomon_planner.buffer import Buffer, BufferPlan
from gnomon_planner.changes import Change, ChangeRule, CusumState, Reference, detect_change
from gnomon_planner.fit import fit
from gnomon_planner.instances import fleet_for
from gnomon_planner.maps import Map
from gnomon_planner.optimizer import Landscape
from gnomon_planner.plans import Choice, Plan, Size, Space
from gnomon_planner.samples import sample_of_counts
from gnomon_planner.service_time import ratios_of_deviation
from gnomon_planner.validation import Objective, Trial, Window, validate_plan

TIMEOUTS = 12
CALLED_TIMEOUTS = 48
"""The number of timeouts if calls are billed: plans are then priced without being settled."""
# Settling a plan, the exact number of its instances, takes longer for larger batches and more busy instances. These bound it
# within the second of a decision.
MOST_CANDIDATES = 12
SETTLED_SAMPLES = 64
SETTLED_BUSY = 400.0
SETTLED_OF_EACH = 4
BATCHES = (*range(1, 9), 10, 12, 16, 20, 24, 32)
MOST_BUSY = 200
"""The number of busy instances beyond which no plan is made: the search would take longer than a decision may."""
PER_MILLION = 1e6
WORTH_A_CHANGE = 0.1
"""The saving from which instances change their size: until all have changed, both sizes are paid."""
RULE = ChangeRule()
LOADED = (np.fft, np.ma)
"""Parts of numpy that are imported here, and not at their first use, within the second of a process's first plan."""

__all__ = ["RULE", "Change", "ChangeRule", "CusumState", "Planned", "Reference", "Task", "plan_for", "watch"]


@dataclass(frozen=True, slots=True)
class Task:
    """The objective and the constraints of a plan: P`percent` within `slo_s`.

    Instances of `cores` take `service_s` for batches of 1, 2, …; `max_timeout_s` bounds the timeout; there may be at most
    `max_instances`. With `memory_mb` calls are billed as on Lambda, otherwise instances are provisioned. `other_sizes` are
    the mean service times (seconds) of other sizes that instances may have, by memory in MB with `memory_mb`, by cores without;
    `cluster_cores` bounds the cores of all instances. `deviation` is the mean relative deviation of a service time from its mean.
    Requests are distributed at random among `queues`.
    """

    slo_s: float
    percent: float
    service_s: tuple[float, ...]
    cores: int
    memory_bytes: int
    max_timeout_s: float
    max_instances: int
    memory_mb: int | None = None
    other_sizes: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    cluster_cores: float = math.inf
    deviation: float = 0.0
    queues: int = 1

    @property
    def max_per_queue(self) -> int:
        """The most instances for one queue: its share, rounded down, and at least one."""
        return max(1, self.max_instances // self.queues)

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The sizes that an instance may have, the present size first."""
        ratios = ratios_of_deviation(self.deviation)
        # What is learned are means; a size's ratios are to its median.
        mean_ratio = sum(ratios) / len(ratios)
        own = self.cores if self.memory_mb is None else self.memory_mb
        means = {own: self.service_s} | dict(self.other_sizes) | {own: self.service_s}
        rows = {size: tuple(mean_s / mean_ratio for mean_s in row) for size, row in means.items()}
        if self.memory_mb is not None:
            return tuple(Size(f"{mb} MB", mb, mb / MB_PER_CORE, row, ratios) for mb, row in rows.items())
        return tuple(Size(_named(cores), self.memory_bytes / MEGABYTE, cores, row, ratios) for cores, row in rows.items())

    @property
    def timeouts_s(self) -> tuple[float, ...]:
        """The timeouts T to try in seconds, ascending."""
        provisioned = self.memory_mb is None
        count = TIMEOUTS if provisioned else CALLED_TIMEOUTS
        shares = [(step / count) ** (2 if provisioned else 1) for step in range(1, count + 1)]
        return tuple(sorted({round(self.max_timeout_s * share, 4) for share in shares}))


@dataclass(frozen=True, slots=True)
class Planned:
    """A buffer (B, T) of each queue, how many instances of which size all take, and the arrivals that it was made for."""

    batch: int
    timeout_s: float
    instances: int
    rate_rps: float
    dispersion: float
    reason: str
    size: int
    active_rps: float
    short_dispersion: float


def plan_for(counts: Sequence[float], bin_s: float, task: Task) -> Planned:
    """The cheapest plan that meets the SLO, or the nearest to it, as `reason` tells.

    Its instances are those of one queue times `queues`, each queue's for 999 of 1000 moments: peaks need not meet, so that all
    together are seldom busy. Rate and dispersion are those of all arrivals.

    Raises:
        GnomonError: 400 where there is no plan: nothing arrives, or so many that not even full batches fit
            `max_instances` provisioned instances.

    """
    fitted = fit(sample_of_counts(counts, bin_s))
    # Requests are distributed at random, so that each queue's arrivals are a thinned process.
    one_queue = fitted.process.thinned(1.0 / task.queues)
    choice, lost_text = _planned(one_queue, task)
    chosen, reference = choice.plan, Reference.of(fitted.process, RULE, counts, bin_s)
    instances = (chosen.instances or _slots(one_queue, chosen, task.max_per_queue)) * task.queues
    buffer, instances, validation = _validated(counts, bin_s, choice, instances, task)
    bound = (
        f"; with more than the {task.max_instances} slots that there may be"
        if instances > task.max_instances and not chosen.instances
        else ""
    )
    text = f"{_plan_text(choice, task.percent)}{validation}{bound}{lost_text}"
    each = f"; {one_queue.rate_rps:.2f} rps in each of {task.queues} queues" if task.queues > 1 else ""
    reason = f"{fitted.process.rate_rps:.2f} rps in {len(counts) * bin_s:g} s, {fitted.chosen.family}{each}: {text}"
    size = round(chosen.size.cores if task.memory_mb is None else chosen.size.memory_mb)
    return Planned(
        buffer.batch, buffer.timeout_s, instances, reference.rate_rps, reference.dispersion, reason, size, *reference.active
    )


def _validated(counts: Sequence[float], bin_s: float, choice: Choice, instances: int, task: Task) -> tuple[BufferPlan, int, str]:
    """The buffer and the instances after validation on the window that they were planned from, and a text if they changed.

    A plan that misses the SLO is not validated: it is the nearest already.
    """
    plan = choice.plan
    provisioned = plan.instances is not None
    if choice.failed:
        return plan.buffer, instances, ""
    max_instances = task.max_per_queue * task.queues if provisioned else None
    batches = [batch for batch in BATCHES if batch <= len(plan.size.service_s)]
    objective = Objective(task.slo_s, task.percent, batches, task.timeouts_s, task.queues, max_instances)
    first = Trial(plan.buffer, instances if provisioned else None)
    validated_plan = validate_plan(
        Window(counts, bin_s, task.queues), first, plan.size, objective, None if provisioned else LAMBDA["x86"]
    )
    if (validated_plan.buffer, validated_plan.instances) == (first.buffer, first.instances):
        return plan.buffer, instances, ""
    instances_text = f"{validated_plan.instances} instances, " if provisioned else ""
    bounds = f"B = {validated_plan.buffer.batch}, T = {validated_plan.buffer.timeout_s * 1e3:g} ms"
    text = f"; replayed, {instances_text}{bounds} has {1.0 - validated_plan.late_share:.1%} in time"
    return validated_plan.buffer, validated_plan.instances if validated_plan.instances is not None else instances, text


def _planned(process: Map, task: Task) -> tuple[Choice, str]:
    """The plan for one queue, to which requests come by this process, and why other sizes lost."""
    most, most_busy = (task.max_per_queue, min(task.max_instances, MOST_BUSY)) if task.memory_mb is None else (math.inf, math.inf)
    busy = {size: _busy(process, size) for size in task.sizes}
    sizes = tuple(size for size in busy if task.queues * busy[size] <= most_busy)
    if not sizes:
        raise GnomonError(
            400,
            "too_many_instances",
            f"{task.queues * process.rate_rps:.2f} rps keep {task.queues * min(busy.values()):.1f} instances busy, "
            f"of {most_busy:.0f} at most.",
        )
    longest = min(BATCHES[-1], max(len(size.service_s) for size in sizes))
    space = Space(sizes, tuple(batch for batch in BATCHES if batch <= longest), task.timeouts_s)
    settled = min(MOST_CANDIDATES, SETTLED_SAMPLES // longest, int(SETTLED_BUSY / max(1.0, *(busy[size] for size in sizes))))
    provisioned = Provisioned(FARGATE, settled if len(sizes) == 1 else max(1, min(SETTLED_OF_EACH, 2 * settled // len(sizes))))
    billing: Billing = provisioned if task.memory_mb is None else PerCall(LAMBDA["x86"])
    landscape = Landscape(process, space, billing, task.percent, most)
    parts = [landscape.of_size(number) for number in range(len(sizes))]
    return _chosen(parts, task, max(SETTLED_OF_EACH, 2 * provisioned.candidates))


def _busy(process: Map, size: Size) -> float:
    """The number of busy instances of that size if all batches are full."""
    per_request_s = min(seconds / batch for batch, seconds in enumerate(size.service_s[: BATCHES[-1]], start=1))
    return process.rate_rps * per_request_s * size.mean_ratio


def _slots(process: Map, plan: Plan, limit: int) -> int:
    """The 99.9th percentile of the batches under way at once; `limit` + 1 if that is above `limit`."""
    buffer = Buffer(process, plan.buffer)
    service_s = float(buffer.sizes @ plan.size.service(plan.buffer.batch).means)
    if process.rate_rps * service_s > limit * buffer.mean_size:
        return limit + 1
    return min(fleet_for(buffer, service_s).instances, limit + 1)


def _chosen(parts: Sequence[Landscape], task: Task, most: int) -> tuple[Choice, str]:
    """The best of all sizes, exactly, and why the others lost; those that are dearer are not looked at more closely.

    A size whose estimate is dearer than the exact plan of another size loses: an estimate costs no more than the exact plan.
    """
    estimates = [part.cheapest_estimate(task.slo_s) for part in parts]
    choices: list[Choice | None] = [None if plan is None else Choice(plan) for plan in estimates]
    # Lower bounds first: a size whose bound is above another size's exact plan need not be computed exactly.
    exact: set[int] = set()
    while True:
        for number, choice in enumerate(choices):
            if choice is None:
                choices[number] = parts[number].cheapest(task.slo_s, most)
                exact.add(number)
        present_choices = [choice for choice in choices if choice is not None]
        best, lost = _best(present_choices, task)
        number = next(number for number, choice in enumerate(present_choices) if choice is best)
        if number in exact:
            return best, lost
        choices[number] = None


def _best(choices: Sequence[Choice], task: Task) -> tuple[Choice, str]:
    """The cheapest choice that meets the SLO and fits the nodes; the present size, unless another saves a tenth.

    And why the others lost, in words.
    """
    if len(choices) == 1:
        return choices[0], ""
    first = task.sizes[0].name
    fitting = [choice for choice in choices if _cores(choice.plan, task) <= task.cluster_cores] or choices[:1]
    meeting = [choice for choice in fitting if not choice.failed]
    if meeting:
        best = min(meeting, key=lambda choice: choice.plan.usd_per_request)
        now = next((choice for choice in meeting if choice.plan.size.name == first), None)
        # Hysteresis: until all instances have changed their size, both sizes are paid.
        if now is not None and best.plan.usd_per_request > (1.0 - WORTH_A_CHANGE) * now.plan.usd_per_request:
            best = now
    else:
        best = min(fitting, key=lambda choice: ((choice.plan.instances or 0) > task.max_per_queue, choice.plan.latency_s))
    others = sorted((choice for choice in choices if choice is not best), key=lambda choice: choice.plan.size.cores)
    return best, "".join(f"; {_why_not(other, best, task)}" for other in others)


def _why_not(other: Choice, best: Choice, task: Task) -> str:
    """The reason why a size was not chosen."""
    plan, name = other.plan, other.plan.size.name
    if _cores(plan, task) > task.cluster_cores:
        total_instances = (plan.instances or 1) * task.queues
        return f"{total_instances} × {name} are more than the {task.cluster_cores:g} cores of the nodes"
    if other.failed and (plan.instances or 0) > task.max_per_queue:
        return f"{name}: {plan.instances} instances at least, of {task.max_per_queue}"
    if other.failed:
        return f"{name}: P{task.percent:g} {plan.latency_s * 1e3:.1f} ms at best"
    dearer = plan.usd_per_request / best.plan.usd_per_request - 1.0
    return f"{name}: {dearer:+.0%}{' saves too little for a change' if dearer < 0.0 else ''}"


def _cores(plan: Plan, task: Task) -> float:
    """The cores of all queues' instances."""
    return (plan.instances or 1) * task.queues * plan.size.cores


def _named(cores: int) -> str:
    return f"{cores} core{'s' if cores > 1 else ''}"


def watch(
    state: CusumState,
    reference: Reference,
    rule: ChangeRule | None,
    counts: Sequence[float],
    *,
    bin_s: float,
    begin_s: float,
) -> tuple[CusumState, Change | None]:
    """The state of the change test after these bins, the first of which began at `begin_s`, and the alarm if there is one.

    Bins after an alarm are not tested. Without a rule nothing is tested.
    """
    if rule is None:
        return state, None
    for number, count in enumerate(counts, start=1):
        state, change = detect_change(state, reference, rule, count, bin_s=bin_s, now_s=begin_s + number * bin_s)
        if change is not None:
            return state, change
    return state, None


def _plan_text(choice: Choice, percent: float) -> str:
    chosen = choice.plan
    price = f"${chosen.usd_per_request * PER_MILLION:.3g} per million requests"
    text = f"{chosen}, P{percent:g} {chosen.latency_s * 1e3:.1f} ms, {price}"
    return f"{choice.failed.rstrip('.')}; nearest: {text}" if choice.failed else text
