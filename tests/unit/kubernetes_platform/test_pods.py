"""What is read of a pod, and whom a ReplicaSet removes next."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.fleet import InstanceState
from gnomon_platforms.kubernetes.objects.pods import PodFacts, pod_facts
from gnomon_platforms.openfaas.planning import VICTIM_COST, rank, removable


def document(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "figlet-1-a",
            "namespace": "openfaas-fn",
            "uid": "u-1",
            "resourceVersion": "5",
            "creationTimestamp": "2026-11-21T10:00:00Z",
            "labels": {"faas_function": "figlet", "gnomon/managed": "true", "gnomon/version": "4"},
        },
        "spec": {
            "nodeName": "n1",
            "containers": [
                {"name": "sidecar", "resources": {"limits": {"cpu": "9"}}},
                {"name": "figlet", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "64Mi"}}},
            ],
        },
        "status": status,
    }


def ready(**more: Any) -> dict[str, Any]:
    conditions = [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": "True"}]
    return document(phase="Running", podIP="10.0.0.7", conditions=conditions, **more)


def test_a_pod_is_read_by_its_own_container_among_others() -> None:
    facts = pod_facts(ready(containerStatuses=[{"name": "figlet", "resources": {"limits": {"cpu": "500m"}}, "restartCount": 2}]))
    assert (str(facts.key), facts.version, facts.node, facts.ip) == ("figlet.openfaas-fn", 4, "n1", "10.0.0.7")
    assert (facts.cores, facts.effective_cores, facts.memory_bytes, facts.restarts) == (2.0, 0.5, 64 * 2**20, 2)
    assert (facts.created_at, facts.instance) == (1795255200.0, None)


def test_states() -> None:
    assert pod_facts(document()).state is InstanceState.STARTING
    assert pod_facts(ready()).state is InstanceState.READY
    assert pod_facts(document(phase="Failed")).state is InstanceState.GONE
    ending = ready()
    ending["metadata"]["deletionTimestamp"] = "2026-11-21T10:01:00Z"
    assert pod_facts(ending).state is InstanceState.DRAINING


def test_a_gated_pod_is_not_in_trouble() -> None:
    waiting = document(phase="Pending", conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}])
    waiting["spec"] |= {"schedulingGates": [{"name": "gnomon/placement"}], "nodeName": None}
    facts = pod_facts(waiting)
    assert facts.gated
    assert facts.trouble == ""


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"containerStatuses": [{"name": "figlet", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "unknown"}}}]},
         "ImagePullBackOff: unknown"),
        ({"containerStatuses": [{"name": "figlet", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}, "CrashLoopBackOff"),
        ({"containerStatuses": [{"name": "figlet", "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]},
         "OOMKilled with exit code 137"),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "Evicted: low on memory"),
        ({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]},
         "Unschedulable: 0/1 nodes"),
        ({"conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible", "message": "too large"}]},
         "resize Infeasible: too large"),
        ({"containerStatuses": [{"name": "figlet", "state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
    ],
)  # fmt: skip
def test_trouble_is_told_in_kubernetes_words(status: dict[str, Any], said: str) -> None:
    assert pod_facts(document(**status)).trouble == said


def a_pod(name: str, **fields: Any) -> PodFacts:
    return replace(pod_facts(ready()), name=name, **fields)


def test_a_cheap_unready_victim_goes_before_ready_pods() -> None:
    pods = [a_pod("a"), a_pod("b", ready=False, deletion_cost=VICTIM_COST), a_pod("c")]
    assert removable(pods, {"b"}) == 1


def test_nothing_is_lowered_while_a_pending_pod_would_go_in_the_victims_place() -> None:
    pods = [a_pod("a"), a_pod("victim", ready=False, deletion_cost=VICTIM_COST), a_pod("starting", phase="Pending", ready=False)]
    assert removable(pods, {"victim"}) == 0
    # It has a node and runs, but is not ready yet: only the cost tells them apart.
    pods[2] = a_pod("starting", ready=False)
    assert removable(pods, {"victim"}) == 1


def test_pods_that_cannot_be_told_apart_hold_each_other() -> None:
    gated = [a_pod(name, node=None, phase="Pending", ready=False, gated=True) for name in ("spare", "wanted")]
    assert removable(gated, {"spare"}) == 0
    assert removable(gated, {"spare", "wanted"}) == 2


def test_pods_that_a_replica_set_does_not_count_change_nothing() -> None:
    pods = [a_pod("victim", ready=False, deletion_cost=VICTIM_COST)]
    pods += [a_pod("ending", ending=True, ready=False, phase="Pending"), a_pod("released", released=True, phase="Pending")]
    assert removable(pods, {"victim"}) == 1


PODS = st.builds(
    lambda name, node, phase, ready, cost: a_pod(name, node=node, phase=phase, ready=ready, deletion_cost=cost),
    st.uuids().map(str),
    st.sampled_from([None, "n1"]),
    st.sampled_from(["Pending", "Running"]),
    st.booleans(),
    st.sampled_from([0, VICTIM_COST]),
)


def test_a_victim_that_may_start_before_the_number_is_lowered_waits_for_one_that_may_not() -> None:
    # Now it would go first, for it has no node; once it runs, the other, which still pulls its image, would.
    victim = a_pod("victim", node=None, phase="Pending", ready=False, deletion_cost=VICTIM_COST)
    assert removable([victim, a_pod("pulling", phase="Pending", ready=False)], {"victim"}) == 0


def test_a_victim_that_is_still_seen_ready_waits() -> None:
    assert removable([a_pod("victim", deletion_cost=VICTIM_COST), a_pod("other")], {"victim"}) == 0


@given(st.lists(PODS, max_size=7), st.randoms(use_true_random=False), st.data())
def test_whatever_a_replica_set_picks_among_equals_only_victims_go(
    pods: list[PodFacts], chance: Any, data: st.DataObject
) -> None:
    victims = set(data.draw(st.lists(st.sampled_from([pod.name for pod in pods]), unique=True))) if pods else set()
    number = removable(pods, victims)
    chance.shuffle(pods)
    assert {pod.name for pod in sorted(pods, key=rank)[:number]} <= victims
