"""Cores that are borrowed for a batch, in virtual time: how long it takes, what it costs, and who gets them first."""

from collections.abc import Sequence

import pytest

from gnomon_autoscaler import BUILT_IN, PolicyPlugin
from gnomon_core.scaling import Action, CreateBody, DestroyBody, Resize
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_simulator.profiles import modelled
from gnomon_simulator.results import FunctionResult
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, simulate
from tests.made_up_models import BlockPlan, made_up_profile
from tests.unit.simulator.scripted import Script

MODEL = made_up_profile((BlockPlan(1.0, 10**6),), (1.0,), cores=tuple(range(1, 9)))
"""One sample takes a second of one core, and an eighth of that on eight."""


def run(
    actions: dict[float, Sequence[Action]], arrivals: list[float], *, cores: int = 8, deadline_s: float = 30.0
) -> FunctionResult:
    settings = Settings(
        autoscaler="script", scheduler="economical", slo_s=deadline_s, deadline_s=deadline_s, scale=ScaleSettings(min=1, max=4)
    )
    policies = {**BUILT_IN, "script": PolicyPlugin(lambda _: Script(actions), "As written.")}
    plan = FunctionPlan("f", settings, modelled(MODEL), arrivals, "given", policies=policies)
    return simulate([plan], [NodePlan("n1", cores)])["f"]


def borrowing(*more: Action) -> dict[float, Sequence[Action]]:
    return {0.0: (CreateBody(8, idle_cores=1), *more)}


def test_a_batch_takes_as_long_as_on_the_cores_that_it_borrows_and_gives_them_back() -> None:
    result = run(borrowing(), [1.0, 11.0])
    # 60 % of eight cores while nothing waits: five.
    assert list(result.requests.finished_s) == pytest.approx([1.2, 11.2])
    assert result.busy_core_s == pytest.approx(2.0)
    assert result.core_s == pytest.approx(result.duration_s + 2 * 0.2 * 4), "one core while it is idle, five while it executes"


def test_a_wait_gets_all_the_cores_that_there_are() -> None:
    result = run(borrowing(), [1.0, 1.0, 1.0], deadline_s=0.5)
    took_s = [finished - sent for finished, sent in zip(result.requests.finished_s, result.requests.dispatched_s, strict=True)]
    assert took_s == pytest.approx([1 / 5, 1 / 8, 1 / 8])


def test_two_instances_share_the_node() -> None:
    result = run(borrowing(CreateBody(8, idle_cores=1)), [1.0, 1.0])
    took_s = [finished - 1.0 for finished in result.requests.finished_s]
    assert took_s == pytest.approx([1 / 4, 1 / 4])


def test_an_instance_with_cores_of_its_own_keeps_them_from_borrowers() -> None:
    result = run(borrowing(CreateBody(6)), [1.0, 1.0])
    took_s = sorted(finished - 1.0 for finished in result.requests.finished_s)
    assert took_s == pytest.approx([1 / 6, 1 / 2])


def test_functions_that_compete_for_a_node_have_half_of_it_each() -> None:
    settings = Settings(autoscaler="script", scheduler="economical", slo_s=30.0, deadline_s=30.0)
    policies = {**BUILT_IN, "script": PolicyPlugin(lambda _: Script(borrowing()), "As written.")}
    plans = [FunctionPlan(name, settings, modelled(MODEL), [1.0], "given", policies=policies) for name in ("f", "g")]
    results = simulate(plans, [NodePlan("n1", 8)])
    assert [list(results[name].requests.finished_s) for name in ("f", "g")] == [[pytest.approx(1.25)]] * 2


def test_admission_counts_on_the_share_of_the_node_and_no_more() -> None:
    # A batch takes 1/8 s of the whole node and 1/4 s of half of it: within 0.6 s two are answered, the others refused at once.
    result = run(borrowing(CreateBody(7, idle_cores=1)), [1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0], deadline_s=0.6)
    statuses = list(result.requests.status)
    late = [
        finished - arrived
        for arrived, finished, status in zip(result.requests.arrived_s, result.requests.finished_s, statuses, strict=True)
        if status == 200 and finished - arrived > 0.6
    ]
    assert not late
    assert statuses.count(200) < len(statuses)


def test_an_instance_gives_its_own_cores_up_and_borrows_from_then_on() -> None:
    result = run({0.0: (CreateBody(4),), 2.0: (Resize("f-1", 8, 1),)}, [1.0, 12.0])
    assert list(result.requests.finished_s) == pytest.approx([1.25, 12.2])
    assert result.core_s == pytest.approx(2 * 4 + (result.duration_s - 2) + 0.2 * 4)


def test_what_ends_in_the_midst_of_its_batch_returns_its_cores() -> None:
    actions = borrowing() | {1.0: (DestroyBody("f-1"),), 2.0: (CreateBody(8, idle_cores=1),)}
    result = run(actions, [0.9, 3.0])
    assert list(result.requests.finished_s) == pytest.approx([1.1, 3.2])
