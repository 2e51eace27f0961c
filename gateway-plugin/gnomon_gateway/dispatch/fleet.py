"""The dispatcher's view of a function's instances: their state (idle, executing or draining) and largest batch.

Only Bodies take batches. A Body with a Shadow counts as one instance, faster and with its own largest batch.

Largest batch (`Sizing`).
AsyFunc (section 5.1) knows each instance by its largest supported batch: the largest b whose latency meets the objective,

    b_max = max { b | t_l(b) ≤ t_SLO },    1 ≤ b ≤ gnomon/max-batch

A Body with a Shadow is faster, so its largest batch may be larger than alone: that is how a Shadow absorbs a burst. Example: SLO
100 ms, alone t(4) = 90 and t(5) = 110 ms, with its Shadow t(8) = 95 ms: 4 alone, 8 together.

Tensors and events of a model are its variants and take different times. The slowest variant that is called decides; before the
first request, the slowest of all. Measurements correct only variants that are called: a variant that is never called would limit
the others by its profile forever, one that was called once by a cold batch. A variant counts as called for five minutes after its
last batch.

Without a prediction, or if not even one sample meets the objective (smaller batches would only lower the throughput), an instance
takes batches up to its configured maximum. When measurements correct the predictions, instances are sized again.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from operator import attrgetter

from gnomon_core.pairs import Pair
from gnomon_core.scheduling import FleetView, Slot
from gnomon_gateway.dispatch.latency import LiveLatency
from gnomon_gateway.queueing.admission import Capacity, Place
from gnomon_gateway.queueing.queue import Batch

_SMALL_HEAP = 64
_ORDER = attrgetter("order")


class Worker:
    """An instance that can take batches, `concurrency` at a time. It is idle while it can take another (`free_slots`).

    `size` is its memory in MB if instances are sized by memory (Lambda), else its cores; if it borrows them, those of `cores`
    that a batch may have now. A batch has at most `max_batch` samples,
    and at most `slot.max_batch` if the objective bounds it.
    `usual_batch` is the size of its batches while more samples wait: a policy may prefer smaller batches (see `immediate`). Until
    it does, `usual_batch` is the largest batch.

    The order is AsyFunc's: ascending by largest batch, then by batches in execution, then by cores, Shadows' cores included.
    """

    __slots__ = (
        "batches",
        "busy_cores",
        "concurrency",
        "cores",
        "draining",
        "free_slots",
        "has_loan",
        "id",
        "idle_cores",
        "max_batch",
        "memory_mb",
        "number",
        "order",
        "pair",
        "share",
        "size",
        "slot",
        "solo_slot",
        "usual_batch",
    )  # fmt: skip

    order: tuple[int, int, int, int]
    slot: Slot
    solo_slot: Slot
    usual_batch: int

    def __init__(self, instance_id: str, number: int) -> None:
        self.id = instance_id
        self.number = number
        self.cores = 0
        self.memory_mb: int | None = None
        self.idle_cores: int | None = None
        """Cores that the instance keeps between batches if it borrows the others; None if all are its own."""
        self.share: int | None = None
        """The most cores that a batch may have now, if the instance borrows cores; None if all are its own."""
        self.busy_cores = 0
        """The cores that execute a batch now; 0 without one."""
        self.size = 0
        self.max_batch = 0
        self.pair: Pair | None = None
        self.concurrency = 1
        self.has_loan = False
        """Whether a batch in execution may have borrowed cores."""
        self.batches: dict[int, Batch] = {}
        """The batches in execution, by id, in the order of sending."""
        self.draining = False
        self.free_slots = 0
        """The number of further batches that the instance takes now."""

    def set_max_batch(self, max_batch: int) -> None:
        """Set the largest batch. The instance must not be in the idle list, whose order depends on it."""
        pair = self.pair
        self.usual_batch = max_batch
        self.slot = Slot(self.id, self.cores, max_batch, pair, self.memory_mb, self.idle_cores, self.share)
        self.solo_slot = Slot(self.id, self.cores, 1, pair, self.memory_mb, self.idle_cores, self.share)

    def idle_place(self) -> Place:
        """The place of one further batch, if the instance can take one now."""
        return Place(self.size, self.pair, self.usual_batch, 0.0, idle=True)

    def rank(self) -> None:
        """Update the order by size and load. The instance must not be in the idle list."""
        cores = self.cores if self.pair is None else self.cores + sum(self.pair.cores)
        # Policies read idle[-1] as the most capable instance. The number makes the order total, so that runs can be repeated.
        self.order = (self.slot.max_batch, len(self.batches), cores, self.number)


class Workers:
    """The fleet, with the views that policies see. A view is made on demand and cached until the fleet changes."""

    __slots__ = (
        "_added",
        "_borrowers",
        "_capacity",
        "_ends",
        "_most_ends",
        "_room",
        "_sizing",
        "_solo_view",
        "_view",
        "busy",
        "busy_cores",
        "by_id",
        "idle",
        "starting",
    )

    def __init__(self, sizing: Sizing) -> None:
        self._sizing = sizing
        self.by_id: dict[str, Worker] = {}
        self.busy = 0
        self.busy_cores = 0
        self.starting = 0
        self.idle: list[Worker] = []
        """The instances that can take a batch, in the order of `Worker`."""
        self._room = 0
        """The number of batches that the idle instances take together."""
        self._added = 0
        self._borrowers: dict[str, Worker] = {}
        """The instances that borrow cores: without any, a request need not look for them among hundreds of idle ones."""
        self._view: FleetView | None = None
        self._solo_view: FleetView | None = None
        self._capacity: Capacity | None = None
        self._ends: list[tuple[float, int, Worker]] = []
        """A heap of the batches by expected end, with dead entries: those of batches that have ended."""
        self._most_ends = _SMALL_HEAP
        """The length of the heap from which all dead entries are removed at once."""

    def capacity(self) -> Capacity:
        """The capacity for waiting requests: all instances that are not draining."""
        # Cached: every request asks, and it changes only with the instances and the sizes of their batches.
        if self._capacity is None:
            workers = [worker for worker in self.by_id.values() if not worker.draining]
            smallest = min(workers, key=_power, default=None)
            self._capacity = Capacity(
                instances=len(workers),
                samples=sum([worker.usual_batch * worker.concurrency for worker in workers]),
                batch=smallest.usual_batch if smallest else 1,
                size=smallest.size if smallest else 1,
                pair=smallest.pair if smallest else None,
            )
        return self._capacity

    def places(self, now_s: float) -> Sequence[Place]:
        """The places where waiting requests can execute, and when each is free; draining instances have none.

        Idle places come last, and among them those of the largest instance.
        """
        places = [
            Place(worker.size, worker.pair, worker.usual_batch, max(0.0, batch.expected_end_s - now_s), idle=False)
            for worker in self.by_id.values()
            if not worker.draining
            for batch in worker.batches.values()
        ]
        for worker in self.idle:
            places += [worker.idle_place()] * worker.free_slots
        return places

    def largest_idle(self) -> Place | None:
        """The place of the largest instance that can take a batch now; None if all are busy."""
        return self.idle[-1].idle_place() if self.idle else None

    def idle_sizes(self) -> Sequence[tuple[int, Pair | None]]:
        """Sizes and Shadows of the instances that can take a batch now."""
        return [(worker.size, worker.pair) for worker in self.idle]

    def view(self, *, solo: bool) -> FleetView:
        """The fleet as a policy sees it; `solo` for lanes whose batches hold one request."""
        view = self._solo_view if solo else self._view
        if view is None:
            idle = tuple([worker.solo_slot if solo else worker.slot for worker in self.idle])
            view = FleetView(idle, self.busy, self.starting, self._free_s(), self._room)
            if solo:
                self._solo_view = view
            else:
                self._view = view
        return view

    def add(
        self,
        instance_id: str,
        cores: int,
        max_batch: int,
        memory_mb: int | None = None,
        *,
        concurrency: int | None = None,
        idle_cores: int | None = None,
    ) -> None:
        """Add a ready instance, or update a known one; a `concurrency` of None keeps its value."""
        worker = self.by_id.get(instance_id)
        if worker is None:
            self._added += 1
            worker = self.by_id[instance_id] = Worker(instance_id, self._added)
        else:
            self._leave_idle(worker)
        # Borrowed cores are counted by batch, and do not change while the batch executes.
        if worker.batches and idle_cores is None and worker.idle_cores is None:
            self._count_busy(worker, cores)
        worker.cores, worker.max_batch, worker.memory_mb, worker.idle_cores = cores, max_batch, memory_mb, idle_cores
        if idle_cores is None:
            worker.share = None
            self._borrowers.pop(instance_id, None)
        else:
            self._borrowers[instance_id] = worker
        worker.concurrency = worker.concurrency if concurrency is None else concurrency
        self._size(worker)

    def share_cores(self, share_of: Callable[[str], int]) -> None:
        """Update the shares of idle instances that borrow cores, by the most that a batch of each may have now."""
        for worker in self._borrowers.values():
            if not worker.free_slots:
                continue
            share = share_of(worker.id) or None
            if share != worker.share:
                self._leave_idle(worker)
                worker.share = share
                self._size(worker)

    def pair(self, worker: Worker, pair: Pair | None) -> None:
        """Set the Shadows that the instance works with; None for none."""
        self._leave_idle(worker)
        worker.pair = pair
        self._size(worker)

    def policy_changed(self) -> None:
        """Forget the batch sizes that the replaced scheduling policy made."""
        for worker in self.by_id.values():
            worker.usual_batch = worker.slot.max_batch
        self._capacity = None

    def update_max_batches(self) -> None:
        """Latency predictions have changed: update each instance's largest batch."""
        for worker in self.by_id.values():
            if self._sizing.largest(worker.size, worker.max_batch, worker.pair) != worker.slot.max_batch:
                self._leave_idle(worker)
                self._size(worker)

    def take(self, worker: Worker, batch: Batch) -> None:
        """Record that an instance begins a batch."""
        self._leave_idle(worker)
        if not worker.batches:
            self.busy += 1
            self._count_busy(worker, worker.cores if worker.idle_cores is None else batch.cores)
        worker.batches[batch.id] = batch
        heappush(self._ends, (batch.expected_end_s, batch.id, worker))
        # A batch that never ends, such as an endless stream, stays at the top and would keep all entries behind it.
        if len(self._ends) > self._most_ends:
            self._ends = [end for end in self._ends if self._executes(end)]
            heapify(self._ends)
            self._most_ends = max(_SMALL_HEAP, 2 * len(self._ends))
        self._join_idle(worker)

    def learn_usual_batch(self, worker: Worker, batch: Batch, waiting: int) -> None:
        """Learn the policy's usual batch size from a batch and the number of samples left waiting.

        If the waiting samples would have filled a larger batch, this size is the policy's choice; otherwise it is a lower bound.
        """
        if batch.size > worker.usual_batch or (
            batch.size < worker.usual_batch and waiting and batch.size + waiting >= worker.slot.max_batch
        ):
            worker.usual_batch = min(batch.size, worker.slot.max_batch)
            self._capacity = None

    def release(self, worker: Worker, batch: Batch) -> None:
        """Remove a finished batch from the instance, which can then take another."""
        self._leave_idle(worker)
        del worker.batches[batch.id]
        if not worker.batches:
            self.busy -= 1
            self._count_busy(worker, 0)
        self._join_idle(worker)

    def drain(self, worker: Worker) -> None:
        """Send the instance no further batches."""
        self._leave_idle(worker)
        worker.draining, worker.free_slots = True, 0
        self._capacity = None

    def remove(self, worker: Worker) -> None:
        """Remove an instance that has ended, with the batches that it executed."""
        if worker.batches:
            self.busy -= 1
            self._count_busy(worker, 0)
        self._leave_idle(worker)
        del self.by_id[worker.id]
        self._borrowers.pop(worker.id, None)
        self._capacity = None

    def set_starting(self, count: int) -> None:
        if count != self.starting:
            self.starting = count
            self._view = self._solo_view = None

    def _count_busy(self, worker: Worker, cores: int) -> None:
        self.busy_cores += cores - worker.busy_cores
        worker.busy_cores = cores

    def _free_s(self) -> float:
        """The time at which the first executing batch is expected to end; infinity if none executes."""
        ends = self._ends
        while ends and not self._executes(ends[0]):
            heappop(ends)
        return ends[0][0] if ends else float("inf")

    def _executes(self, end: tuple[float, int, Worker]) -> bool:
        """Return whether the batch of this entry is in execution, on an instance that will take another one after it."""
        _, batch_id, worker = end
        return batch_id in worker.batches and not worker.draining and self.by_id.get(worker.id) is worker

    def _size(self, worker: Worker) -> None:
        """Handle a change of the instance's cores, limit or Shadows."""
        cores = worker.cores if worker.share is None else min(worker.cores, worker.share)
        worker.size = cores if worker.memory_mb is None else worker.memory_mb
        worker.set_max_batch(self._sizing.largest(worker.size, worker.max_batch, worker.pair))
        self._join_idle(worker)
        self._capacity = self._view = self._solo_view = None

    def _join_idle(self, worker: Worker) -> None:
        """Put the instance into the idle list, in its order, if it takes another batch now."""
        free_slots = worker.concurrency - len(worker.batches)
        if free_slots <= 0 or worker.draining:
            worker.free_slots = 0
            return
        worker.free_slots = free_slots
        worker.rank()
        insort(self.idle, worker, key=_ORDER)
        self._room += free_slots

    def _leave_idle(self, worker: Worker) -> None:
        """Take the instance out of the idle list before its order changes; the views are outdated from now on."""
        # A linear search: a function has few idle instances, or many and a short queue.
        if worker in self.idle:
            self.idle.remove(worker)
            self._room -= worker.free_slots
        self._view = self._solo_view = None


