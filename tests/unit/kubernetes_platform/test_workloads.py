"""Deployments, their pods and namespaces as the platform reads them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from typing import Any, cast

import aiohttp
import pytest

from gnomon_core.background import Background
from gnomon_core.clock import rfc3339
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, read_deployment
from gnomon_core.interfaces import InstanceRequest, StoredNamespace
from gnomon_platforms.common import starting
from gnomon_platforms.kubernetes.channel import HttpChannel
from gnomon_platforms.kubernetes.events import AGAIN_S, EventRecorder
from gnomon_platforms.kubernetes.objects.functions import deployed_function
from gnomon_platforms.kubernetes.objects.manifests import changed_metadata, deployment
from gnomon_platforms.kubernetes.objects.pods import PodFacts
from gnomon_platforms.kubernetes.writes import Create, Patch
from gnomon_platforms.openfaas.planning import Furnish, Step
from gnomon_platforms.openfaas.store import StoredNamespaces, marked, stored_namespace, unmarked
from gnomon_platforms.openfaas.workloads import InstanceRecord, Workload
from tests.platform_testing import Recorder
from tests.unit.kubernetes_platform.small_cluster import OPTIONS, SPEC, FakeCluster, deployed, pending, spec_of
from tests.virtual_clock import VirtualClock


class Written:
    """Steps that are executed at once. What a function needs beside its Deployment is created, or refused."""

    def __init__(self, refusal: GnomonError | None = None) -> None:
        self.refusal = refusal

    async def take(self, step: Step, spec: object, version: int, deployed: object = None) -> int | None:
        del spec, version, deployed
        if isinstance(step, Furnish) and self.refusal is not None:
            raise self.refusal
        return None

    def furnished(self, deployed: object) -> bool:
        del deployed
        return self.refusal is None


class Stage:
    """An instance of a function whose Deployment and pods a test sets."""

    def __init__(self, written: Written | None = None, *, timeout_s: float = 1e6) -> None:
        self.deployed, self.pods, self.listener = deployed(1), list[PodFacts](), Recorder()
        self.cluster = FakeCluster(lambda: self.deployed, lambda: self.pods, start_timeout_s=timeout_s)
        self.workload = Workload(SPEC.key, cast("Any", written or Written()), cast("Any", self.cluster))
        request = InstanceRequest(SPEC, 1, 1, None, {})
        self.record = InstanceRecord(starting("a", request, "", 0, 0.0), request, self.listener, self.workload.forget)
        self.workload.add(self.record)

    async def observe(self, *pods: PodFacts) -> None:
        """Pods change, one after the other, and the reconciler plans."""
        for pod in pods:
            self.pods = [pod]
            self.workload.pod_changed(pod, pod.name)
        self.workload.start()
        for _ in range(20):
            await asyncio.sleep(0)
        await self.workload.close()


@pytest.mark.parametrize("trouble", ["Unschedulable: 0/3 nodes are available: 3 Insufficient cpu.", ""])
async def test_an_instance_without_room_goes_on_starting(trouble: str) -> None:
    """A cluster autoscaler may take minutes to add a node; the scaling policy decides how long the instance is wanted."""
    stage = Stage(timeout_s=0.0)
    await stage.observe(pending("p1", "a", trouble=trouble))
    assert stage.listener.gone == {}
    assert stage.cluster.warned == ({"NoCapacity": f"p1: {trouble}"} if trouble else {})


async def test_an_instance_that_does_not_become_ready_on_its_node_fails_with_the_reason() -> None:
    stage = Stage(timeout_s=-1.0)
    await stage.observe(pending("p1", "a", node="n1", trouble="ErrImagePull: not found"))
    assert stage.listener.gone["a"].endswith("ErrImagePull: not found")
    assert "ErrImagePull" in stage.cluster.warned["StartFailed"]


@pytest.mark.parametrize(("status", "code"), [(400, "kubernetes_invalid"), (503, "kubernetes_denied")])
async def test_refused_object_fails_the_deployment_at_once(status: int, code: str) -> None:
    refusal = GnomonError(status, code, "services is forbidden: exceeded quota: small", "Ask for more.")
    stage = Stage(Written(refusal))
    await stage.observe(pending("p1"))
    assert "exceeded quota: small" in stage.listener.gone["a"]
    assert "exceeded quota: small" in stage.cluster.warned["StartFailed"]


@pytest.mark.parametrize(
    "after",
    [{"ending": True}, {"phase": "Failed", "trouble": "OutOfcpu: Node didn't have enough resource: cpu"}],
    ids=["removed", "refused by the kubelet"],
)
async def test_an_instance_whose_pod_goes_before_it_is_ready_takes_another(after: dict[str, Any]) -> None:
    stage = Stage()
    before = pending("p1", "a", node="n1")
    await stage.observe(before, replace(before, **after))
    assert stage.listener.gone == {}
    assert stage.record.instance.node == ""
    await stage.observe(pending("p2", "a", node="n2"))
    assert stage.record.instance.node == "n2"


async def test_a_refused_resize_is_reported_to_operators() -> None:
    stage = Stage()
    trouble = "resize Infeasible: Node didn't have enough capacity: cpu"
    await stage.observe(pending("p1", "a", node="n1", trouble=trouble))
    assert stage.cluster.warned == {"ResizePending": f"p1: {trouble}"}


async def test_each_warning_of_a_function_is_written_once_a_minute_at_most() -> None:
    clock, asked, behind = VirtualClock(), list[str](), Background()

    async def uid_of(key: FunctionKey) -> str | None:
        asked.append(key.name)
        return None

    events = EventRecorder(cast("Any", None), clock, behind, uid_of)
    for later_s in (0.0, 1.0, AGAIN_S - 2.0, 1.0, 1.0):
        await clock.advance(later_s)
        events.warn(SPEC.key, "NoCapacity", "There is no room.")
        events.warn(FunctionKey("other"), "NoCapacity", "There is no room.")
    await behind.settled()
    assert Counter(asked) == {"figlet": 2, "other": 2}


DEPLOYMENT = {"service": "figlet", "image": "figlet:1"}
REQUEST = InstanceRequest(read_deployment(DEPLOYMENT), 1, 1, None, {})


@pytest.mark.parametrize("how", ["stopped", "ended"])
async def test_instance_ended_while_connecting_is_never_ready(how: str) -> None:
    listener, ended = Recorder(), list[InstanceRecord]()
    record = InstanceRecord(starting("figlet-1", REQUEST, "node-1", 0, 0.0), REQUEST, listener, ended.append)
    async with aiohttp.ClientSession() as session:
        channel = HttpChannel(session, "http://127.0.0.1:1", "token", 1.0, record.end)
        if how == "stopped":
            record.stop()
        else:
            record.end("its pod was removed")
        record.ready(channel, 0)
        record.end("the gateway stops")
    assert listener.ready == {}
    assert listener.times_gone == {"figlet-1": 1}
    assert ended == [record]


def test_cores_are_on_their_way_until_its_pod_has_them() -> None:
    request = InstanceRequest(read_deployment({**DEPLOYMENT, "annotations": {"gnomon/cores": "1"}}), 1, 1, None, {})
    record = InstanceRecord(starting("figlet-1", request, "node-1", 0, 0.0), request, Recorder(), lambda _: None)
    record.request_cores(3)
    assert (record.instance.cores, record.instance.coming_cores) == (1, 3)
    record.resized(3)
    assert (record.instance.cores, record.instance.coming_cores) == (3, None)
    record.request_cores(1)
    assert (record.instance.cores, record.instance.coming_cores) == (3, 1)
    record.request_cores(3)
    assert (record.instance.cores, record.instance.coming_cores) == (3, None), "it is to keep them"


def test_none_are_where_the_deployment_says_how_many_its_pods_have() -> None:
    request = InstanceRequest(read_deployment({**DEPLOYMENT, "limits": {"cpu": "2"}}), 1, 1, None, {})
    record = InstanceRecord(starting("figlet-1", request, "node-1", 0, 0.0), request, Recorder(), lambda _: None)
    record.request_cores(3)
    assert record.instance.coming_cores is None


def test_a_function_comes_back_from_its_deployment_as_it_was_sent() -> None:
    sent = spec_of(
        envProcess="cat",
        envVars={"a": "b"},
        labels={"team": "x"},
        annotations={"topic": '{"a":\n 1}'},
        limits={"memory": "5Mi"},
        secrets=["key"],
    )
    document = deployment(sent, 7, OPTIONS, replicas=2)
    document["metadata"] |= {"uid": "u", "resourceVersion": "9", "creationTimestamp": "2026-11-21T10:00:00Z", "generation": 2}
    found = deployed_function(json.loads(json.dumps(document)))
    assert found is not None
    assert found.spec == sent
    assert found.spec.raw == sent.raw
    assert (found.version, found.template_version, found.replicas) == (7, 7, 2)
    assert found.created_at == 1795255200.0


def test_a_deployment_of_other_software_is_read_from_its_template() -> None:
    container = {
        "name": "nodeinfo",
        "image": "ghcr.io/openfaas/nodeinfo:1",
        "env": [{"name": "fprocess", "value": "node main.js"}, {"name": "mode", "value": "http"}],
        "resources": {"limits": {"memory": "40Mi"}},
        "securityContext": {"readOnlyRootFilesystem": True},
    }
    projected = {"name": "nodeinfo-projected-secrets", "projected": {"sources": [{"secret": {"name": "key"}}]}}
    pod = {"containers": [container], "nodeSelector": {"zone": "a"}, "volumes": [projected]}
    document = {
        "metadata": {"name": "nodeinfo", "namespace": "openfaas-fn", "labels": {"faas_function": "nodeinfo"}, "annotations": {}},
        "spec": {"template": {"metadata": {"labels": {"faas_function": "nodeinfo"}}, "spec": pod}},
    }
    found = deployed_function(document)
    assert found is not None
    assert found.replicas == 1
    assert found.spec.env_process == "node main.js"
    assert found.spec.environment == {"mode": "http"}
    assert (found.spec.secrets, found.spec.constraints) == (("key",), ("zone=a",))
    assert found.spec.memory_bytes == 40 * 2**20
    assert (
        deployed_function({**document, "metadata": {"name": "nginx"}, "spec": {"template": {"metadata": {}, "spec": pod}}})
        is None
    )


def test_a_copy_of_a_deployment_in_another_namespace_is_no_function() -> None:
    document = deployment(spec_of(namespace="team-b"), 1, OPTIONS)
    assert deployed_function(document) is not None
    document["metadata"]["namespace"] = "team-a"
    assert deployed_function(document) is None, "it says team-b's name, and must not take its place"


def test_any_deployment_is_read_or_left_out() -> None:
    odd = deployment(spec_of(), 1, OPTIONS)
    for labels in (odd["metadata"]["labels"], odd["spec"]["template"]["metadata"]["labels"]):
        labels["gnomon/version"] = "abc"
    found = deployed_function(odd)
    assert found is not None
    assert (found.version, found.template_version) == (0, 0)
    odd["metadata"]["creationTimestamp"] = "2026-11-21T10:00:00Z"
    for text in ("nan", "inf", "soon"):  # as by kubectl annotate; one list shows all functions
        odd["metadata"]["annotations"]["gnomon/created-at"] = text
        found = deployed_function(odd)
        assert found is not None
        assert rfc3339(found.created_at) == "2026-11-21T10:00:00Z"
    for text in ("[" * 100_000, "{", "3"):
        odd["metadata"]["annotations"]["gnomon/deployment"] = text
        assert deployed_function(odd) is None
        assert changed_metadata(odd["metadata"], deployment(spec_of(), 2, OPTIONS)["metadata"])["labels"]["gnomon/version"] == "2"


def test_why_pods_cannot_be_made_is_read_of_the_number_and_template_that_there_are_now() -> None:
    document = deployment(spec_of(), 1, OPTIONS, replicas=3)
    document["metadata"]["generation"] = 4
    message = 'pods "figlet-1" is forbidden: exceeded quota: small'
    condition = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    document["status"] = {"observedGeneration": 4, "replicas": 1, "conditions": [condition]}
    found = deployed_function(document)
    assert found is not None
    assert found.failure == f"FailedCreate: {message}"
    for older in ({"observedGeneration": 3}, {"conditions": [{**condition, "status": "False"}]}):
        again = deployed_function({**document, "status": {**document["status"], **older}})
        assert again is not None
        assert again.failure == ""


OWNERS = {
    "labels": {"kubernetes.io/metadata.name": "staging", "team": "vision", "istio-injection": "enabled"},
    "annotations": {"argocd.argoproj.io/tracking-id": "apps:staging", "note": "the owner's"},
}


def owned() -> dict[str, Any]:
    return {"metadata": {"name": "staging", **{field: dict(given) for field, given in OWNERS.items()}}}


def patched(document: dict[str, Any], patch: object) -> dict[str, Any]:
    """The metadata after a merge patch, as the API server carries it out."""
    assert isinstance(patch, Patch)
    metadata = dict(document["metadata"])
    for field, changes in patch.changes["metadata"].items():
        changed = {**metadata.get(field, {}), **changes}
        metadata[field] = {key: value for key, value in changed.items() if value is not None}
    return {"metadata": metadata}


def test_labels_of_the_namespace_owner_are_kept() -> None:
    namespace = StoredNamespace("staging", {"app.kubernetes.io/part-of": "shop"}, {"cost-centre": "7"})
    document = patched(owned(), marked(namespace, owned()))
    assert stored_namespace(document) == namespace
    other = StoredNamespace("staging", {"stage": "two"}, {})
    document = patched(document, marked(other, document))
    assert stored_namespace(document) == other
    assert OWNERS["labels"].items() <= document["metadata"]["labels"].items()
    document = patched(document, unmarked(document))
    assert stored_namespace(document) is None
    assert document == owned()
    assert unmarked(document) is None


def test_created_namespace_enforces_restricted_pods() -> None:
    made = marked(StoredNamespace("dev", {"team": "a"}), None)
    assert isinstance(made, Create)
    assert made.manifest["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert stored_namespace(made.manifest) == StoredNamespace("dev", {"team": "a"})


@pytest.mark.parametrize("text", ["[", "3", '{"labels": 3}', "[" * 100_000])
def test_a_list_of_keys_that_somebody_has_spoilt_names_none(text: str) -> None:
    document = {"metadata": {"name": "a", "labels": {"b": "c"}, "annotations": {"openfaas": "1", "gnomon/set": text}}}
    assert stored_namespace(document) == StoredNamespace("a")


@pytest.mark.parametrize("key", ["pod-security.kubernetes.io/enforce", "kubernetes.io/metadata.name"])
def test_pod_security_of_a_namespace_is_never_loosened(key: str) -> None:
    namespaces = StoredNamespaces(cast("Any", None), cast("Any", None), lambda: None, all_=True)
    with pytest.raises(GnomonError) as refused:
        asyncio.run(namespaces.put(StoredNamespace("dev", {key: "privileged"})))
    assert (refused.value.status, refused.value.code) == (400, "invalid_label")
