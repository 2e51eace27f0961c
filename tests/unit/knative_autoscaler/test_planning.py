"""Decisions for a Revision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gnomon_core.actuation import PartlyRefused
from gnomon_core.errors import GnomonError
from gnomon_core.pairs import Pair
from gnomon_core.scaling import Action, CreateBody, CreateShadow, SetBufferPlan
from gnomon_platforms.knative.autoscaler.instances import ResizePod, RevisionInstances
from gnomon_platforms.knative.autoscaler.objects import LiveRevision, pa_facts
from gnomon_platforms.knative.autoscaler.planning import PROXY, SERVE, plan
from gnomon_platforms.knative.autoscaler.revision import ScaledRevision, Step
from gnomon_platforms.knative.autoscaler.rules import ClusterSettings
from gnomon_platforms.kubernetes.resources import REFUSED_S
from tests.unit.knative_autoscaler.played import Played, cluster_of, pod, policies
from tests.virtual_clock import VirtualClock

ANNOTATION = "autoscaling.knative.dev/"


def created(annotations: dict[str, str] | None = None, **cluster: Any) -> Played:
    """A Revision that has become ready."""
    played = Played({ANNOTATION + "window": "20s", **(annotations or {})}, **cluster)
    played.until(lambda: played.condition("Ready") == "True")
    return played


def test_a_new_revision_becomes_ready_with_its_first_pod() -> None:
    played = Played(starts_s=5.0)
    first = played.step()
    assert first.route is not None
    assert first.route.mode == PROXY
    assert first.replicas is None
    status = played.pa["status"]
    assert (status["serviceName"], status["metricsServiceName"]) == ("", "")
    assert played.condition("Ready") == "Unknown"
    played.until(lambda: played.condition("Ready") == "True")
    assert played.condition("Active") == played.condition("ScaleTargetInitialized") == played.condition("SKSReady") == "True"
    status = played.pa["status"]
    assert (status["serviceName"], status["metricsServiceName"]) == ("f-00001", "f-00001-private")
    assert (status["desiredScale"], status["actualScale"]) == (1, 1)
    assert status["observedGeneration"] == 1
    # Never inactive before it was initialized: the Revision would have failed for ever.
    assert all(active != "False" for _, active, _, _ in played.written_statuses)


def test_a_plan_that_is_carried_out_is_followed_by_none() -> None:
    played = created()
    played.step()
    before = played.pa["status"]
    later = plan(replace(played.seen(), now_s=played.now_s + 5.0))
    assert later.status == before
    assert later.route is None
    assert later.replicas is None


def test_to_zero_activators_come_first_then_the_probe_then_the_grace() -> None:
    played = created({ANNOTATION + "target-burst-capacity": "0"}, zero_grace_s=6.0)
    played.until(lambda: played.sks is not None and played.sks["spec"]["mode"] == SERVE)
    played.answers = False
    played.wanted = 0
    waited_s = played.until(lambda: played.condition("Active") == "False")
    assert waited_s >= 15.0  # what was left of the window that it has to be active for
    for _ in range(30):
        played.step()
    assert played.sks is not None
    assert played.sks["spec"]["mode"] == PROXY
    assert played.replicas == 1  # no activator has answered
    assert played.probes > 10
    played.answers = True
    played.until(lambda: played.replicas == 0, limit_s=5.0)
    played.until(lambda: played.ready == 0)
    played.step()
    # As after it is scaled to zero by Knative's own class: the service is what it was, and not ready.
    assert played.condition("Active") == "False"
    assert played.pa["status"]["desiredScale"] == 0
    assert played.condition("ScaleTargetInitialized") == "True"


def test_the_grace_counts_from_when_activators_are_in_the_way() -> None:
    played = created({ANNOTATION + "target-burst-capacity": "0"}, zero_grace_s=12.0)
    played.wanted = 0
    played.until(lambda: played.condition("Active") == "False")
    began_s = played.now_s
    played.until(lambda: played.replicas == 0)
    assert 10.0 <= played.now_s - began_s <= 14.0
    # With activators in the way all the time, as for one pod by default, only the probe remains.
    always = created(zero_grace_s=12.0)
    always.until(lambda: always.now_s > 0)
    for _ in range(15):
        always.step()
    always.wanted = 0
    always.until(lambda: always.condition("Active") == "False")
    assert always.until(lambda: always.replicas == 0) <= 4.0


def test_the_last_pod_stays_for_its_retention_period() -> None:
    played = created({ANNOTATION + "scale-to-zero-pod-retention-period": "45s"}, zero_grace_s=5.0)
    played.wanted = 0
    played.until(lambda: played.condition("Active") == "False")
    assert 42.0 <= played.until(lambda: played.replicas == 0) <= 48.0


@pytest.mark.parametrize("at", ["inactive", "proxied", "gone"])
def test_a_request_on_the_way_to_zero_turns_it_round(at: str) -> None:
    played = created({ANNOTATION + "target-burst-capacity": "0"}, zero_grace_s=10.0)
    played.wanted = 0
    played.until(lambda: played.condition("Active") == "False")
    if at == "proxied":
        played.until(lambda: played.proxied is True)
    elif at == "gone":
        played.until(lambda: played.replicas == 0)
    played.wanted, played.busy = 1, True
    woken = played.step()
    assert played.replicas == 1
    assert woken.desired_scale == 1
    played.until(lambda: played.condition("Ready") == "True", limit_s=10.0)
    played.until(lambda: played.sks is not None and played.sks["spec"]["mode"] == SERVE)
    # A probe of before counts for nothing the next time.
    assert played.proxied is None


def test_bounds_hold_whatever_the_policy_wants() -> None:
    played = created({ANNOTATION + "min-scale": "2", ANNOTATION + "max-scale": "5"})
    assert played.replicas == 2
    played.wanted = 9
    played.until(lambda: played.replicas == 5)
    played.wanted = 0
    played.until(lambda: played.replicas == 2)
    for _ in range(60):
        played.step()
    assert played.replicas == 2
    assert played.condition("Active") == "True"


def test_a_revision_without_routes_has_no_minimum() -> None:
    played = created({ANNOTATION + "min-scale": "2"})
    played.pa["spec"]["reachability"] = "Unreachable"
    played.wanted = 0
    played.until(lambda: played.replicas == 0)


def test_the_first_scale_is_reached_before_it_is_active_and_then_forgotten() -> None:
    played = Played({ANNOTATION + "initial-scale": "3", ANNOTATION + "window": "20s"})
    played.replicas, played.born = 3, [played.now_s, played.now_s, played.now_s + 20.0]
    for _ in range(15):
        played.step()
    assert played.condition("Active") == "Unknown"
    played.until(lambda: played.condition("Ready") == "True")
    assert played.ready == 3
    played.until(lambda: played.replicas == 1)


def test_an_activation_scale_counts_only_while_requests_come() -> None:
    played = created({ANNOTATION + "activation-scale": "4"})
    assert played.replicas == 1
    played.busy = True
    played.until(lambda: played.replicas == 4)
    played.busy = False
    played.until(lambda: played.replicas == 1)


def test_revision_that_cannot_be_activated_goes_to_zero_with_a_reason() -> None:
    played = Played(starts_s=1e9, progress_deadline_s=60.0)
    played.until(lambda: played.condition("Active") == "Unknown" and "serviceName" in played.pa.get("status", {}))
    played.wanted = 0
    took_s = played.until(lambda: played.replicas == 0)
    assert 85.0 <= took_s <= 95.0
    active = pa_facts(played.pa).condition("Active")
    assert (active.status, active.reason) == ("False", "TimedOut")


def test_nothing_goes_to_zero_while_nobody_sees_what_waits() -> None:
    played = created()
    played.wanted, played.wakeable = 0, False
    for _ in range(120):
        played.step()
    assert played.replicas == 1
    assert played.condition("Active") == "True"
    played.wakeable = True
    played.until(lambda: played.replicas == 0)


def test_scaling_to_zero_can_be_switched_off_for_all() -> None:
    played = created(enable_scale_to_zero=False)
    played.wanted = 0
    for _ in range(120):
        played.step()
    assert played.replicas == 1


def test_activators_leave_the_way_when_there_is_room_for_a_burst() -> None:
    # 3 pods take 100 each: a burst of 211 fits beside 80, not beside 95. Two activators of 100 at least, and what 511 need.
    played = created()
    played.wanted = played.replicas = 3
    played.born = [0.0, 0.0, 0.0]
    for load, mode in ((95.0, PROXY), (80.0, SERVE)):
        played.panic_load = load
        played.step()
        assert played.sks is not None
        assert (played.sks["spec"]["mode"], played.sks["spec"]["numActivators"]) == (mode, 6)
    never = created({ANNOTATION + "target-burst-capacity": "-1"})
    never.step()
    assert never.sks is not None
    assert never.sks["spec"]["mode"] == PROXY


def test_somebody_elses_service_is_left_alone() -> None:
    played = created()
    assert played.sks is not None
    played.sks["metadata"]["ownerReferences"][0]["uid"] = "another"
    planned = played.step()
    assert planned.route is None
    assert planned.replicas is None
    assert pa_facts(played.pa).condition("Ready").reason == "NotOwned"


def test_a_revision_whose_service_was_somebody_elses_begins_anew_and_does_not_end() -> None:
    played = Played({ANNOTATION + "window": "20s"})
    played.step()
    assert played.sks is not None
    played.sks["metadata"]["ownerReferences"] = []
    played.wanted = 0  # nothing comes: that is no reason to end what has never begun
    for _ in range(5):
        played.step()
    assert pa_facts(played.pa).condition("Active").reason == "NotOwned"
    played.sks = None
    played.until(lambda: played.condition("Ready") == "True", limit_s=20.0)
    assert played.replicas == 1


def test_the_status_says_which_policy_and_why_and_changes_only_with_the_number() -> None:
    played = created()
    played.wanted = 2
    played.step()
    said = pa_facts(played.pa).condition("ScalingPolicy")
    assert (said.reason, said.message) == ("kpa", "wants 2")
    seen = played.seen()
    later = plan(replace(seen, demand=replace(seen.demand, reason="wants 2, but with other numbers")))
    assert pa_facts({**played.pa, "status": later.status}).condition("ScalingPolicy").message == "wants 2"


def test_unchanged_condition_keeps_its_transition_time() -> None:
    played = created()
    since_s = pa_facts(played.pa).condition("Active").since_s
    played.wanted = 3
    for _ in range(10):
        played.step()
    assert pa_facts(played.pa).condition("Active").since_s == since_s


def test_the_last_pod_does_not_go_under_a_request() -> None:
    played = created(zero_grace_s=2.0)
    played.wanted, played.holds = 0, True
    played.until(lambda: played.condition("Active") == "False")
    for _ in range(30):
        played.step()
    assert played.replicas == 1
    played.holds = False
    played.until(lambda: played.replicas == 0, limit_s=5.0)


def test_pods_that_somebody_else_counts_are_left_alone_and_the_status_says_so() -> None:
    played = created()
    played.wanted = 2
    target = played.seen().target
    assert target is not None
    theirs = replace(played.seen(), conflict="Theirs sets the number.", target=replace(target, replicas=4), ready=4)
    planned = plan(theirs)
    assert (planned.desired_scale, planned.replicas) == (4, None)
    facts = pa_facts({**played.pa, "status": planned.status})
    assert (facts.condition("ScalingPolicy").reason, facts.condition("ScalingPolicy").message) == (
        "ForeignAutoscaler",
        "Theirs sets the number.",
    )
    assert facts.condition("Ready").status == "True"
    none = plan(replace(theirs, target=replace(target, replicas=0), ready=0))
    assert (none.desired_scale, none.replicas) == (0, None)
    assert pa_facts({**played.pa, "status": none.status}).condition("Active").reason == "NoTraffic"
    ours = plan(replace(theirs, pa=facts, conflict=""))
    assert ours.replicas == 2
    assert pa_facts({**played.pa, "status": ours.status}).condition("ScalingPolicy").reason == "kpa"


def test_a_revision_whose_first_pods_somebody_else_counts_has_not_failed_while_there_are_none() -> None:
    """Theirs is enough for it to be ready, also where it says that it is to begin with more."""
    played = Played({ANNOTATION + "initial-scale": "3"})
    played.step()
    played.step()
    target = played.seen().target
    assert target is not None
    theirs = replace(played.seen(), conflict="Theirs.", target=replace(target, replicas=0), ready=0)
    assert pa_facts({**played.pa, "status": plan(theirs).status}).condition("Active").status == "Unknown"
    serves = plan(replace(theirs, target=target, ready=1))
    assert serves.replicas is None
    assert pa_facts({**played.pa, "status": serves.status}).initialized


FIRST, SECOND, THIRD = (CreateShadow(f"f-{number}", Pair(1, (0,), (0, 1))) for number in range(3))


class OneFree:
    """Nodes of which only the second Body's has room for a Shadow."""

    async def create(self, body_id: str, _pair: Pair) -> None:
        if body_id != SECOND.body:
            raise GnomonError(503, "no_capacity", f"No room for a Shadow of {body_id}.")


