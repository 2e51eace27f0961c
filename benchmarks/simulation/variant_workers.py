"""Workers on which variants of models run in a simulation: their kinds, what is free on each, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.simulation.variant_catalogs import GPU, INFERENTIA
from gnomon_core.variant_scaling import WorkerObservation
from gnomon_core.variants import CORES, CPU, MEMORY_BYTES, Variant, VariantState


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """A kind of worker: what it has of each resource type, and what it costs per second."""

    hardware: str
    resources: Mapping[str, float]
    cost_per_s: float


GIB = 2**30
EC2_KINDS = (
    WorkerKind(CPU, {CORES: 8.0, MEMORY_BYTES: 32.0 * GIB}, 2.0),
    WorkerKind(INFERENTIA, {CORES: 8.0, MEMORY_BYTES: 16.0 * GIB, INFERENTIA: 4.0}, 3.0),
    WorkerKind(GPU, {CORES: 8.0, MEMORY_BYTES: 61.0 * GIB, GPU: 1.0}, 16.0),
)
"""INFaaS's machines (section 6): m5.2xlarge, inf1.2xlarge (a chip of four cores), p3.2xlarge; prices in Table 2's unit."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The workers there are at first, by hardware, and at most. A further one starts in `start_s` (20 to 30 s, section 4.2.3)."""

    initial: Mapping[str, int]
    most: int
    kinds: tuple[WorkerKind, ...] = EC2_KINDS
    start_s: float = 25.0


@dataclass(slots=True)
class Worker:
    """A worker: what is left of its resources, and how many instances of which variants run there."""

    name: str
    kind: WorkerKind
    started_s: float
    ready_s: float
    left: dict[str, float]
    instances: dict[str, int] = field(default_factory=dict)

    def fits(self, variant: Variant) -> bool:
        return all(self.left.get(kind, 0.0) >= amount - 1e-9 for kind, amount in variant.resources.items())

    def take(self, variant: Variant, count: int) -> None:
        """Load so many instances, or unload them where the number is negative."""
        for kind, amount in variant.resources.items():
            self.left[kind] -= count * amount
        self.instances[variant.id] = self.instances.get(variant.id, 0) + count
        if not self.instances[variant.id]:
            del self.instances[variant.id]


class Workers:
    """All workers of a simulation. Their cost is the integral of their number by kind, from the beginning of each to its end."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kinds = {kind.hardware: kind for kind in cluster.kinds}
        self._started = 0
        self._spent = 0.0
        self.all: dict[str, Worker] = {}
        for hardware, count in cluster.initial.items():
            for _ in range(count):
                self.add(hardware, 0.0, ready_s=0.0)

    @property
    def most(self) -> int:
        return self._cluster.most

    def add(self, hardware: str, now_s: float, ready_s: float | None = None) -> None:
        """Begin a worker; it is ready after the cluster's time to start."""
        kind = self._kinds[hardware]
        name = f"{hardware}-{self._started:05d}"
        self._started += 1
        ready_s = now_s + self._cluster.start_s if ready_s is None else ready_s
        self.all[name] = Worker(name, kind, now_s, ready_s, dict(kind.resources))

    def remove(self, name: str, now_s: float) -> None:
        """End a worker without instances; one that has them stays."""
        if not self.all[name].instances:
            worker = self.all.pop(name)
            self._spent += worker.kind.cost_per_s * (now_s - worker.started_s)

    def place(self, variant: Variant, now_s: float) -> Worker | None:
        """Load an instance on the ready worker with its hardware that has least left (best fit); None where it fits nowhere."""
        fitting = [
            worker
            for worker in self.all.values()
            if worker.kind.hardware == variant.hardware and worker.ready_s <= now_s and worker.fits(variant)
        ]
        if not fitting:
            return None
        worker = min(
            fitting,
            key=lambda worker: (sum(worker.left[kind] / worker.kind.resources[kind] for kind in worker.left), worker.name),
        )
        worker.take(variant, 1)
        return worker

    def capacity(self, now_s: float) -> dict[str, float]:
        """The resources that all instances may use together.

        Cores of workers with accelerators are for their accelerators' instances.
        """
        capacity: dict[str, float] = {CORES: 0.0}
        for worker in self.all.values():
            if worker.ready_s > now_s:
                continue
            hardware = worker.kind.hardware
            if hardware == CPU:
                capacity[CORES] += worker.kind.resources[CORES]
            else:
                devices = worker.kind.resources[hardware]
                capacity[hardware] = capacity.get(hardware, 0.0) + devices
                capacity[CORES] += min(worker.kind.resources[CORES], devices)
        for hardware in self._kinds:
            if hardware != CPU:
                capacity.setdefault(hardware, 0.0)
        return capacity

    def observations(self, now_s: float, states: Mapping[str, VariantState]) -> list[WorkerObservation]:
        """The workers as a policy sees them: reserved shares of their resources, and the states of their variants."""
        observations = []
        for worker in self.all.values():
            resources = worker.kind.resources
            reported = (CORES,) if worker.kind.hardware == CPU else (worker.kind.hardware,)
            utilization = {kind: 1.0 - worker.left[kind] / resources[kind] for kind in reported}
            variant_states = tuple(states[name] for name in sorted(worker.instances))
            observations.append(
                WorkerObservation(worker.name, worker.kind.hardware, utilization, variant_states, ready=worker.ready_s <= now_s)
            )
        return observations

    def cost(self, end_s: float) -> float:
        """The cost of the workers until then."""
        return self._spent + sum(worker.kind.cost_per_s * (end_s - worker.started_s) for worker in self.all.values())
