"""Policies that think in numbers of instances.

Most scaling policies answer one question: how many instances should this function have now? A `CountPolicy` answers just that,
with a sentence that says why. Wrappers (`wrappers.py`) are count policies around count policies, and `by_count` turns the
outermost one into a `ScalingPolicy`, whose decisions create and destroy instances.

A policy's memory between decisions is a mapping of JSON values. A moment in it has a key that ends in `_at_s`, so that a saved
memory can be carried to another machine's clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeGuard

from gnomon_core.scaling import Observation, StateValue

Memory: TypeAlias = Mapping[str, StateValue]

TOLERANCE_S = 1e-6
"""Sums of ticks fall short of a period by less than this."""
ROUNDING = 1e-9
"""What binary fractions add: 3 × 0.7 / 0.7 is 2.9999999999999996 or 3.0000000000000004 and must count as 3."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How many instances a policy wants, why, and what it wants to remember."""

    count: int
    reason: str
    memory: Memory = field(default_factory=dict)


class CountPolicy(Protocol):
    """How many instances a function should have.

    The same observation and memory give the same wish. The memory is empty at first and after a change of policy or `version`.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int:
        """Grows when an older memory can no longer be read."""
        ...

    @property
    def period_s(self) -> float:
        """Seconds between two decisions."""
        ...

    @property
    def default_scheduler(self) -> str:
        """The scheduling policy of functions that name none."""
        ...

    def wish(self, seen: Observation, memory: Memory) -> Wish: ...


def whole(instances: float) -> int:
    """Enough whole instances for a fractional need: 2.1 needs 3, 3.0000000000000004 needs 3."""
    return max(0, math.ceil(instances - ROUNDING))


def in_system(seen: Observation) -> int:
    """Requests that wait or execute."""
    return seen.queued + seen.executing


def moment(memory: Memory, key: str) -> float | None:
    """A time that the memory holds, None if it holds none."""
    value = memory.get(key)
    return float(value) if isinstance(value, int | float) else None


def goes_on(since_s: float | None, period_s: float, now_s: float) -> TypeGuard[float]:
    """Whether a period that began then has not ended. None goes on that never began, or that begins later than now."""
    return since_s is not None and 0.0 <= now_s - since_s < period_s - TOLERANCE_S


def count_in(memory: Memory, key: str) -> int | None:
    """A number of instances that the memory holds, None if it holds none."""
    value = memory.get(key)
    return int(value) if isinstance(value, int | float) else None


def inner(memory: Memory) -> Memory:
    """What the wrapped policy remembered."""
    value = memory.get("inner")
    return value if isinstance(value, Mapping) else {}
