"""Selection of the variant and worker that answer a query, on the request's path (INFaaS, Algorithm 1).

    1  the Active instance with the earliest expected answer, if that is in time
    2  the loaded instance with the earliest expected answer, in any state
    3  the unloaded variant that answers first         on the least utilized worker with its hardware
    4  the nearest variant                             with the constraints that it violates

Steps 1 to 3 consider only variants that satisfy the query. With an accuracy floor, variants between the floor and the wished
accuracy are considered as well, after each step that finds no instance which is in time:

    1  the most accurate of them that has an Active instance which answers in time
    2  their loaded instance with the earliest expected answer, in any state, if that is in time or no other one is loaded
    3  their unloaded variant that answers first

Therefore no query loads the wished variant while a less accurate one is loaded: where resources suffice, the policy loads the
wished one. The expected time of an answer is that of the samples ahead of the
query at the instance, and of the inference of one sample (`expected_s`). The samples ahead are read when the query arrives, so
that queries are distributed among the loaded variants: the policy loads a mix of variants for one kind of query, each with its
own queue. If the loaded instances are late, the policy loads more; a query must not load a variant that the policy does not want.

**As printed.** Algorithm 1 takes an Active variant, then the unloaded one that answers first, and ignores the samples ahead of
the query; it has no accuracy floors, and they are ignored. `Rule.PRINTED` follows it, with these choices where it is ambiguous:

    1  the cheapest variant with an Active instance    on the least-loaded worker that has one
    2  the unloaded variant that answers first         on the least utilized worker with its hardware
    3  a variant that is Overloaded or Interfered      on the least-loaded worker, instead of refusing the query
    4  the nearest variant                             with the constraints that it violates

Of Active variants the cheapest answers, of equal cost the quickest, then the most accurate. All queries of one kind thus go to
one variant until that is Overloaded.

With both rules the query's latency bounds only the inference time, not the load time, as in the paper's Table 7: no variant loads
in 20 ms.

**Data structure.** The variants are numbered, the quickest or the preferred first, and a set of variants is an integer used as a
bit set. For every distinct accuracy, latency and cost there is the set of variants that satisfy it, found by binary search. The
loaded variants that satisfy a query are the bits of an intersection, visited in order until no further one can answer earlier. A
second numbering, by load time + inference time, is for unloaded variants, and a third one, by accuracy, for degraded answers. The
nearest variant is searched among the
Pareto-optimal ones.

Events keep the structure up to date: selection does not wait, read a clock or access a store.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gnomon_core.errors import GnomonError, conflict, not_found
from gnomon_core.nearest_names import did_you_mean
from gnomon_core.variants import Choice, Query, Variant, VariantState

Vector = npt.NDArray[np.float64]
Pending = Callable[[], int]
"""Returns the number of samples that wait or execute at the instances."""
_FEW_NAMES: Final = 10
_FEW: Final = 100
"""The number of rows up to which a Python loop is faster than numpy."""


class Rule(enum.Enum):
    """The rule that selects among the variants which satisfy a query."""

    SOONEST = "soonest"
    PRINTED = "printed"


def nothing_pending() -> int:
    """The pending samples of an instance without a counter."""
    return 0


class _Placement:
    """The instances of a variant on a worker, with their last state and load.

    `choice` is the result of `select` for a query that they answer, made once.
    """

    __slots__ = ("choice", "instances", "load", "pending", "rate_rps", "state")

    def __init__(self, choice: Choice, state: VariantState, load: float, instances: int, pending: Pending) -> None:
        self.choice = choice
        self.state = state
        self.load = load
        self.instances = instances
        self.rate_rps = instances * choice.variant.saturation_rps
        """The saturation rate of all instances together."""
        self.pending = pending


Entry = tuple[float, str, _Placement]
"""A placement in a list by load: its load and worker come first."""


class VariantSelector:
    """The variants of one application, their instances, and the workers that can load them.

    Several instances of a variant on one worker are one placement. `load` is the used share of their saturation rate,
    `utilization` the used share of a worker; both are only compared. While no worker is known, an unloaded variant is chosen for
    the worker "", for which the platform chooses a node.
    """

    def __init__(self, variants: Iterable[Variant], rule: Rule = Rule.SOONEST) -> None:
        self._rule = rule
        preferred = sorted(variants, key=preference)
        self._variants = tuple(preferred if rule is Rule.PRINTED else sorted(preferred, key=single_s))
        self._single_s = [single_s(variant) for variant in self._variants]
        self._rank = {variant.id: rank for rank, variant in enumerate(self._variants)}
        if len(self._rank) < len(self._variants):
            raise conflict("duplicate_variant", "Two variants have the same id.", "Give each variant of an application its own.")
        self._by_start = tuple(sorted(range(len(self._variants)), key=lambda rank: start_order(self._variants[rank])))
        self._static = _Filters(self._variants)
        self._static_by_start = _Filters([self._variants[rank] for rank in self._by_start])
        self._bit_by_start = {rank: 1 << place for place, rank in enumerate(self._by_start)}
        # The sort is stable: of equally accurate variants the quickest is first.
        self._by_accuracy = tuple(sorted(range(len(self._variants)), key=lambda rank: -self._variants[rank].accuracy))
        self._static_by_accuracy = _Filters([self._variants[rank] for rank in self._by_accuracy])
        self._bit_by_accuracy = {rank: 1 << place for place, rank in enumerate(self._by_accuracy)}
        self._nearest = {"": _Nearest(preferred)}
        for architecture in {variant.architecture for variant in preferred}:
            self._nearest[architecture] = _Nearest([variant for variant in preferred if variant.architecture == architecture])
        # For each variant its Active placements and the other ones, in order of load.
        self._active: list[list[Entry]] = [[] for _ in self._variants]
        self._strained: list[list[Entry]] = [[] for _ in self._variants]
        self._placements: dict[tuple[int, str], _Placement] = {}
        self._active_bits = 0
        self._active_bits_by_accuracy = 0
        self._strained_bits = 0
        self._unloaded_bits = (1 << len(self._variants)) - 1
        self._loadable_bits = self._unloaded_bits
        self._utilization: dict[str, tuple[str, float]] = {}
        self._workers: dict[str, list[tuple[float, str]]] = {}

    @property
    def variants(self) -> tuple[Variant, ...]:
        """All variants in the order of selection."""
        return self._variants

    def select(self, query: Query) -> Choice:
        """The variant and worker that answer the query.

        Raises:
            GnomonError: 404 `unknown_variant` or `unknown_architecture`.

        """
        if query.variant is not None or query.architecture is not None:
            self._check_names(query)
        matching = self._static.matching(query, query.accuracy)
        if self._rule is Rule.PRINTED:
            return self._as_printed(query, matching)
        latency_s = math.inf if query.latency_s is None else query.latency_s
        bits = matching & self._active_bits
        soonest_s, choice = math.inf, None
        if bits:
            soonest_s, choice = self._soonest(bits, self._active)
            if choice is not None and soonest_s <= latency_s:
                return choice
        if query.accuracy_floor is not None and (degraded := self._most_accurate_in_time(query, latency_s)) is not None:
            return degraded
        bits = matching & self._strained_bits
        if bits:
            strained_s, other = self._soonest(bits, self._strained)
            if strained_s < soonest_s:
                soonest_s, choice = strained_s, other
        if query.accuracy_floor is not None and (choice is None or soonest_s > latency_s):
            # Where a wished variant is loaded, the Active ones below it are known to be late.
            lower_s, lower = self._soonest_below(query, late=choice is None)
            if lower is not None and (choice is None or lower_s <= latency_s):
                choice = _degraded(lower)
        return self._unloaded_choice(query) if choice is None else choice

    def _unloaded_choice(self, query: Query) -> Choice:
        """The choice where no loaded variant satisfies the query, not even its floor."""
        choice = self._startable(query, query.accuracy)
        if choice is None and query.accuracy_floor is not None:
            choice = self._startable(query, query.accuracy_floor)
            choice = None if choice is None else _degraded(choice)
        return self._nearest_choice(query) if choice is None else choice

    def _startable(self, query: Query, accuracy: float | None) -> Choice | None:
        """The unloaded variant of at least this accuracy that answers the query first."""
        bits = self._static_by_start.matching(query, accuracy) & self._unloaded_bits & self._loadable_bits
        if not bits:
            return None
        variant = self._variants[self._by_start[(bits & -bits).bit_length() - 1]]
        return Choice(variant, self._worker_for(variant), loaded=False)

    def _most_accurate_in_time(self, query: Query, latency_s: float) -> Choice | None:
        """The most accurate variant below the wished accuracy with an Active instance that answers in time."""
        bits = self._static_by_accuracy.below_wish(query) & self._active_bits_by_accuracy
        single_s, by_accuracy = self._single_s, self._by_accuracy
        while bits:
            lowest = bits & -bits
            rank = by_accuracy[lowest.bit_length() - 1]
            for _, _, placement in self._active[rank]:
                ahead = placement.pending() - placement.instances + 1
                if single_s[rank] + ahead / placement.rate_rps <= latency_s:
                    _, choice = self._soonest(1 << rank, self._active)
                    return None if choice is None else _degraded(choice)
            bits ^= lowest
        return None

    def _soonest_below(self, query: Query, *, late: bool) -> tuple[float, Choice | None]:
        """The earliest expected answer below the wished accuracy, and its choice; `late` includes the Active instances."""
        bits = self._static.below_wish(query)
        strained = self._soonest(bits & self._strained_bits, self._strained)
        active = self._soonest(bits & self._active_bits, self._active) if late else strained
        return strained if strained[0] < active[0] else active

    def _soonest(
        self, bits: int, entries: Sequence[Sequence[Entry]] | Mapping[int, Sequence[Entry]]
    ) -> tuple[float, Choice | None]:
        """The earliest expected answer of these variants' placements in seconds, and its choice."""
        single_s = self._single_s
        best_s, best = math.inf, None
        while bits:
            lowest = bits & -bits
            # Bits are in order of inference time, so that the search can stop at the first variant that is too slow even
            # without a queue.
            rank = lowest.bit_length() - 1
            least_s = single_s[rank]
            if least_s >= best_s:
                break  # the following ones take longer, even if nothing is ahead
            for _, _, placement in entries[rank]:
                # At most 0 if an instance is idle: then nothing is ahead of the query.
                ahead = placement.pending() - placement.instances + 1
                expected_s = least_s if ahead <= 0 else least_s + ahead / placement.rate_rps
                if expected_s < best_s:
                    best_s, best = expected_s, placement.choice
                    # An idle placement is found, and the others of this variant cannot be earlier.
                    if ahead <= 0:
                        break
            bits ^= lowest
        return best_s, best

    def _as_printed(self, query: Query, matching: int) -> Choice:
        active = matching & self._active_bits
        if active:
            rank = (active & -active).bit_length() - 1
            return self._active[rank][0][2].choice
        startable = self._startable(query, query.accuracy)
        if startable is not None:
            return startable
        strained = matching & self._strained_bits
        if strained:
            _, rank = min((self._strained[rank][0][0], rank) for rank in _ranks(strained))
            return self._strained[rank][0][2].choice
        return self._nearest_choice(query)

    def instance_loaded(
        self,
        variant: str,
        worker: str,
        state: VariantState = VariantState.ACTIVE,
        load: float = 0.0,
        *,
        instances: int = 1,
        pending: Pending = nothing_pending,
    ) -> None:
        """Record the variant's instances on this worker, in place of earlier ones there.

        `pending` is called for each query that may be sent there.
        """
        rank = self._known(variant)
        if state is VariantState.INACTIVE:
            self.instance_unloaded(variant, worker)
            return
        self._forget(rank, worker)
        placement = _Placement(Choice(self._variants[rank], worker), state, load, instances, pending)
        self._placements[rank, worker] = placement
        if state is VariantState.ACTIVE:
            insort(self._active[rank], (load, worker, placement))
            self._active_bits |= 1 << rank
            self._active_bits_by_accuracy |= self._bit_by_accuracy[rank]
        else:
            insort(self._strained[rank], (load, worker, placement))
            self._strained_bits |= 1 << rank
        self._unloaded_bits &= ~self._bit_by_start[rank]

    def instance_changed(
        self, variant: str, worker: str, *, state: VariantState | None = None, load: float | None = None
    ) -> None:
        """Update the state or load of loaded instances; ignored if none are loaded."""
        placement = self._placements.get((self._known(variant), worker))
        if placement is not None:
            self.instance_loaded(
                variant,
                worker,
                placement.state if state is None else state,
                placement.load if load is None else load,
                instances=placement.instances,
                pending=placement.pending,
            )

    def instance_unloaded(self, variant: str, worker: str) -> None:
        """Record that the variant is no longer loaded on this worker; ignored if it was not."""
        rank = self._known(variant)
        self._forget(rank, worker)
        if not self._active[rank] and not self._strained[rank]:
            self._unloaded_bits |= self._bit_by_start[rank]

    def worker_changed(self, worker: str, hardware: str, utilization: float) -> None:
        """Record a worker with its hardware and utilization."""
        self._drop_worker(worker)
        self._utilization[worker] = (hardware, utilization)
        insort(self._workers.setdefault(hardware, []), (utilization, worker))
        self._find_loadable()

    def worker_gone(self, worker: str) -> None:
        """Remove a worker that has ended, with all its instances."""
        for rank, name in [place for place in self._placements if place[1] == worker]:
            self.instance_unloaded(self._variants[rank].id, name)
        self._drop_worker(worker)
        self._find_loadable()

    def _forget(self, rank: int, worker: str) -> None:
        placement = self._placements.pop((rank, worker), None)
        if placement is None:
            return
        if placement.state is VariantState.ACTIVE:
            _remove(self._active[rank], (placement.load, worker))
            if not self._active[rank]:
                self._active_bits &= ~(1 << rank)
                self._active_bits_by_accuracy &= ~self._bit_by_accuracy[rank]
            return
        _remove(self._strained[rank], (placement.load, worker))
        if not self._strained[rank]:
            self._strained_bits &= ~(1 << rank)

    def _drop_worker(self, worker: str) -> None:
        hardware, utilization = self._utilization.pop(worker, ("", 0.0))
        if hardware:
            _remove(self._workers[hardware], (utilization, worker))
            if not self._workers[hardware]:
                del self._workers[hardware]

    def _find_loadable(self) -> None:
        if not self._workers:
            self._loadable_bits = (1 << len(self._variants)) - 1
            return
        self._loadable_bits = 0
        for hardware in self._workers:
            self._loadable_bits |= self._static_by_start.hardware.get(hardware, 0)

    def _worker_for(self, variant: Variant) -> str:
        workers = self._workers.get(variant.hardware)
        return workers[0][1] if workers else ""

    def _known(self, variant: str) -> int:
        rank = self._rank.get(variant)
        if rank is None:
            raise not_found("unknown_variant", f"There is no variant {variant!r}.", _known_names(variant, self._rank))
        return rank

    def _check_names(self, query: Query) -> None:
        architecture, variant = query.architecture, query.variant
        if architecture is not None and architecture not in self._static.architectures:
            hint = _known_names(architecture, self._static.architectures)
            raise not_found("unknown_architecture", f"There is no model {architecture!r}.", hint)
        if variant is None:
            return
        found = self._variants[self._known(variant)]
        if architecture not in (None, found.architecture):
            message = f"Variant {variant} is not of architecture {architecture}."
            raise not_found("unknown_variant", message, f"It is of {found.architecture}.")

    def _nearest_choice(self, query: Query) -> Choice:
        """Step 4: the nearest variant, whose instance is chosen as if it satisfied the query."""
        if query.accuracy_floor is not None and self._rule is Rule.SOONEST:
            query = replace(query, accuracy=query.accuracy_floor, accuracy_floor=None)
        if not self._variants:
            raise GnomonError(503, "no_variants", "The application has no variant.", "Register a model, or wait for its profile.")
        if query.variant is not None:
            variant = self._variants[self._rank[query.variant]]
        else:
            variant = self._nearest[query.architecture or ""].find(query)
        rank = self._rank[variant.id]
        misses = shortfall(variant, query)
        loaded = self._active[rank] or self._strained[rank]
        if loaded:
            found = loaded[0][2].choice if self._rule is Rule.PRINTED else self._soonest(1 << rank, {rank: loaded})[1]
            return Choice(variant, "" if found is None else found.worker, satisfies=False, shortfall=misses)
        if self._workers and variant.hardware not in self._workers:
            misses = f"{misses}, no worker has {variant.hardware}".removeprefix(", ")
        return Choice(variant, self._worker_for(variant), loaded=False, satisfies=False, shortfall=misses)


