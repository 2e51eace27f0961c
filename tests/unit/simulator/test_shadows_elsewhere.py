"""Shadows on other nodes than their Bodies in virtual time, worked by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gnomon_autoscaler import BUILT_IN, PolicyPlugin
from gnomon_core.pairs import Pair
from gnomon_core.profiles import Network
from gnomon_core.scaling import Action, ChangeShadow, CreateShadow, DestroyShadow
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_simulator.arrivals import constant
from gnomon_simulator.profiles import modelled
from gnomon_simulator.results import FunctionResult
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, simulate
from tests.made_up_models import BlockPlan, made_up_profile
from tests.unit.simulator.scripted import Script

MB = 10**6
# Two samples take 1 s alone and 0.5 s with one of them on a Shadow. Elsewhere 50 ms and 10 ms/MB each way: 0.5 + 0.12 s.
MODEL = made_up_profile(
    (BlockPlan(0.5, 20 * MB), BlockPlan(0.5, 80 * MB)), (0.5, 1.0, 1.5, 2.0), gmacs=4.0, overhead_bytes=100 * MB,
    border_bytes=MB, network=Network(0.05, 1e-8),
)  # fmt: skip
SPLIT = (0, 1, 1, 2)
FAR = Pair(1, (0, 1), SPLIT, "n2")
NODES = (NodePlan("n1", 5), NodePlan("n2", 4))
"""The Body is where most cores are free: on n1."""


def run(
    actions: dict[float, Sequence[Action]], arrivals: list[float], nodes: Sequence[NodePlan] = NODES, **plan: Any
) -> FunctionResult:
    settings = Settings(autoscaler="script", max_batch=4, scale=ScaleSettings(min=1, max=4))
    policies = {**BUILT_IN, "script": PolicyPlugin(lambda _: Script(actions), "As written.")}
    planned = FunctionPlan("f", settings, modelled(MODEL), arrivals, "given", warm=1, policies=policies, **plan)
    return simulate([planned], nodes)["f"]


def test_a_pair_over_the_network_takes_its_way_as_well() -> None:
    near = run({0.5: (CreateShadow("f-1", replace(FAR, node=None)),)}, [2.0, 2.1, 2.1])
    far = run({0.5: (CreateShadow("f-1", FAR),)}, [2.0, 2.1, 2.1])
    assert list(near.requests.finished_s) == pytest.approx([2.5, 3.0, 3.0])
    assert list(far.requests.finished_s) == pytest.approx([2.5, 3.12, 3.12])
    assert list(far.requests.status) == [200] * 3


def test_while_tensors_are_on_their_way_the_shadow_is_idle() -> None:
    result = run({0.5: (CreateShadow("f-1", FAR),), 4.0: (DestroyShadow("f-2"),)}, [2.0, 2.1, 2.1, 5.0])
    assert result.cost.shadow_busy_core_s == pytest.approx(0.5)
    assert result.cost.shadow_core_s == pytest.approx(3.5)
    assert result.cost.body_busy_core_s == pytest.approx(0.5 + 0.62 + 0.5)


def test_remote_shadow_needs_memory_for_its_blocks() -> None:
    near, far = (run({0.5: (CreateShadow("f-1", pair),)}, [2.0]) for pair in (replace(FAR, node=None), FAR))
    shadow_s = far.duration_s - 0.5
    assert far.cost.memory_byte_s - near.cost.memory_byte_s == pytest.approx(100 * MB * shadow_s)


def test_remote_shadow_uses_cores_of_its_node() -> None:
    full = run({0.5: (CreateShadow("f-1", FAR),)}, [2.0], [NodePlan("n1", 5), NodePlan("n2", 1, 199 * MB)])
    assert any("no_capacity" in record.error for record in full.decisions)
    nowhere = run({0.5: (CreateShadow("f-1", replace(FAR, node="n9")),)}, [2.0])
    assert any("no_such_node" in record.error for record in nowhere.decisions)


def test_a_change_leaves_it_where_it_is() -> None:
    moved: dict[float, Sequence[Action]] = {
        0.5: (CreateShadow("f-1", FAR),),
        1.5: (ChangeShadow("f-2", replace(FAR, node=None)),),
    }
    result = run(moved, [2.0, 2.1, 2.1])
    assert list(result.requests.finished_s) == pytest.approx([2.5, 3.12, 3.12])


def test_asyfunc_carries_a_burst_with_a_shadow_on_another_node() -> None:
    """A Body fills its node and sustains 2 rps. The burst is of 3; with a Shadow elsewhere two samples take 0.62 s, not 1."""
    settings = Settings(autoscaler="asyfunc", slo_s=4.0, deadline_s=20.0, max_batch=4, max_cores=1, scale=ScaleSettings(max=1))
    arrivals = [
        *constant(1.0, 20.0),
        *(20.0 + at_s for at_s in constant(3.0, 4.0)),
        *(24.0 + at_s for at_s in constant(1.0, 16.0)),
    ]
    results = {}
    for name, network in (("priced", MODEL.network), ("unpriced", None), ("too dear", Network(5.0, 0.0))):
        plan = FunctionPlan("f", settings, modelled(replace(MODEL, network=network)), arrivals, warm=1)
        results[name] = simulate([plan], [NodePlan("n1", 1), NodePlan("n2", 1, 200 * MB)])["f"]
    told = [action["action"] for record in results["priced"].decisions for action in record.to_json()["actions"]]  # type: ignore[index, union-attr, call-overload]
    assert told[:2] == ["CreateShadow", "DestroyShadow"]
    assert results["unpriced"].cost.shadows == results["too dear"].cost.shadows == 0
    for result in results.values():
        assert list(result.requests.status) == [200] * len(arrivals)
    spent_s = {name: sum(result.requests.finished_s) - sum(arrivals) for name, result in results.items()}
    assert spent_s["priced"] < spent_s["unpriced"] == spent_s["too dear"]
