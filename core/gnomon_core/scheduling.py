"""Input and output of a scheduling policy.

The queue of a function has one lane per kind of request (shape, type, variant); the policy is called for each lane, because a
batch never mixes kinds. It returns dispatches, rejections, or the time of its next call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isclose
from typing import Protocol, TypeAlias

from gnomon_core.pairs import Pair


class Waiting(Protocol):
    """A request in the queue. `size` is its number of samples; times are on the queue's clock."""

    @property
    def arrived_s(self) -> float: ...
    @property
    def deadline_s(self) -> float: ...
    @property
    def size(self) -> int: ...


class QueueView(Protocol):
    """A lane of the queue, oldest request first; earliest deadline first if some request would be late otherwise."""

    @property
    def requests(self) -> Sequence[Waiting]:
        """The waiting requests in this order."""
        ...

    @property
    def samples(self) -> int:
        """The number of waiting samples."""
        ...

    @property
    def variant(self) -> str:
        """The variant that serves this lane: the key of the latency model."""
        ...

    @property
    def gap_s(self) -> float:
        """Mean gap between the latest arrivals in seconds; infinity while there are too few."""
        ...


@dataclass(frozen=True, slots=True)
class Slot:
    """An instance that can take a batch now; with `pair`, a Body with Shadows.

    `size` is its key in the latency model (`gnomon_core.fleet.Instance.size`): its cores, or its `memory_mb` if it is sized by
    memory. An instance with `idle_cores` keeps these cores between batches and borrows up to `cores` for each batch. If other
    instances share its node, a batch now gets at most `share` of them, and that is its size.
    """

    instance_id: str
    cores: int
    max_batch: int
    pair: Pair | None = None
    memory_mb: int | None = None
    idle_cores: int | None = None
    share: int | None = None

    @property
    def size(self) -> int:
        if self.memory_mb is not None:
            return self.memory_mb
        return self.cores if self.share is None else min(self.cores, self.share)


@dataclass(frozen=True, slots=True)
class FleetView:
    """The instances of a function as the scheduler sees them.

    `idle` holds the instances that can take a batch at once, ascending by the largest batch they support;
    `busy` counts those that are executing, `starting` those that will be ready soon; `free_s` is when the first batch that
    executes is expected to end, on the queue's clock, infinity if none does. `room` is how many batches the idle ones take
    together, where some execute several at a time; 0 stands for one each.
    """

    idle: tuple[Slot, ...]
    busy: int
    starting: int
    free_s: float = inf
    room: int = 0


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send these requests, as one batch, to an idle instance.

    `cores` is how many the batch asks for, where the instance borrows cores of its node for each batch (`Slot.idle_cores`); the
    node's arbiter may lend fewer. None, and every other instance: all that the instance has.
    """

    instance_id: str
    requests: tuple[Waiting, ...]
    cores: int | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """Answer these requests with 504: they cannot be served in time."""

    requests: tuple[Waiting, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Ask again at this time, or at the next event if that is earlier."""

    time_s: float


ScheduleAction: TypeAlias = Dispatch | Reject | WaitUntil


NEAR_BEST = 0.97
"""Share of the best rate from which a smaller batch is preferred."""


def economical_batch(latency_s: Callable[[int], float | None], max_batch: int, slo_s: float) -> int:
    """The smallest batch with about the best rate b / t(b) among those that end within the objective; 1 if none does.

    A larger batch answers hardly more samples a second and makes each of them wait for the others.
    Example: 20, 39, 76 and 150 ms for 1, 2, 4 and 8 samples: 8 answer 53.3 a second, 4 answer 52.6, 2 answer 51.3, 1 answers 50:
    4 is the smallest within 3 %, because 0.97 × 53.3 is 51.7.
    """
    rates = {}
    for batch in range(1, max_batch + 1):
        seconds = latency_s(batch)
        if seconds is not None and 0.0 < seconds <= slo_s:
            rates[batch] = batch / seconds
    if not rates:
        return 1
    enough = NEAR_BEST * max(rates.values())
    return min(batch for batch, rate in rates.items() if rate >= enough)


def growing_batch(latency_s: Callable[[int], float | None], max_batch: int, slo_s: float, left_s: float) -> int:
    """`economical_batch`, or twice as many samples while no larger batch has been measured.

    A latency model predicts batches beyond the largest measured one at that batch's rate, b / t(b). By this prediction a larger
    batch is never worth it, so that without trials no batch would grow. A trial is made if it is predicted to end within the
    objective and the time left, `left_s`. One that does not pay ends the growth: the economical batch is then smaller than the
    largest measured one.
    Example: 137 ms for 1 sample is all that was measured: 2 are tried. They take 152 ms: 4 are tried. Had they taken 270 ms: 1.
    """
    known_s = {size: latency_s(size) for size in range(1, max_batch + 1)}
    batch = economical_batch(known_s.get, max_batch, slo_s)
    seconds, trial = known_s[batch], min(2 * batch, max_batch)
    if not seconds or seconds * trial / batch > min(slo_s, left_s):
        return batch
    larger = ((size, larger_s) for size, larger_s in known_s.items() if size > batch and larger_s is not None)
    is_measured = any(not isclose(larger_s * batch, seconds * size) for size, larger_s in larger)
    return batch if is_measured else trial
