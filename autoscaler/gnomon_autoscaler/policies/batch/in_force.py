"""What a policy that plans remembers of its plan, and whether it still counts on the right service times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from gnomon_autoscaler.counting import Memory

MOVED = 0.1
MOST_KNOWN = 1024


@dataclass(frozen=True, slots=True)
class InForce:
    """What was planned, when, for which service times and how long it holds; with `batch` 0, why there is no plan.

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
        """As it was remembered. A plan of an earlier version is for one queue, and was made for all sizes that were known."""
        remembered = memory.get("plan")
        if not isinstance(remembered, Mapping):
            return None
        whole = {"active_rps": remembered.get("rate_rps"), "short_dispersion": remembered.get("dispersion")}
        kept = {"queues": 1, "longest": MOST_KNOWN, **whole, **remembered}
        if any(each.name not in kept for each in fields(InForce)):
            return None
        return InForce(**{each.name: kept[each.name] for each in fields(InForce)})  # type: ignore[arg-type]

    def moved(self, service_s: Sequence[float]) -> bool:
        """Whether batches take other times than it counted on, or larger ones are known by now."""
        if len(service_s) > self.longest:
            return True
        pairs = zip(self.service_s[: self.batch], service_s, strict=False)
        return any(abs(now_s - then_s) > MOVED * then_s for then_s, now_s in pairs)
