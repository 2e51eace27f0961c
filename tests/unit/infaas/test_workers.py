"""Workers are added by INFaaS's three rules, and ended where nothing runs on them."""

from collections.abc import Sequence

import pytest

from gnomon_autoscaler.policies.infaas.workers import WorkerOptions, decide
from gnomon_core.variant_scaling import WorkerObservation
from gnomon_core.variants import VariantState

ACTIVE, OVERLOADED, INTERFERED = VariantState.ACTIVE, VariantState.OVERLOADED, VariantState.INTERFERED


def worker(
    name: str,
    hardware: str = "cpu",
    used: float = 0.5,
    *states: VariantState,
    ready: bool = True,
    gpu_memory: float | None = None,
) -> WorkerObservation:
    utilization = {"cores": used} if gpu_memory is None else {"cores": used, "gpu_memory_bytes": gpu_memory}
    return WorkerObservation(name, hardware, utilization if ready else {}, states, ready)


@pytest.mark.parametrize(
    ("workers", "added"),
    [
        ([], ()),
        ([worker("a", "cpu", 0.81, ACTIVE), worker("b", "cpu", 0.9, ACTIVE)], ("cpu",)),
        ([worker("a", "cpu", 0.81, ACTIVE), worker("b", "cpu", 0.8, ACTIVE)], ()),  # not on all workers
        ([worker("a", "cpu", 0.5, ACTIVE), worker("g", "gpu", 0.1, ACTIVE, gpu_memory=0.9)], ("gpu",)),  # any resource
        ([worker("a", "cpu", 0.9, ACTIVE), worker("g", "gpu", 0.9, ACTIVE)], ("cpu", "gpu")),
        ([worker("g", "gpu", 0.1, INTERFERED), worker("h", "gpu", 0.1, ACTIVE, INTERFERED)], ("gpu",)),
        ([worker("g", "gpu", 0.1, INTERFERED), worker("h", "gpu", 0.1, ACTIVE)], ()),
        ([worker("a", "cpu", 0.1, OVERLOADED), worker("g", "gpu", 0.1, OVERLOADED)], ("cpu",)),
        ([*[worker(f"a{n}", "cpu", 0.1, OVERLOADED) for n in range(4)], worker("a4", "cpu", 0.1, ACTIVE)], ()),  # 80 % exactly
        ([*[worker(f"g{n}", "gpu", 0.1, OVERLOADED) for n in range(9)], worker("a", "cpu", 0.1, ACTIVE)], ("gpu",)),
    ],
)
def test_worker_is_added_by_each_rule(workers: Sequence[WorkerObservation], added: tuple[str, ...]) -> None:
    plan = decide(workers)
    assert plan.add == added
    assert plan.reason


def test_second_worker_of_a_kind_waits_for_the_first_to_start() -> None:
    full = [worker("a", "cpu", 0.9, ACTIVE), worker("g", "gpu", 0.9, ACTIVE)]
    plan = decide([*full, worker("b", "cpu", ready=False)])
    assert plan.add == ("gpu",)
    assert decide([*full, worker("b", "cpu", ready=False), worker("h", "gpu", ready=False)]).add == ()


def test_number_of_workers_is_bounded() -> None:
    full = [worker("a", "cpu", 0.9, ACTIVE), worker("g", "gpu", 0.9, ACTIVE)]
    assert decide(full, WorkerOptions(most=3)).add == ("cpu",)
    plan = decide(full, WorkerOptions(most=2))
    assert (plan.add, "no further worker" in plan.reason) == ((), True)


@pytest.mark.parametrize(
    ("workers", "removed"),
    [
        ([worker("a", "cpu", 0.6, ACTIVE), worker("b", "cpu", 0.0), worker("c", "cpu", 0.0)], ("c",)),
        ([worker("a", "cpu", 0.61, ACTIVE), worker("b", "cpu", 0.0)], ()),  # the rest would be near the threshold
        ([worker("a", "cpu", 0.0)], ()),  # the last one
        ([worker("a", "cpu", 0.1, ACTIVE), worker("b", "cpu", 0.1, ACTIVE)], ()),
        ([worker("a", "cpu", 0.1, ACTIVE), worker("b", "cpu", 0.0), worker("g", "gpu", ready=False)], ()),
    ],
)
def test_worker_without_variants_ends_where_the_others_suffice(
    workers: Sequence[WorkerObservation], removed: tuple[str, ...]
) -> None:
    plan = decide(workers)
    assert (plan.add, plan.remove) == ((), removed)