def _degraded(choice: Choice) -> Choice:
    """Mark a choice as degraded: the query requested more accuracy."""
    return Choice(choice.variant, choice.worker, loaded=choice.loaded, degraded=True)


def _known_names(name: str, known: Iterable[str]) -> str:
    """The known name that is most like this one, or some of them."""
    names = sorted(known)
    more = ", …" if len(names) > _FEW_NAMES else ""
    return did_you_mean(name, names) or f"Known ones: {', '.join(names[:_FEW_NAMES])}{more}."


def preference(variant: Variant) -> tuple[float, float, float, str]:
    """The order of variants that satisfy a query: the cheapest first, then the quickest, then the most accurate."""
    return (variant.cost_per_s, variant.inference_s, -variant.accuracy, variant.id)


def single_s(variant: Variant) -> float:
    """Seconds of one sample alone."""
    return variant.latency_s[min(variant.latency_s)]


def expected_s(variant: Variant, pending: int, instances: int) -> float:
    """Seconds until a query is answered that comes to so many instances, with so many samples that wait or execute there.

    While an instance is free, that is the inference of one sample; else what waits is answered before it, at the rate of busy
    instances.
    """
    ahead = pending - instances + 1
    return single_s(variant) + (ahead / (instances * variant.saturation_rps) if ahead > 0 else 0.0)


