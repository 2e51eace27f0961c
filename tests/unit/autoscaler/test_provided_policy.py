"""Slots to a provider's replicas: as many as those take, and nothing of ours that scales."""

from __future__ import annotations

import pytest

from gnomon_autoscaler.policies.fixed import Provided
from gnomon_autoscaler.registry import BUILT_IN, provided, require, scaling_policy
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState, Node
from gnomon_core.interfaces import Capabilities
from gnomon_core.scaling import CreateBody, DestroyBody, History, Observation, PolicyState
from gnomon_core.settings import Settings, read_settings

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
    with pytest.raises(GnomonError) as refused:
        scaling_policy(name, read_settings(None, {"gnomon/autoscaler": name}), provided())
    assert (refused.value.status, refused.value.code) == (400, "unsupported_policy")
    assert name in refused.value.message


def test_a_function_that_names_no_policy_is_left_to_the_provider() -> None:
    settings = read_settings(None, None)
    assert isinstance(scaling_policy(settings.autoscaler, settings, provided()), Provided)


def test_openfaas_leaves_scaling_to_openfaas() -> None:
    policy = scaling_policy("openfaas", Settings(), provided())
    assert isinstance(policy, Provided)
    require(policy, Capabilities(place=False, size=False, victim=False, resize=False, pair=False))
