"""The next steps for a function. A small simulated cluster carries plans out, in any order and at any speed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gnomon_platforms.kubernetes.objects.pods import ENDED_PHASES
from gnomon_platforms.openfaas.planning import (
    VICTIM_COST,
    Bind,
    Deploy,
    Desired,
    Furnish,
    Kept,
    Mark,
    Remove,
    Resize,
    Scale,
    SetUnavailable,
    Waiting,
    Withdraw,
    plan,
)
from tests.unit.kubernetes_platform.small_cluster import SmallCluster, deployed, pending, running

SERVING = Kept(serving=True)


def waiting(*ids: str) -> tuple[Waiting, ...]:
    return tuple(Waiting(instance_id) for instance_id in ids)


def test_first_instance_creates_the_deployment() -> None:
    assert plan(None, [], Desired(1)) == ()
    assert plan(None, [], Desired(1, waiting("a", "b"))) == (Deploy(2),)


def test_replicas_follow_the_instances_and_are_written_once() -> None:
    desired = Desired(1, waiting("b", "c"), {"p1": SERVING})
    assert plan(deployed(1), [running("p1", "a")], desired) == (Scale(3),)
    # The ReplicaSet has created nothing yet.
    assert plan(deployed(3), [running("p1", "a")], desired) == ()


def test_pods_are_bound_before_they_have_a_node() -> None:
    pods = [running("p1", "a"), pending("p2"), pending("p3")]
    desired = Desired(1, waiting("b", "c"), {"p1": SERVING})
    assert plan(deployed(3), pods, desired) == (Bind(pods[1], "b"), Bind(pods[2], "c"))


def test_a_ready_pod_is_bound_before_one_that_starts() -> None:
    pods = [pending("p1", created_at=1.0), pending("p2", node="n1", created_at=2.0), running("p3", None, created_at=3.0)]
    steps = plan(deployed(3), pods, Desired(1, waiting("a", "b", "c")))
    assert [step.pod.name for step in steps if isinstance(step, Bind)] == ["p3", "p2", "p1"]


def test_a_binding_that_is_not_observed_yet_is_repeated_and_given_to_nobody_else() -> None:
    desired = Desired(1, (Waiting("a"), Waiting("b", bound="p1")))
    assert plan(deployed(2), [pending("p1"), pending("p2")], desired) == (Bind(pending("p2"), "a"), Bind(pending("p1"), "b"))


def test_pods_without_an_instance_wait_for_the_dependents_of_the_deployment() -> None:
    desired = Desired(1, waiting("a", "b"), furnished=False)
    assert plan(deployed(1), [pending("p1")], desired) == (Furnish(), Scale(2))


def test_a_running_pod_gets_its_cores_in_place() -> None:
    pod = running("p1", "a")
    assert plan(deployed(1), [pod], Desired(1, kept={"p1": Kept(2)})) == (Resize(pod, 2),)
    assert plan(deployed(1), [pod], Desired(1, kept={"p1": Kept(1)})) == ()
    assert plan(deployed(1), [pending("p1", "a")], Desired(1, kept={"p1": Kept(2)})) == ()


def test_a_victim_is_marked_before_the_deployment_is_scaled_down() -> None:
    kept, victim = running("p1", "a"), running("p2", "b")
    desired = Desired(1, kept={"p1": SERVING}, released=frozenset({"p2"}))
    assert plan(deployed(2), [kept, victim], desired) == (Mark(victim),)
    marked = replace(victim, deletion_cost=VICTIM_COST)
    assert plan(deployed(2), [kept, marked], desired) == (Scale(1),)
    assert plan(deployed(1), [kept, marked], desired) == (), "the ReplicaSet removes it"
    assert plan(deployed(1), [kept, replace(marked, ending=True)], desired) == ()


def test_no_scale_down_while_a_serving_pod_is_unready() -> None:
    """The ReplicaSet would remove it before the victim."""
    pods = [running("p1", "a", ready=False), running("p2", "b", deletion_cost=VICTIM_COST)]
    desired = Desired(1, kept={"p1": SERVING}, released=frozenset({"p2"}))
    assert plan(deployed(2), pods, desired) == ()
    # One that still starts may go in place of the victim: its instance takes another.
    assert plan(deployed(2), pods, replace(desired, kept={"p1": Kept()})) == (Scale(1),)


def test_a_victim_whose_place_another_instance_takes_is_deleted_by_its_uid() -> None:
    victim = running("p1", "a", deletion_cost=VICTIM_COST)
    desired = Desired(1, waiting("b"), released=frozenset({"p1"}))
    assert plan(deployed(1), [victim], desired) == (Remove(victim),)
    assert plan(deployed(1), [replace(victim, ending=True), pending("p2")], desired) == (Bind(pending("p2"), "b"),)


def test_pod_of_a_lost_instance_is_replaced() -> None:
    """The place of the lost instance is kept until the policy has decided again."""
    lost, other = running("p1", "a"), running("p2", "b")
    desired = Desired(1, kept={"p2": SERVING}, released=frozenset({"p1"}), vacancies=1)
    assert plan(deployed(2), [lost, other], desired) == (Remove(lost),)
    assert plan(deployed(2), [other, pending("p3")], replace(desired, released=frozenset())) == ()
    # The policy wants no other instance.
    assert plan(deployed(2), [other, pending("p3")], Desired(1, kept={"p2": SERVING})) == (Scale(1),)


def test_no_pod_is_bound_while_the_replica_set_removes_some() -> None:
    desired = Desired(1, waiting("a"))
    assert plan(deployed(0), [pending("p1")], desired) == (Scale(1),)
    assert plan(deployed(1), [pending("p1")], desired) == (Bind(pending("p1"), "a"),)


def test_pods_without_room_stay_as_they_are() -> None:
    """Pending pods are what a cluster autoscaler acts on."""
    pods = [running("p1", "a"), pending("p2", "b", trouble="Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.")]
    assert plan(deployed(2), pods, Desired(1, kept={"p1": SERVING, "p2": Kept()})) == ()


def test_an_update_changes_the_template_and_keeps_as_many_replicas_as_serve() -> None:
    old = [running("p1", "a"), running("p2", "b")]
    desired = Desired(2, waiting("c"), {"p1": SERVING, "p2": SERVING})
    assert plan(deployed(2), old, desired) == (Deploy(2),)
    # The rolling update creates a new pod, and removes old ones when it is ready.
    new = pending("p3", version=2)
    assert plan(deployed(2, 2), [*old, new], desired) == (Bind(new, "c"),)
    serving = running("p3", "c", version=2)
    left = Desired(2, kept={"p1": SERVING, "p3": SERVING}, released=frozenset({"p2"}))
    assert plan(deployed(2, 2), [*old, serving], left) == (Mark(old[1]),)


def test_an_old_pod_makes_room_for_an_update_that_has_had_none_for_long() -> None:
    old, new = running("p1", "a"), pending("p2", "b", version=2)
    desired = Desired(2, kept={"p1": SERVING, "p2": Kept()})
    assert plan(deployed(1, 2), [old, new], desired) == ()
    assert plan(deployed(1, 2), [old, new], replace(desired, blocked=True)) == (SetUnavailable(1),)
    yielding = replace(deployed(1, 2), max_unavailable=1)
    assert plan(yielding, [old, new], desired) == (), "until all pods have the template"
    assert plan(yielding, [new], Desired(2, kept={"p2": Kept()})) == (SetUnavailable(0),)


def test_pods_of_an_earlier_process_are_kept_while_instances_are_adopted() -> None:
    left = running("p1", "of an earlier process")
    assert plan(deployed(1), [left], Desired(1, adopting=True)) == ()
    assert plan(deployed(1), [left], Desired(1, waiting("a"), adopting=True)) == (Bind(left, "a"),)
    assert plan(deployed(1), [left], Desired(1)) == (Mark(left),)


def test_replicas_that_kubectl_scale_has_added_are_removed_also_while_instances_are_adopted() -> None:
    served, added = running("p1", "a"), [pending("p2"), running("p3", None)]
    for adopting in (False, True):
        assert plan(deployed(3), [served, *added], Desired(1, kept={"p1": SERVING}, adopting=adopting)) == (Scale(1),)


@pytest.mark.parametrize("phase", ENDED_PHASES)
def test_a_pod_that_has_ended_by_itself_is_deleted(phase: str) -> None:
    """The kubelet evicts a pod, or refuses one. A ReplicaSet creates another, but never deletes it."""
    evicted = running("p1", "a", phase=phase, healthy=False, ready=False)
    desired = Desired(1, waiting("a"))
    assert plan(deployed(1), [evicted, pending("p2")], desired) == (Remove(evicted), Bind(pending("p2"), "a"))
    # Its instance has ended, and its place is kept until the policy has decided again.
    assert plan(deployed(1), [evicted, pending("p2")], Desired(1, vacancies=1)) == (Remove(evicted),)
    assert plan(deployed(1), [replace(evicted, ending=True)], Desired(1, vacancies=1)) == ()


def test_a_removed_function_goes_when_no_instance_is_left() -> None:
    removed = replace(deployed(1), removed=True)
    assert plan(removed, [running("p1", "a")], Desired(1, kept={"p1": SERVING})) == ()
    assert plan(removed, [running("p1", "a")], Desired(1, released=frozenset({"p1"}))) == (Withdraw(),)


class Function:
    """The instances of a function, and the plans for them."""

    def __init__(self, cluster: SmallCluster) -> None:
        self.cluster, self.version = cluster, 1
        self.instances: dict[str, int] = {}
        """The version of each."""
        self.served: set[str] = set()
        self.released: set[str] = set()

    def desired(self) -> Desired:
        pods = self.cluster.pods.values()
        for pod in pods:
            if pod.ending and pod.instance in self.served:
                self.instances.pop(pod.instance, None)
        bound = {pod.instance: pod for pod in pods if not pod.ending and pod.instance in self.instances}
        self.served |= {instance for instance, pod in bound.items() if pod.ready and instance is not None}
        kept = {pod.name: Kept(serving=pod.ready) for pod in bound.values()}
        released = {pod.name for pod in pods if pod.instance and pod.instance not in self.instances}
        return Desired(
            self.version, waiting(*(instance for instance in self.instances if instance not in bound)), kept, frozenset(released)
        )

    def step(self) -> None:
        steps = list(plan(self.cluster.deployed, self.cluster.pods.values(), self.desired()))
        self.cluster.rng.shuffle(steps)
        for step in steps:
            if self.cluster.rng.random() < 0.8:
                self.cluster.carry_out(step, self.version)


@pytest.mark.parametrize("seed", range(40))
def test_scaling_up_and_down_ends_with_the_desired_pods_and_removes_no_serving_one(seed: int) -> None:
    rng = random.Random(seed)
    cluster = SmallCluster(rng)
    function = Function(cluster)
    for number in range(40):
        if function.instances and rng.random() < 0.45:
            function.instances.pop(rng.choice(list(function.instances)))
        else:
            function.instances[f"i{number}"] = 1
        for _ in range(rng.randrange(12)):
            cluster.tick()
            function.step()
        serving = {pod.instance for pod in cluster.removed if pod.ready}
        assert not serving & set(function.instances), "a pod was removed whose instance was to stay"
        cluster.removed.clear()
    for _ in range(2000):
        cluster.tick()
        function.step()
    owners = sorted(pod.instance or "" for pod in cluster.pods.values())
    assert owners == sorted(function.instances)
    assert all(pod.ready for pod in cluster.pods.values())


@pytest.mark.parametrize("seed", range(20))
def test_an_update_keeps_as_many_pods_ready_as_served_before(seed: int) -> None:
    rng = random.Random(seed)
    cluster = SmallCluster(rng)
    function = Function(cluster)
    number = rng.randrange(1, 7)
    function.instances = {f"old{index}": 1 for index in range(number)}
    for _ in range(1000):
        cluster.tick()
        function.step()
    assert sum(pod.ready for pod in cluster.pods.values()) == number
    function.version = 2
    function.instances |= {f"new{index}": 2 for index in range(number)}
    for _ in range(3000):
        cluster.tick()
        # As the gateway does: an old instance goes for each new one that is ready.
        ready = sum(instance.startswith("new") for instance in function.served)
        for old in [instance for instance in function.instances if instance.startswith("old")][
            : max(0, ready - _gone(function, number))
        ]:
            function.instances.pop(old)
        function.step()
        assert sum(pod.ready and not pod.ending for pod in cluster.pods.values()) >= number
    assert sorted(pod.instance or "" for pod in cluster.pods.values()) == sorted(f"new{index}" for index in range(number))


def _gone(function: Function, number: int) -> int:
    return number - sum(instance.startswith("old") for instance in function.instances)


@pytest.mark.parametrize("seed", range(10))
def test_pods_beyond_the_room_are_pending_until_there_is_room(seed: int) -> None:
    cluster = SmallCluster(random.Random(seed), max_pods=2)
    function = Function(cluster)
    function.instances = {f"i{number}": 1 for number in range(5)}
    for _ in range(1000):
        cluster.tick()
        function.step()
    assert sum(pod.ready for pod in cluster.pods.values()) == 2
    assert sum(pod.unschedulable for pod in cluster.pods.values()) == 3
    cluster.max_pods = 5
    for _ in range(1000):
        cluster.tick()
        function.step()
    assert sum(pod.ready for pod in cluster.pods.values()) == 5