def start_order(variant: Variant) -> tuple[float, float, float, float, str]:
    """The order of variants that are not loaded: the one that answers first."""
    return (variant.load_s + variant.inference_s, *preference(variant))


def satisfies(variant: Variant, query: Query) -> bool:
    """Return whether an answer of the variant meets every constraint of the query."""
    return (
        (query.accuracy is None or variant.accuracy >= query.accuracy)
        and (query.latency_s is None or variant.inference_s <= query.latency_s)
        and (query.cost_per_s is None or variant.cost_per_s <= query.cost_per_s)
        and (query.architecture is None or variant.architecture == query.architecture)
        and (query.variant is None or variant.id == query.variant)
    )


def distance(variant: Variant, query: Query) -> float:
    """The variant's distance from the query: the sum of its violations, each relative to the constraint."""
    missed = 0.0
    if query.accuracy is not None:
        missed += max((query.accuracy - variant.accuracy) / (query.accuracy or 1.0), 0.0)
    if query.latency_s is not None:
        missed += max((variant.inference_s - query.latency_s) / query.latency_s, 0.0)
    if query.cost_per_s is not None:
        missed += max((variant.cost_per_s - query.cost_per_s) / (query.cost_per_s or 1.0), 0.0)
    return missed


def shortfall(variant: Variant, query: Query) -> str:
    """The constraints that the variant misses, for a header and a log line; empty where it satisfies the query."""
    missed = []
    if query.accuracy is not None and variant.accuracy < query.accuracy:
        missed.append(f"accuracy {variant.accuracy:.4g} instead of {query.accuracy:.4g}")
    if query.latency_s is not None and variant.inference_s > query.latency_s:
        missed.append(f"latency {variant.inference_s:.4g} s instead of {query.latency_s:.4g} s")
    if query.cost_per_s is not None and variant.cost_per_s > query.cost_per_s:
        missed.append(f"cost {variant.cost_per_s:.4g} per second instead of {query.cost_per_s:.4g}")
    return ", ".join(missed)


