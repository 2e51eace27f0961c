"""`batch` under bursts in virtual time: how soon it acts, after idle seconds and bursts too, and its cost beside `kpa`."""

from collections.abc import Sequence

import pytest

from gnomon_core.profiles import LatencyTable
from gnomon_core.scaling import SetBufferPlan
from gnomon_core.settings import read_settings
from gnomon_simulator.arrivals import poisson
from gnomon_simulator.events import stream
from gnomon_simulator.profiles import Profile
from gnomon_simulator.results import FunctionResult
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, simulate

SLO_S = 0.3
MODEL = Profile("v", LatencyTable({1: {batch: 0.04 + 0.005 * batch for batch in (1, 2, 4, 8, 16)}}), load_s=0.3)
IDLE = [part for _ in range(5) for part in ((30.0, 20.0), (10.0, 0.0))]
"""Seconds and requests per second of each part."""
BURST = [(120.0, 20.0), (60.0, 160.0), (120.0, 20.0)]


def simulated(policy: str, parts: Sequence[tuple[float, float]]) -> FunctionResult:
    """These parts one after the other, as Poisson processes."""
    arrivals_s, begin_s = [], 0.0
    for number, (seconds, rate_rps) in enumerate(parts):
        if rate_rps:
            arrivals_s += [begin_s + at_s for at_s in poisson(rate_rps, seconds, stream(number, "arrivals"))]
        begin_s += seconds
    annotations = {"gnomon/autoscaler": policy, "gnomon/slo-ms": "300", "gnomon/max-batch": "16", "gnomon/deadline-ms": "10000"}
    # One request per instance is what kpa meets the objective with; by default it aims at a full batch.
    annotations |= {"gnomon/target-concurrency": "1"} if policy == "kpa" else {}
    settings = read_settings({"com.openfaas.scale.max": "40"}, annotations)
    plan = FunctionPlan("f", settings, MODEL, arrivals_s, warm=1, knowledge="learned")
    return simulate([plan], [NodePlan("node-1", 64)])["f"]


def late(result: FunctionResult, since_s: float = 0.0, until_s: float = float("inf")) -> float:
    """The share of what arrived in this time that took longer than the objective, or was not answered."""
    rows = [row for row in result.requests.rows() if since_s <= row["arrived_s"] < until_s]
    return sum(row["status"] != 200 or row["finished_s"] - row["arrived_s"] > SLO_S for row in rows) / len(rows)


def acted_s(result: FunctionResult, since_s: float) -> float:
    """Seconds from then until a decision asked for more instances than there had been."""
    before = [record.desired or 0 for record in result.decisions if record.at <= since_s]
    return min(record.at for record in result.decisions if record.at > since_s and (record.desired or 0) > before[-1]) - since_s


@pytest.mark.parametrize("policy", ["batch", "batch+"])
@pytest.mark.parametrize(
    ("before", "rate_rps"),
    [([(200.0, 20.0)], 160.0), (IDLE, 160.0), (BURST, 160.0), (IDLE, 400.0)],
    ids=["calm", "idle seconds", "a burst", "idle seconds, 20 x"],
)
def test_more_instances_are_asked_for_within_two_seconds_of_a_burst(
    policy: str, before: list[tuple[float, float]], rate_rps: float
) -> None:
    since_s = sum(seconds for seconds, _ in before)
    result = simulated(policy, [*before, (30.0, rate_rps)])
    assert acted_s(result, since_s) <= 2.0
    assert late(result, since_s + 4.0) <= 0.02


@pytest.mark.parametrize("policy", ["batch", "batch+"])
def test_after_idle_seconds_a_moderate_rise_is_met_by_another_plan_within_seconds(policy: str) -> None:
    """4.5 times the rate needs no other instance at once, but another plan: it took 80 s where the window had idle seconds."""
    since_s = sum(seconds for seconds, _ in IDLE)
    result = simulated(policy, [*IDLE, (60.0, 90.0), (30.0, 20.0)])
    told = [record.at for record in result.decisions if any(isinstance(one, SetBufferPlan) for one in record.actions)]
    assert min(at for at in told if at > since_s) <= since_s + 3.0
    assert late(result) <= 0.05


@pytest.mark.parametrize("policy", ["batch", "batch+"])
def test_bursts_are_met_at_half_of_what_kpa_holds(policy: str) -> None:
    parts = [*BURST, *BURST[1:]]
    ours, kpa = simulated(policy, parts), simulated("kpa", parts)
    assert late(ours) <= 0.05
    assert ours.core_s <= 0.5 * kpa.core_s