def _power(worker: Worker) -> tuple[int, int]:
    """Sort key of the smallest instance: its cores, then those of its Shadows."""
    return worker.cores, sum(worker.pair.cores) if worker.pair is not None else 0


UNCALLED_S = 300.0


class Sizing:
    """The largest batch of a function's instances, bounded by the latency of these variants; without variants, no bound."""

    __slots__ = ("_called", "_latency", "_revision", "_slo_s", "_variants")

    def __init__(self, latency: LiveLatency, slo_s: float, variants: tuple[str, ...]) -> None:
        self._latency = latency
        self._slo_s = slo_s
        self._variants = variants
        self._revision = latency.revision
        self._called: dict[str, float] = {}
        """Time of each variant's last request or answer, in seconds."""

    def set_objective(self, slo_s: float, variants: tuple[str, ...] | None = None) -> None:
        """Set the latency objective, and the variants if given."""
        self._slo_s = slo_s
        if variants is not None:
            self._variants = variants

    def mark_called(self, variant: str, now_s: float) -> None:
        """Record that requests of this variant arrive or are answered."""
        self._called[variant] = now_s

    def uncalled_variants(self, now_s: float) -> list[str]:
        """The variants that have not been called for `UNCALLED_S`, of those that were called before."""
        return [variant for variant, last_s in self._called.items() if now_s - last_s >= UNCALLED_S]

    def forget(self, variant: str) -> None:
        """Stop counting this variant as called."""
        del self._called[variant]

    def called_or_all(self, variants: Sequence[str]) -> Sequence[str]:
        """The variants among these that are called; all of these if none is."""
        return [variant for variant in variants if variant in self._called] or variants

    def largest(self, cores: int, limit: int, pair: Pair | None) -> int:
        """The largest batch up to `limit` that meets the objective."""
        sizes = [self._largest_in_time(variant, cores, limit, pair) for variant in self.called_or_all(self._variants)]
        return min(sizes, default=limit)

    @property
    def outdated(self) -> bool:
        """Return whether the latency model has changed since this property was last read. Reading it resets it."""
        if not self._variants or self._latency.revision == self._revision:
            return False
        self._revision = self._latency.revision
        return True

    def _largest_in_time(self, variant: str, cores: int, limit: int, pair: Pair | None) -> int:
        for batch in range(limit, 0, -1):
            seconds = self._latency.seconds(variant, cores, batch, pair)
            if seconds is None or seconds <= self._slo_s:
                return batch
        return limit
