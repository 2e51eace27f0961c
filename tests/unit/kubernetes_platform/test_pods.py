"""Pods: what is read of them, the nodes that they may be on, their cores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import aiohttp
import pytest

from gnomon_core.clock import WallClock
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import read_deployment
from gnomon_core.interfaces import InstanceRequest
from gnomon_platforms.common import starting
from gnomon_platforms.knative.autoscaler.objects import live_revision
from gnomon_platforms.kubernetes import reconciler
from gnomon_platforms.kubernetes.informer import Change
from gnomon_platforms.kubernetes.nodes import Load, NodeFacts, admits_pod, node_facts
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
from gnomon_platforms.kubernetes.objects.placing import placing_of, read_constraints
from gnomon_platforms.kubernetes.objects.pods import pod_facts
from gnomon_platforms.kubernetes.resources import REFUSED_S
from gnomon_platforms.openfaas.planning import Resize, Step
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from gnomon_platforms.openfaas.workloads import Workload
from tests.platform_testing import Recorder
from tests.pod_process import PodProcess, pod_process
from tests.unit.kubernetes_platform.small_cluster import FakeCluster, deployed, running
from tests.waiting import until


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


def test_a_pod_that_no_node_has_room_for_is_unschedulable() -> None:
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}
    waiting = document(phase="Pending", conditions=[refused])
    del waiting["spec"]["nodeName"]
    assert pod_facts(waiting).unschedulable
    assert not pod_facts(document(phase="Pending")).unschedulable


TAINT = {"key": "dedicated", "value": "vision", "effect": "NoSchedule"}


def node(name: str = "n1", *, taints: tuple[dict[str, str], ...] = (), **labels: str) -> dict[str, Any]:
    status = {"allocatable": {"cpu": "4", "memory": "8Gi"}, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"taints": list(taints)}, "status": status}


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


@pytest.mark.parametrize(
    ("spec", "taken"),
    [
        ({}, True),
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "a", "disk": "ssd"}}, False),
        (affinity({"matchExpressions": [expression("zone", "In", "a", "b")]}), True),
        (affinity({"matchExpressions": [expression("zone", "In", "b")]}), False),
        (affinity({"matchExpressions": [expression("zone", "NotIn", "a")]}), False),
        (affinity({"matchExpressions": [expression("disk", "NotIn", "hdd")]}), True),
        (affinity({"matchExpressions": [expression("zone", "Exists"), expression("disk", "DoesNotExist")]}), True),
        (affinity({"matchExpressions": [expression("zone", "DoesNotExist")]}), False),
        (affinity({"matchExpressions": [expression("cpus", "Gt", "31"), expression("cpus", "Lt", "33")]}), True),
        (affinity({"matchExpressions": [expression("cpus", "Gt", "32")]}), False),
        (affinity({"matchExpressions": [expression("zone", "Gt", "1")]}), False),
        # All expressions of any one of the terms; a term that says nothing is met by nobody.
        (
            affinity({"matchExpressions": [expression("zone", "In", "b")]}, {"matchExpressions": [expression("cpus", "Exists")]}),
            True,
        ),
        (affinity({"matchExpressions": [expression("zone", "In", "b"), expression("cpus", "Exists")]}), False),
        (affinity({}), False),
        (affinity({"matchFields": [expression("metadata.name", "In", "n1")]}), True),
        (affinity({"matchFields": [expression("metadata.name", "In", "n2")]}), False),
        # Whatever a pod would rather have, it may be elsewhere.
        ({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}}, True),
    ],
)
def test_a_nodes_labels_are_those_that_the_pod_wants(spec: dict[str, Any], taken: bool) -> None:  # noqa: FBT001 - a table's column
    assert admits_pod(node_facts(node(zone="a", cpus="32")), placing_of(spec)) is taken


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "dedicated", "operator": "Exists"}, True),
        ({"key": "dedicated", "value": "vision"}, True),
        ({"key": "dedicated", "operator": "Equal", "value": "vision", "effect": "NoSchedule"}, True),
        ({"key": "dedicated", "operator": "Equal", "value": "speech"}, False),
        ({"key": "dedicated", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}, False),
        ({"key": "dedicated"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_a_pod_tolerates_what_it_says(toleration: dict[str, Any], tolerated: bool) -> None:  # noqa: FBT001 - a table's column
    facts = node_facts(node(taints=(TAINT,)))
    assert admits_pod(facts, placing_of({"tolerations": [toleration]})) is tolerated
    assert not admits_pod(facts, placing_of({}))


def test_constraints_mean_what_the_pods_that_come_of_them_say() -> None:
    read = read_constraints(["zone=a", "disk!=hdd", "arch!=arm64", "tolerate:dedicated=vision:NoSchedule"])
    assert placing_of(read.fields()) == read


def test_a_revision_says_of_nodes_what_its_pods_say() -> None:
    spec = {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "dedicated", "operator": "Exists"}]}
    assert live_revision({"metadata": {}, "spec": spec}).placing == placing_of(spec)
    assert live_revision({"metadata": {}}).placing == placing_of({})


SPEC = read_deployment({"service": "figlet", "image": "figlet:1", "annotations": {"gnomon/cores": "1"}})
QUOTA = GnomonError(503, "kubernetes_denied", "exceeded quota: small", "Raise the quota.")
BUSY = GnomonError(503, "kubernetes_busy", "too many requests", "Try again in a moment.")


class Clock(WallClock):
    """A clock that a test moves on."""

    moved_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.moved_s


class Refusing:
    """Steps: pods get no other cores."""

    def __init__(self, refusal: GnomonError) -> None:
        self.refusal, self.asked = refusal, list[int]()

    async def take(self, step: Step, spec: object, version: int, deployed: object = None) -> int | None:
        del spec, version, deployed
        if isinstance(step, Resize):
            self.asked.append(step.cores)
            raise self.refusal
        return None

    def furnished(self, deployed: object) -> bool:
        del deployed
        return True

    async def token(self, deployed: object) -> str:
        del deployed
        return "t0ken"


class Stage:
    """A function of one pod on a node of four cores."""

    def __init__(self, refusal: GnomonError, has: int, wanted: int, session: aiohttp.ClientSession) -> None:
        self.clock, self.steps, self.listener = Clock(), Refusing(refusal), Recorder()
        self.platform = platform = OpenFaasPlatform(cast("Any", None))
        platform._cluster.writer.close()
        self.pod = replace(running("p1", "a", cores=float(has), effective_cores=float(has)), ip="127.0.0.1")
        self.deployed: DeployedFunction | None = deployed(1)
        self.cluster = FakeCluster(lambda: self.deployed, lambda: (self.pod,), session=session, clock=self.clock)
        platform._listener, platform._cluster = self.listener, cast("Any", self.cluster)
        self.cluster.capacity.node_changed(Change(("", "n1"), None, NodeFacts("n1", 4.0, 2**34, usable=True)))
        self.cluster.capacity.load_changed(Change(("fn", "p1"), None, Load("n1", float(has), 0, ended=False)))
        workload = platform._workloads[str(SPEC.key)] = Workload(SPEC.key, cast("Any", self.steps), cast("Any", self.cluster))
        workload.start()
        request = InstanceRequest(SPEC, 1, wanted, None, {})
        workload.add(platform._record(starting("a", request, "", 0, 0.0), request))
        workload.pod_changed(replace(self.pod, phase="Pending", healthy=False), "p1")
        workload.pod_changed(self.pod, "p1")

    @property
    def instance(self) -> Instance:
        [found] = self.platform.instances(str(SPEC.key))
        return found

    @property
    def cores(self) -> tuple[int, int | None]:
        """Present cores, and those of a pending resize."""
        return self.instance.cores, self.instance.coming_cores


@pytest.fixture
async def process(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PodProcess]:
    async with pod_process(monkeypatch) as served:
        monkeypatch.setattr(reconciler, "FIRST_BACKOFF_S", 0.01)
        monkeypatch.setattr(reconciler, "LONGEST_BACKOFF_S", 0.01)
        yield served


@asynccontextmanager
async def begun(refusal: GnomonError, *, has: int, wanted: int) -> AsyncIterator[Stage]:
    async with aiohttp.ClientSession() as session:
        stage = Stage(refusal, has, wanted, session)
        try:
            await stage.listener.channel("a")
            yield stage
        finally:
            for workload in stage.platform._workloads.values():
                await workload.close()


async def test_removed_function_leaves_nothing_behind_when_its_last_pod_has_ended(process: PodProcess) -> None:
    """The Deployment goes first, and its pods end after that."""
    async with begun(BUSY, has=1, wanted=1) as stage:
        before, stage.deployed = stage.deployed, None
        await stage.platform.destroy("a")
        stage.platform._deployment_changed(Change((SPEC.key.namespace, SPEC.key.name), before, None))
        [workload] = stage.platform._workloads.values()
        workload.pod_changed(None, "p1")
        assert await stage.listener.reason("a") == "stopped"
        await stage.cluster.background.settled()
        assert stage.platform._workloads == {}
    assert process.threads == []


async def test_refused_cores_are_neither_pending_nor_reserved(process: PodProcess) -> None:
    async with begun(QUOTA, has=1, wanted=1) as stage:
        await stage.platform.resize("a", 3)
        assert stage.cores == (1, 3), "they are on their way"
        await until(lambda: stage.cluster.warned)
        assert stage.cores == (1, None), "nobody is about to give them"
        assert "exceeded quota" in stage.cluster.warned["ResizePending"]
        with pytest.raises(GnomonError, match="exceeded quota"):
            await stage.platform.resize("a", 3)
        # Another size is another question, and the same one is asked again when its time is over.
        await stage.platform.resize("a", 2)
        await until(lambda: stage.steps.asked == [3, 2])
        stage.clock.moved_s += REFUSED_S + 1.0
        await stage.platform.resize("a", 3)
        await until(lambda: stage.steps.asked == [3, 2, 3])
    assert process.threads == []


async def test_process_uses_all_its_cores_again_after_a_refused_resize(process: PodProcess) -> None:
    async with begun(QUOTA, has=3, wanted=3) as stage:
        process.threads.clear()
        await stage.platform.resize("a", 1)
        await until(lambda: process.threads == [1, 3])
        assert stage.cores == (3, None)


async def test_instance_starts_with_the_cores_of_its_pod(process: PodProcess) -> None:
    async with begun(QUOTA, has=1, wanted=3) as stage:
        assert stage.steps.asked == [3]
        assert stage.listener.ready["a"].cores == 1
        assert stage.cores == (1, None)
    assert process.threads == []


async def test_instance_uses_cores_that_arrive_late(process: PodProcess) -> None:
    """Threads come first. Before its pod could be resized it was to keep what it has."""
    async with begun(BUSY, has=3, wanted=3) as stage:
        await stage.platform.resize("a", 1)
        await until(lambda: stage.steps.asked)
        assert process.threads[-1] == 1
        await stage.platform.resize("a", 3)
        await until(lambda: process.threads[-1] == 3)
        assert stage.cores == (3, None)


async def test_deferred_resize_is_retried(process: PodProcess) -> None:
    async with begun(BUSY, has=1, wanted=1) as stage:
        await stage.platform.resize("a", 3)
        await until(lambda: stage.steps.asked[:3] == [3, 3, 3])
        assert stage.cores == (1, 3)
    assert process.threads == []


async def test_more_cores_than_its_node_has_are_refused(process: PodProcess) -> None:
    async with begun(BUSY, has=1, wanted=1) as stage:
        with pytest.raises(GnomonError) as refused:
            await stage.platform.resize("a", 5)
        assert (refused.value.code, stage.cores) == ("no_capacity", (1, None))
    assert process.threads == []
