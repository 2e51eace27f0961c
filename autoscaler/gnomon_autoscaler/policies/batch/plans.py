"""What `batch` and `batch+` ask the planner: a plan from counts, and whether the arrivals are still those of the plan.

The only part of the policies that needs numpy, for which the registry imports the package when a function chooses one of them.

A plan is looked for among the `BATCHES` up to the largest and 12 timeouts up to the SLO, closer together where they are short:
SLO·(i/12)². It has to be found within the second that a decision may take, so that few of the plans that promise to be cheapest
are settled exactly, and more than `MOST_BUSY` instances are not planned for. Where calls are paid, as on Lambda, a plan's price
is known without being settled, so that there are 48 timeouts, SLO·i/48.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gnomon_core.errors import GnomonError
from gnomon_planner.billing import Billing, Held, PerCall
from gnomon_planner.changes import Change, ChangeRule, Evidence, Reference, watched
from gnomon_planner.costs import HELD, LAMBDA
from gnomon_planner.fit import fit
from gnomon_planner.optimizer import Landscape
from gnomon_planner.plans import Choice, Size, Space
from gnomon_planner.samples import of_counts

TIMEOUTS = 12
CALLED_TIMEOUTS = 48
MOST_CANDIDATES = 12
SETTLED_SAMPLES = 64
SETTLED_BUSY = 400.0
"""Settling a plan takes as long as its batch is large and its instances are many."""
BATCHES = (*range(1, 9), 10, 12, 16, 20, 24, 32)
MOST_BUSY = 200
MB = 2**20
MB_PER_CORE = 1769.0
PER_MILLION = 1e6
RULE = ChangeRule()

__all__ = ["RULE", "Change", "ChangeRule", "Evidence", "Planned", "Task", "plan_for", "watch"]


@dataclass(frozen=True, slots=True)
class Task:
    """What a plan is for: P`percent` within `slo_s`.

    Instances of `cores` take `service_s` for batches of 1, 2, …; `longest_s` bounds the timeout; `most` is how many instances
    there may be. With `memory_mb` each call pays for itself as on Lambda, otherwise instances are held.
    """

    slo_s: float
    percent: float
    service_s: tuple[float, ...]
    cores: int
    memory_bytes: int
    longest_s: float
    most: int
    memory_mb: int | None = None

    @property
    def size(self) -> Size:
        """What an instance is."""
        if self.memory_mb is not None:
            return Size(f"{self.memory_mb} MB", self.memory_mb, self.memory_mb / MB_PER_CORE, self.service_s)
        name = f"{self.cores} core{'s' if self.cores > 1 else ''}"
        return Size(name, self.memory_bytes / MB, self.cores, self.service_s)

    @property
    def timeouts_s(self) -> tuple[float, ...]:
        """T, from short to long."""
        held = self.memory_mb is None
        count = TIMEOUTS if held else CALLED_TIMEOUTS
        shares = [(step / count) ** (2 if held else 1) for step in range(1, count + 1)]
        return tuple(sorted({round(self.longest_s * share, 4) for share in shares}))


@dataclass(frozen=True, slots=True)
class Planned:
    """A buffer (B, T), how many instances it takes, and the arrivals that it was made for."""

    batch: int
    timeout_s: float
    instances: int
    rate_rps: float
    dispersion: float
    said: str


def plan_for(counts: Sequence[float], bin_s: float, task: Task) -> Planned:
    """The cheapest plan that meets the SLO, or the nearest to it, as `said` tells.

    Raises:
        GnomonError: 400 where there is no plan: nothing arrives, or so many that not even full batches fit `most` instances.

    """
    fitted = fit(of_counts(counts, bin_s))
    process, service_s = fitted.process, task.service_s[: BATCHES[-1]]
    busy = process.rate_rps * min(seconds / batch for batch, seconds in enumerate(service_s, start=1))
    most = min(task.most, MOST_BUSY)
    if busy > most:
        raise GnomonError(
            400, "too_many_instances", f"{process.rate_rps:.2f} rps keep {busy:.1f} instances busy, of {most} at most."
        )
    space = Space((task.size,), tuple(batch for batch in BATCHES if batch <= len(service_s)), task.timeouts_s)
    candidates = min(MOST_CANDIDATES, SETTLED_SAMPLES // len(service_s), int(SETTLED_BUSY / max(busy, 1.0)))
    held = Held(HELD, candidates)
    billing: Billing = held if task.memory_mb is None else PerCall(LAMBDA["x86"])
    choice = Landscape(process, space, billing, task.percent).cheapest(task.slo_s, 2 * candidates)
    chosen, reference = choice.plan, Reference.of(process, RULE)
    instances = chosen.instances or held.settled(process, chosen).instances or 1
    said = f"{process.rate_rps:.2f} rps in {len(counts) * bin_s:g} s, {fitted.chosen.family}: {_told(choice, task.percent)}"
    return Planned(
        chosen.buffer.batch, chosen.buffer.timeout_s, instances, reference.rate_rps, reference.dispersion, said
    )


def watch(
    evidence: Evidence,
    reference: tuple[float, float],
    rule: ChangeRule | None,
    counts: Sequence[float],
    *,
    bin_s: float,
    begin_s: float,
) -> tuple[Evidence, Change | None]:
    """The evidence after these bins, the first of which began at `begin_s`, against a plan's rate and dispersion.

    An alarm ends it: what came after its bin is not looked at. Without a rule there is none.
    """
    if rule is None:
        return evidence, None
    expected = Reference(*reference)
    for number, count in enumerate(counts, start=1):
        evidence, change = watched(evidence, expected, rule, count, bin_s=bin_s, now_s=begin_s + number * bin_s)
        if change is not None:
            return evidence, change
    return evidence, None


def _told(choice: Choice, percent: float) -> str:
    chosen = choice.plan
    price = f"${chosen.usd_per_request * PER_MILLION:.3g} per million requests"
    told = f"{chosen}, P{percent:g} {chosen.latency_s * 1e3:.1f} ms, {price}"
    return f"{choice.failed.rstrip('.')}; nearest: {told}" if choice.failed else told
