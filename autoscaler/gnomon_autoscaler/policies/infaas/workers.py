"""Scaling of the number of workers (INFaaS, section 4.2.3), decided from the workers' utilization and their variants' states.

A worker of a kind of hardware is added

1. when a resource is utilized beyond the threshold (80 %) on all workers of that kind that have it;
2. when on all workers of that kind variants are Interfered;
3. when more than 80 % of all workers have Overloaded variants: of the kind whose workers have them most often.

The paper does not say what follows while a worker starts, which takes 20 to 30 s where the decision is made every 2 s: a kind of
hardware of which a worker starts gets no second one. Nor does it say when a worker ends: here one without variants, the last in
alphabetical order, if without it every resource of the others of its kind stays `margin` below the threshold, and no worker is
added or starts. The margin keeps the utilization that the added worker relieves from ending it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gnomon_core.variant_scaling import WorkerObservation, WorkerPlan
from gnomon_core.variants import VariantState


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options of the decision. `least` workers of each kind of hardware stay; `most` of all kinds bounds their number."""

    threshold: float = 0.8
    overloaded_share: float = 0.8
    margin: float = 0.2
    least: int = 1
    most: int | None = None


def decide(workers: Sequence[WorkerObservation], options: WorkerOptions | None = None) -> WorkerPlan:
    """The workers to add and to end."""
    options = options or WorkerOptions()
    kinds = sorted({worker.hardware for worker in workers})
    starting = {worker.hardware for worker in workers if not worker.ready}
    reasons: dict[str, str] = {}
    for kind in kinds:
        ready = [worker for worker in workers if worker.ready and worker.hardware == kind]
        if ready and (reason := _strained(kind, ready, options)):
            reasons[kind] = reason
    everyone = [worker for worker in workers if worker.ready]
    overloaded = [worker for worker in everyone if VariantState.OVERLOADED in worker.states]
    if not reasons and everyone and len(overloaded) > options.overloaded_share * len(everyone):
        kind = max(kinds, key=lambda kind: _share(kind, overloaded, everyone))
        reasons[kind] = f"{len(overloaded)} of {len(everyone)} workers have overloaded variants"
    add = [kind for kind in reasons if kind not in starting]
    if options.most is not None:
        add = add[: max(0, options.most - len(workers))]
    if reasons:
        text = "; ".join(reasons.values())
        return WorkerPlan(tuple(add), (), text if add else f"{text}, but no further worker may start now")
    if starting:
        return WorkerPlan((), (), "a worker starts")
    for kind in kinds:
        if (idle := _superfluous([worker for worker in everyone if worker.hardware == kind], options)) is not None:
            return WorkerPlan((), (idle,), f"{idle} has no variants, and the other {kind} workers suffice")
    return WorkerPlan((), (), "utilization is within the threshold")


def _strained(kind: str, workers: Sequence[WorkerObservation], options: WorkerOptions) -> str:
    """The reason why the kind needs another worker; empty if it needs none."""
    for resource in sorted({resource for worker in workers for resource in worker.utilization}):
        used = [worker.utilization[resource] for worker in workers if resource in worker.utilization]
        if min(used) > options.threshold:
            return f"{resource} of all {kind} workers is more than {options.threshold:.0%} utilized"
    if all(VariantState.INTERFERED in worker.states for worker in workers):
        return f"variants on all {kind} workers are interfered"
    return ""


def _share(kind: str, overloaded: Sequence[WorkerObservation], everyone: Sequence[WorkerObservation]) -> float:
    """The share of workers of a kind that have overloaded variants."""
    count = sum(worker.hardware == kind for worker in everyone)
    return sum(worker.hardware == kind for worker in overloaded) / count if count else 0.0


def _superfluous(workers: Sequence[WorkerObservation], options: WorkerOptions) -> str | None:
    """The worker without variants that may end."""
    idle = sorted(worker.name for worker in workers if not worker.states)
    if not idle or len(workers) <= options.least:
        return None
    remaining_workers = [worker for worker in workers if worker.name != idle[-1]]
    resources = {resource for worker in remaining_workers for resource in worker.utilization}
    means = [
        sum(worker.utilization.get(resource, 0.0) for worker in remaining_workers) / len(remaining_workers)
        for resource in resources
    ]
    return idle[-1] if max(means, default=0.0) <= options.threshold - options.margin else None
