"""The instances of one function as the dispatcher knows them: who is idle, who executes what, who is being drained."""

from __future__ import annotations

from bisect import insort

from gnomon_core.scheduling import FleetView, Slot
from gnomon_gateway.queueing.admission import Capacity
from gnomon_gateway.queueing.batch import Batch


class Worker:
    """One instance that can take batches, one at a time."""

    __slots__ = ("batch", "cores", "draining", "id", "order", "slot", "solo_slot")

    def __init__(self, instance_id: str, cores: int, max_batch: int, order: int) -> None:
        self.id = instance_id
        self.cores = cores
        self.batch: Batch | None = None
        self.draining = False
        self.order = (max_batch, cores, order)
        self.slot = Slot(instance_id, cores, max_batch)
        self.solo_slot = Slot(instance_id, cores, 1)

    def __lt__(self, other: Worker) -> bool:
        return self.order < other.order


class Workers:
    """The fleet, with the views that policies see. A view is made when it is asked for and kept until something changes."""

    __slots__ = ("_added", "_capacity", "_idle", "_solo_view", "_view", "busy", "busy_cores", "by_id", "starting")

    def __init__(self) -> None:
        self.by_id: dict[str, Worker] = {}
        self.busy = 0
        self.busy_cores = 0
        self.starting = 0
        self._idle: list[Worker] = []
        self._added = 0
        self._view: FleetView | None = None
        self._solo_view: FleetView | None = None
        self._capacity: Capacity | None = None

    def capacity(self) -> Capacity:
        """What can be counted on for the requests that wait: everything but the draining instances."""
        if self._capacity is None:
            slots = [worker.slot for worker in self.by_id.values() if not worker.draining]
            smallest = min(slots, key=lambda slot: slot.cores, default=None)
            self._capacity = Capacity(
                instances=len(slots),
                samples=sum([slot.max_batch for slot in slots]),
                max_batch=smallest.max_batch if smallest else 1,
                cores=smallest.cores if smallest else 1,
            )
        return self._capacity

    def free_in_s(self, now_s: float) -> float:
        """Until an instance can take a batch, as predicted; 0 if one can now."""
        if self._idle:
            return 0.0
        ends = [worker.batch.expected_end_s for worker in self.by_id.values() if worker.batch is not None and not worker.draining]
        return max(0.0, min(ends, default=now_s) - now_s)

    @property
    def any_idle(self) -> bool:
        return bool(self._idle)

    def view(self, *, solo: bool) -> FleetView:
        """What a policy sees; `solo` for lanes whose batches hold one request."""
        view = self._solo_view if solo else self._view
        if view is None:
            idle = tuple([worker.solo_slot if solo else worker.slot for worker in self._idle])
            view = FleetView(idle, self.busy, self.starting)
            if solo:
                self._solo_view = view
            else:
                self._view = view
        return view

    def add(self, instance_id: str, cores: int, max_batch: int) -> None:
        """An instance that can take a batch now. One that is known already gets the new size."""
        worker = self.by_id.get(instance_id)
        if worker is None:
            self._added += 1
            worker = self.by_id[instance_id] = Worker(instance_id, cores, max_batch, self._added)
            self._idle_again(worker)
            self._resized()
            return
        self._leave_idle(worker)
        if worker.batch is not None:
            self.busy_cores += cores - worker.cores
        worker.cores = cores
        worker.order = (max_batch, cores, worker.order[2])
        worker.slot = Slot(instance_id, cores, max_batch)
        worker.solo_slot = Slot(instance_id, cores, 1)
        self._idle_again(worker)
        self._resized()

    def take(self, worker: Worker, batch: Batch) -> None:
        """The idle worker begins a batch."""
        self._leave_idle(worker)
        worker.batch = batch
        self.busy += 1
        self.busy_cores += worker.cores

    def release(self, worker: Worker) -> None:
        """The worker's batch has ended."""
        worker.batch = None
        self.busy -= 1
        self.busy_cores -= worker.cores
        self._idle_again(worker)

    def drain(self, worker: Worker) -> None:
        """Give it nothing more."""
        worker.draining = True
        self._leave_idle(worker)
        self._resized()

    def remove(self, worker: Worker) -> None:
        """It is gone, with whatever it executed."""
        if worker.batch is not None:
            self.busy -= 1
            self.busy_cores -= worker.cores
        self._leave_idle(worker)
        del self.by_id[worker.id]
        self._resized()

    def set_starting(self, count: int) -> None:
        if count != self.starting:
            self.starting = count
            self._changed()

    def _idle_again(self, worker: Worker) -> None:
        if worker.batch is None and not worker.draining:
            if self._idle:
                insort(self._idle, worker)
            else:
                self._idle.append(worker)
        self._changed()

    def _leave_idle(self, worker: Worker) -> None:
        if worker in self._idle:
            self._idle.remove(worker)
        self._changed()

    def _changed(self) -> None:
        self._view = self._solo_view = None

    def _resized(self) -> None:
        self._capacity = None
        self._changed()
