"""Policies that scale by arrival rates: od, lv, mark, provided concurrency."""

import pytest

from gnomon_autoscaler.policies.fixed import Provided
from gnomon_autoscaler.policies.rates import capacity
from gnomon_autoscaler.registry import BUILT_IN, provided, require, scaling_policy
from gnomon_autoscaler.testing import Timeline
from gnomon_core.fleet import Instance, InstanceState, Node
from gnomon_core.interfaces import Capabilities
from gnomon_core.scaling import CreateBody, DestroyBody, History, Observation, PolicyState
from gnomon_core.settings import ScaleSettings, Settings, read_settings
from tests.refusals import refused
from tests.timelines import play

# t(1) = 0.20 s, t(2) = 0.25, t(4) = 0.40: 5, 8, 9 (t(3) = 1/3) and 10 requests a second.
LATENCY_S = (0.20, 0.25, 1 / 3, 0.40)


def settings(policy: str, *, slo_s: float = 0.5, **scale: object) -> Settings:
    return Settings(autoscaler=policy, slo_s=slo_s, max_batch=4, scale=ScaleSettings(**scale))


def timeline(policy: str, **scale: object) -> Timeline:
    line = Timeline(settings(policy, **scale))
    line.latency_s = LATENCY_S
    return line


def test_capacity_counts_the_wait_for_a_full_batch() -> None:
    # At 40 rps a batch of 4 fills in 75 ms: 475 ms in all.
    best = capacity(LATENCY_S, 0.5, 40.0)
    assert (best.batch, best.rate_rps) == (4, pytest.approx(10.0))
    # At 10 rps it fills in 300 ms, 700 ms in all; 3 take 200 + 333, 2 take 100 + 250.
    best = capacity(LATENCY_S, 0.5, 10.0)
    assert (best.batch, best.rate_rps) == (2, pytest.approx(8.0))


def test_capacity_looks_at_every_batch_because_throughput_need_not_rise() -> None:
    best = capacity((0.1, 0.25, 0.2), 1.0, 1000.0)
    assert best.batch == 3


def test_capacity_without_a_timely_batch_is_that_of_single_requests() -> None:
    best = capacity(LATENCY_S, 0.1, 40.0)
    assert (best.batch, best.rate_rps, best.within_slo) == (1, pytest.approx(5.0), False)


def test_capacity_is_unknown_without_latency() -> None:
    assert capacity((), 1.0, 5.0) is None
    assert capacity((0.0, 0.0), 1.0, 5.0) is None


def test_od_follows_the_last_second_both_ways() -> None:
    line = timeline("od")
    assert play(line, 2, rps=40.0) == 4
    assert line.reason == "40.00 rps in 1 s / 10.00 rps per instance at b = 4 = 4"
    assert play(line, 2, rps=10.0) == 2  # 10 / 8
    assert play(line, 2, rps=0.0) == 1  # scale.min


def test_a_higher_rate_may_need_fewer_instances_because_larger_batches_fill_in_time() -> None:
    line = timeline("od")
    assert play(line, 4, rps=29.0) == 4  # 29 / 9 at b = 3
    assert play(line, 4, rps=30.0) == 3  # 30 / 10 at b = 4


def test_lv_changes_once_a_period_to_the_mean_of_the_last() -> None:
    line = timeline("lv")
    assert play(line, 29.5, rps=40.0) == 1
    assert play(line, 0.5) == 4
    assert play(line, 29.5, rps=80.0) == 4
    assert play(line, 0.5) == 8


def test_lv_takes_the_mean_of_the_whole_period() -> None:
    line = timeline("lv")
    line.play(15)
    assert play(line, 15, rps=80.0) == 4


def test_k_lv_asks_for_half_as_much_again() -> None:
    line = timeline("k-lv")
    assert play(line, 30, rps=40.0) == 6
    assert line.reason == "1.5 × 40.00 rps in 30 s / 10.00 rps per instance at b = 4 = 6"


def test_without_latency_the_number_comes_from_concurrency_and_says_so() -> None:
    line = Timeline(settings("k-lv"))
    assert play(line, 30, rps=40.0, concurrency=8.0) == 3  # 1.5 × 8 / 4
    assert "latency not known yet, by concurrency" in line.reason


def test_an_slo_that_no_batch_meets_is_said() -> None:
    line = Timeline(settings("od", slo_s=0.1))
    assert play(line, 2, latency_s=LATENCY_S, rps=10.0) == 2
    assert "no batch meets the SLO" in line.reason


def test_with_minimum_zero_no_load_means_no_instance_until_a_request_waits() -> None:
    line = timeline("lv", min=0)
    assert play(line, 5) == 0
    assert play(line, 0.5, rps=1.0, queued=1) == 1  # in the middle of a period


ECHO, OTHER = "echo.openfaas-fn", "other.openfaas-fn"


def slot(name: str, state: InstanceState = InstanceState.READY, *, busy: bool = False) -> Instance:
    return Instance(name, ECHO, 1, ECHO, 1, 0, state, 0.0, busy=busy, in_flight=int(busy))


def seen(places: int, *slots: Instance, queued: int = 0) -> Observation:
    nodes = (Node(ECHO, places, 0, 0.0, 0), Node(OTHER, 50, 0, 50.0, 0))
    return Observation(10.0, ECHO, Settings(), slots, nodes, queued, 0, 0.0, 0.0, History(0.1, 10.0))


def test_as_many_slots_are_opened_as_its_own_replicas_have_places() -> None:
    decision, _ = Provided().decide(seen(3, slot("a")), PolicyState())
    assert decision.actions == (CreateBody(1, ECHO), CreateBody(1, ECHO))
    assert (decision.desired, decision.reason) == (3, "the provider's replicas take 3 requests at once")


def test_idle_slots_are_closed_before_busy_ones() -> None:
    decision, _ = Provided().decide(seen(1, slot("a", busy=True), slot("b"), slot("c", InstanceState.STARTING)), PolicyState())
    assert decision.actions == (DestroyBody("c"), DestroyBody("b"))


def test_without_a_replica_one_slot_is_opened_while_a_request_waits() -> None:
    assert Provided().decide(seen(0), PolicyState())[0].actions == ()
    decision, state = Provided().decide(seen(0, queued=5), PolicyState())
    assert decision.actions == (CreateBody(1, ECHO),)
    assert Provided().decide(seen(0, slot("a", InstanceState.STARTING), queued=5), state)[0].actions == ()


@pytest.mark.parametrize("name", sorted(BUILT_IN.keys() - {"openfaas"}))
def test_a_policy_that_would_scale_is_refused_where_a_provider_does(name: str) -> None:
    with refused(400, "unsupported_policy", message=name):
        scaling_policy(name, read_settings(None, {"gnomon/autoscaler": name}), provided())


def test_a_function_that_names_no_policy_is_left_to_the_provider() -> None:
    settings = read_settings(None, None)
    assert isinstance(scaling_policy(settings.autoscaler, settings, provided()), Provided)


def test_openfaas_leaves_scaling_to_openfaas() -> None:
    policy = scaling_policy("openfaas", Settings(), provided())
    assert isinstance(policy, Provided)
    require(policy, Capabilities(place=False, size=False, victim=False, resize=False, pair=False))