async def test_partial_decision_is_reported_with_the_refusal() -> None:
    played = Played()
    instances = RevisionInstances(played.facts.key, cluster_of(shadows=OneFree()), policies())
    decision: list[Action] = [FIRST, SECOND, THIRD, CreateBody(1), SetBufferPlan(4, 0.01)]
    with pytest.raises(PartlyRefused, match="No room") as refused:
        await instances.apply(decision, played.rules)
    assert instances.wanted == 1, "a Shadow that is refused holds nothing up"
    assert refused.value.done == (SECOND, CreateBody(1), SetBufferPlan(4, 0.01))
    assert refused.value.message == f"No room for a Shadow of {THIRD.body}."


class RemovedShadows:
    """Nodes that hear whose Bodies have gone."""

    def __init__(self) -> None:
        self.gone: list[str] = []

    def body_gone(self, body_id: str) -> None:
        self.gone.append(body_id)


def test_shadows_end_with_instances_that_are_no_more_and_with_their_revision() -> None:
    """Else a node has them for as long as the pod lives, and the next Revision of this name takes them for its own."""
    played, coordinators = Played(), RemovedShadows()
    instances = RevisionInstances(played.facts.key, cluster_of(shadows=coordinators), policies())
    instances.begin(3)
    instances.begin(1)
    assert coordinators.gone == ["f-00001.users-2", "f-00001.users-3"]
    instances.leave()
    assert coordinators.gone[2:] == ["f-00001.users-1"]
    assert instances.wanted == 1, "its pods are left as they are"


