"""When Bodies lived, and for how long within a stretch."""

import pytest

from gnomon_core.profiles import LatencyTable
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_simulator.arrivals import constant
from gnomon_simulator.profiles import Profile
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, simulate


def test_the_seconds_of_a_stretch_are_those_of_the_bodies_that_lived_in_it() -> None:
    settings = Settings(autoscaler="fixed", scale=ScaleSettings(min=2, max=2))
    model = Profile("v", LatencyTable({1: {1: 0.1}}))
    plan = FunctionPlan("f", settings, model, constant(2.0, 20.0), "given", warm=2, crashes_s=(10.25,))
    result = simulate([plan], [NodePlan("node-1", 4)])["f"]
    assert len(result.bodies_s) == 3
    crashed = min(result.bodies_s, key=lambda body: body[1])
    assert crashed == (0.0, 10.25)
    assert result.instance_s_between(0.0, 10.0) == pytest.approx(20.0)
    assert result.instance_s_between(5.0, 6.0) == pytest.approx(2.0)
    assert result.instance_s_between(0.0, result.duration_s) == pytest.approx(result.instance_s)
    assert result.instance_s_between(result.duration_s, result.duration_s + 5.0) == 0.0