class _Filters:
    """The sets of variants that satisfy each constraint, as integers: bit i is variant i of the sequence."""

    def __init__(self, variants: Sequence[Variant]) -> None:
        self.all = (1 << len(variants)) - 1
        self.architectures = _sets(variants, lambda variant: variant.architecture)
        self.hardware = _sets(variants, lambda variant: variant.hardware)
        self._ids = _sets(variants, lambda variant: variant.id)
        self._latencies, self._within_latency = _at_most(variants, lambda variant: variant.inference_s)
        self._costs, self._within_cost = _at_most(variants, lambda variant: variant.cost_per_s)
        self._accuracies, below = _at_most(variants, lambda variant: variant.accuracy)
        self._from_accuracy = [self.all & ~some for some in below]

    def matching(self, query: Query, accuracy: float | None) -> int:
        """The variants of at least this accuracy that satisfy the query's other constraints, whose names are known."""
        bits = self.all
        if accuracy is not None:
            bits &= self._from_accuracy[bisect_left(self._accuracies, accuracy)]
        if query.latency_s is not None:
            bits &= self._within_latency[bisect_right(self._latencies, query.latency_s)]
        if query.cost_per_s is not None:
            bits &= self._within_cost[bisect_right(self._costs, query.cost_per_s)]
        if query.architecture is not None:
            bits &= self.architectures[query.architecture]
        if query.variant is not None:
            bits &= self._ids[query.variant]
        return bits

    def below_wish(self, query: Query) -> int:
        """The variants that satisfy the query but for its accuracy, and are not below its floor."""
        wished = 0 if query.accuracy is None else self._from_accuracy[bisect_left(self._accuracies, query.accuracy)]
        return self.matching(query, query.accuracy_floor) & ~wished