class Full(ScaledRevision):
    """A Revision whose first resize is refused by a quota."""

    resizes = 0

    async def execute(self, step: Step) -> None:
        if isinstance(step, ResizePod):
            self.resizes += 1
            if self.resizes == 1:
                raise GnomonError(403, "kubernetes_refused", "exceeded quota", "Ask for less.")


async def test_refused_resize_is_requested_again_without_another_event() -> None:
    played, clock = Played({"gnomon/cores": "2"}), VirtualClock()
    facts, here = played.facts, pod()
    revision = Full(facts, cluster_of(lambda: facts, pods=lambda _: (here,), clock=clock), policies())
    revision.start()
    try:
        await clock.advance(REFUSED_S - 1.0)
        assert revision.resizes == 1
        await clock.advance(2.0)
        assert revision.resizes >= 2
    finally:
        await revision.close()


def test_missing_volume_is_not_reported_before_the_template_is_known() -> None:
    """An Event `BodiesAlone` of `NoVolume` would stay for an hour, on a Revision that has the volume."""
    played, known = Played(), dict[str, LiveRevision]()
    cluster = cluster_of(revision=lambda key: known.get(key.name), settings=ClusterSettings(csi_volumes=True))
    instances = RevisionInstances(played.facts.key, cluster, policies(makes_shadows=lambda _: True))
    assert instances.shadows(played.rules.settings) is None
    known["f-00001"] = LiveRevision({}, mounted=False)
    said = instances.shadows(played.rules.settings)
    assert said is not None
    assert said.reason == "NoVolume"
