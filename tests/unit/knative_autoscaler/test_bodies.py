"""Which pod each instance of a Revision is, and how large it is to be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gnomon_autoscaler.replica_policy import cost_of_ending
from gnomon_core.fleet import InstanceState
from gnomon_core.settings import Settings
from gnomon_platforms.knative.autoscaler.objects import live_revision, revision_pod
from gnomon_platforms.knative.autoscaler.revision import Bodies
from tests.unit.knative_autoscaler.played import pod

SETTINGS = Settings()


def bodies(count: int) -> Bodies:
    made = Bodies("f-00001.users")
    for _ in range(count):
        made.add()
    return made


def pods_of(made: Bodies) -> dict[str, str | None]:
    """The pod of each, by its name, None for one without."""
    found = {one.id: made.pod_of(one.id) for one in made.instances(SETTINGS, 0.0)}
    return {id_.rpartition("-")[2]: None if has is None else has.name for id_, has in found.items()}


def states(made: Bodies) -> list[InstanceState]:
    return [one.state for one in made.instances(SETTINGS, 0.0)]


def test_as_many_are_ready_as_pods_are() -> None:
    made = bodies(3)
    assert states(made) == [InstanceState.STARTING] * 3
    made.match([pod("a", ready=False), pod("b")])
    # Those that are ready first: the first instances are ready, and one waits for a pod.
    assert pods_of(made) == {"1": "b", "2": "a", "3": None}
    assert states(made) == [InstanceState.READY, InstanceState.STARTING, InstanceState.STARTING]
    made.match([pod("a"), pod("b"), pod("c", ready=False, running=False)])
    assert pods_of(made) == {"1": "b", "2": "a", "3": "c"}
    assert states(made)[:2] == [InstanceState.READY] * 2


def test_an_instance_keeps_its_pod_and_takes_a_free_one_when_that_is_gone() -> None:
    made = bodies(2)
    lost, found = made.match([pod("a"), pod("b")])
    assert (lost, found) == (set(), {"f-00001.users-1", "f-00001.users-2"})
    assert made.match([pod("b"), pod("a")]) == (set(), set())
    assert pods_of(made) == {"1": "a", "2": "b"}
    # The first is let go; the ReplicaSet, which chooses by itself, ends the pod of the second.
    made.remove("f-00001.users-1")
    assert pods_of(made) == {"2": "b"}
    lost, found = made.match([pod("a"), pod("b", ending=True)])
    assert (lost, found) == ({"f-00001.users-2"}, {"f-00001.users-2"})
    assert pods_of(made) == {"2": "a"}
    assert made.of_pod("uid-a") == "f-00001.users-2"
    assert made.of_pod("uid-b") is None
    assert made.match([]) == ({"f-00001.users-2"}, set())


def test_a_pod_that_is_not_ready_is_given_up_for_one_that_is() -> None:
    made = bodies(1)
    made.match([pod("a", ready=False)])
    made.match([pod("a", ready=False), pod("b")])
    assert pods_of(made) == {"1": "b"}
    # Not for another that starts as well.
    made = bodies(1)
    made.match([pod("b", ready=False)])
    made.match([pod("a", ready=False), pod("b", ready=False)])
    assert pods_of(made) == {"1": "b"}


def test_pods_are_resized_to_what_was_asked_for_or_what_their_revision_says() -> None:
    made = bodies(1)
    made.add(4)
    made.match([pod("a"), pod("b", ready=False)])
    assert [(one.name, cores) for one, cores in made.to_resize(None)] == [("b", 4)]
    assert [(one.name, cores) for one, cores in made.to_resize(2)] == [("a", 2), ("b", 4)]
    assert made.to_resize(1)[1:] == []
    # What is asked for later holds from then on, and also where it is what the Revision says.
    made.resize("f-00001.users-1", 3)
    made.resize("f-00001.users-2", 1)
    made.resize("gone", 8)
    assert [(one.name, cores) for one, cores in made.to_resize(2)] == [("a", 3)]


def test_pods_that_are_no_instance_have_what_their_revision_says() -> None:
    """As with `activation-scale: 3`, where the policy wishes for one: all three of them serve."""
    made = bodies(1)
    made.match([pod("a"), pod("b"), pod("c", cores=4.0, effective_cores=4.0)])
    assert [(one.name, cores) for one, cores in made.to_resize(2)] == [("a", 2), ("b", 2)]
    assert not made.to_resize(None)


def test_who_was_given_back_what_its_revision_said_follows_it_to_another_number() -> None:
    made = bodies(2)
    made.match([pod("a"), pod("b")])
    made.follow(2)
    # For a burst both are larger; then the first is as it was.
    for cores in (4, 2):
        made.resize("f-00001.users-1", cores)
    made.resize("f-00001.users-2", 4)
    made.follow(3)
    assert [(one.name, cores) for one, cores in made.to_resize(3)] == [("a", 3), ("b", 4)]


@pytest.mark.parametrize("fields", [{"running": False, "reported": False}, {"reported": False}, {"ending": True}])
def test_no_pod_is_resized_before_its_container_runs_or_when_it_ends(fields: dict[str, Any]) -> None:
    made = bodies(1)
    made.match([pod("a", **fields)])
    assert not made.to_resize(2)


def test_an_instance_has_the_cores_of_its_pod_as_they_are_now() -> None:
    made = bodies(1)
    made.add(4)
    made.match([pod("a", cores=2.0, effective_cores=1.0)])
    of_pod, without = made.instances(replace(SETTINGS, cores=3), 5.0)
    assert (of_pod.cores, of_pod.node, of_pod.started_s) == (1, "node-a", 5.0)
    assert (without.cores, without.node, without.coming_cores) == (4, "", None)
    made.resize(of_pod.id, 2)
    assert made.instance(of_pod.id, SETTINGS, 0.0).coming_cores == 2
    # A share of a core is no number of them: then the Revision says how many it counts for.
    made = bodies(1)
    made.match([pod("a", cores=0.5, effective_cores=0.5)])
    assert made.instances(replace(SETTINGS, cores=3), 0.0)[0].cores == 3


def test_a_pods_cores_are_those_of_the_container_that_requests_come_to() -> None:
    container = {
        "name": "user",
        "ports": [{"containerPort": 8080}],
        "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
    }
    document: dict[str, Any] = {
        "metadata": {"name": "a", "namespace": "users", "uid": "u", "resourceVersion": "7"},
        "spec": {"nodeName": "node-a", "containers": [{"name": "helper"}, {"name": "queue-proxy", "ports": [{}]}, container]},
        "status": {"phase": "Running"},
    }
    read = revision_pod(document)
    assert (read.container, read.cores, read.effective_cores, read.limited) == ("user", 2.0, 0.0, True)
    assert not read.resizable
    document["status"]["containerStatuses"] = [{"name": "user", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}]
    read = revision_pod(document)
    assert (read.effective_cores, read.resizable, read.resizing) == (1.0, True, True)
    pending = {
        "type": "PodResizePending",
        "status": "True",
        "reason": "Infeasible",
        "message": "Node didn't have enough capacity",
    }
    document["status"]["conditions"] = [pending]
    assert revision_pod(document).trouble == "resize Infeasible: Node didn't have enough capacity"
    assert not revision_pod(document).resizing


def test_of_equals_the_youngest_pod_is_let_go_as_its_replica_set_does_it() -> None:
    """Else the one loses its instance and the other its pod, and both lose their Shadows."""
    made = bodies(3)
    made.match([pod("a", created_at=100.0), pod("b", created_at=200.0), pod("c", created_at=300.0)])
    first = min(made.instances(SETTINGS, 1000.0), key=cost_of_ending)
    held = made.pod_of(first.id)
    assert held is not None
    assert (held.name, first.started_s) == ("c", 1000.0)


def test_a_revision_says_whether_its_pods_have_the_volume() -> None:
    document: dict[str, Any] = {"metadata": {"annotations": {"gnomon/cores": "2", "of": "users"}}}
    assert live_revision(document).annotations == {"gnomon/cores": "2"}
    assert not live_revision(document).mounted
    document["spec"] = {"volumes": [{"name": "x", "emptyDir": {}}, {"name": "c", "csi": {"driver": "other"}}]}
    assert not live_revision(document).mounted
    document["spec"]["volumes"].append({"name": "coordinator", "csi": {"driver": "node.gnomon", "readOnly": True}})
    assert live_revision(document).mounted


def test_there_may_be_more_or_fewer_than_were_wished_for() -> None:
    made = bodies(3)
    made.match([pod("a"), pod("b"), pod("c")])
    made.become(1)
    assert pods_of(made) == {"1": "a"}
    made.become(2)
    made.match([pod("a"), pod("b")])
    assert pods_of(made) == {"1": "a", "4": "b"}
