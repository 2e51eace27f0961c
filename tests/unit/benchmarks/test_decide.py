"""The time to decide: each policy decides for functions under load, whose Bodies are carried out."""

import random

import pytest

from benchmarks.asyfunc_cluster import read_model
from benchmarks.decide import FUNCTIONS, LENT, POLICIES, Loaded, decided
from benchmarks.programs import ROOT
from gnomon_core.fleet import InstanceState


@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy_takes_time_for_functions_that_have_bodies(policy: str) -> None:
    figure = decided(policy, functions=3, repeats=2, round_s=2.0)
    assert figure.value > 0
    assert figure.key == f"{policy}: 3 functions"
    assert not figure.met, f"the goal is for {FUNCTIONS} functions"


def test_bodies_borrow_cores_where_nodes_lend_them() -> None:
    model = read_model(ROOT / "profiles" / "resnet50.json", 0.05)
    for policy, idle_cores in ((LENT, 1), ("gnomon", None)):
        function = Loaded(policy, model, random.Random(1))
        for _ in range(6):
            function.look()
        bodies = list(function.instances.values())
        assert bodies
        assert {(body.idle_cores, body.state) for body in bodies} == {(idle_cores, InstanceState.READY)}