class _Nearest:
    """The variants among which the nearest one is: those that no other is at least as good as in every respect.

    A variant that another one dominates is not nearer to any query than the other, which is also preferred.
    """

    def __init__(self, variants: Sequence[Variant]) -> None:
        self._variants: list[Variant] = []
        for variant in variants:  # in the order of preference, so that a variant is dominated by earlier ones only
            if not any(_dominates(other, variant) for other in self._variants):
                self._variants.append(variant)
        self._rows = [(variant.accuracy, variant.inference_s, variant.cost_per_s) for variant in self._variants]
        self._accuracy, self._latency_s, self._cost_per_s = np.array(self._rows or [(0.0, 0.0, 0.0)]).T.copy()

    def find(self, query: Query) -> Variant:
        """The nearest variant, by `distance`; of equally near ones the preferred."""
        return self._variants[self._by_loop(query) if len(self._rows) <= _FEW else self._by_arrays(query)]

    def _by_loop(self, query: Query) -> int:
        accuracy, latency_s, cost_per_s = query.accuracy or 0.0, query.latency_s or math.inf, query.cost_per_s
        max_cost, cost_unit = (math.inf, 1.0) if cost_per_s is None else (cost_per_s, cost_per_s or 1.0)
        nearest, least = 0, math.inf
        for place, (has, takes_s, costs) in enumerate(self._rows):
            missed = 0.0
            if has < accuracy:
                missed = (accuracy - has) / accuracy
            if takes_s > latency_s:
                missed += (takes_s - latency_s) / latency_s
            if costs > max_cost:
                missed += (costs - max_cost) / cost_unit
            if missed < least:
                nearest, least = place, missed
        return nearest

    def _by_arrays(self, query: Query) -> int:
        missed: Vector = np.zeros(len(self._rows))
        if query.accuracy is not None:
            missed += np.maximum((query.accuracy - self._accuracy) / (query.accuracy or 1.0), 0.0)
        if query.latency_s is not None:
            missed += np.maximum((self._latency_s - query.latency_s) / query.latency_s, 0.0)
        if query.cost_per_s is not None:
            missed += np.maximum((self._cost_per_s - query.cost_per_s) / (query.cost_per_s or 1.0), 0.0)
        return int(missed.argmin())


def _dominates(first: Variant, second: Variant) -> bool:
    return first.accuracy >= second.accuracy and first.inference_s <= second.inference_s and first.cost_per_s <= second.cost_per_s


def _sets(variants: Sequence[Variant], key: Callable[[Variant], str]) -> dict[str, int]:
    """The set of variants for each value of the key."""
    found: dict[str, int] = {}
    for place, variant in enumerate(variants):
        found[key(variant)] = found.get(key(variant), 0) | 1 << place
    return found


def _at_most(variants: Sequence[Variant], key: Callable[[Variant], float]) -> tuple[list[float], list[int]]:
    """The distinct values, ascending, and for each number of them the set of variants with one of so many least values."""
    bits: dict[float, int] = {}
    for place, variant in enumerate(variants):
        bits[key(variant)] = bits.get(key(variant), 0) | 1 << place
    values = sorted(bits)
    sets = [0]
    for value in values:
        sets.append(sets[-1] | bits[value])
    return values, sets


def _ranks(bits: int) -> Iterator[int]:
    """The numbers of the variants of a set."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _remove(entries: list[Any], entry: tuple[float, str]) -> None:
    """Take the entry that begins so out of a sorted list."""
    del entries[bisect_left(entries, entry)]
