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
from gnomon_core.clock import VirtualClock, WallClock
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, read_deployment
from gnomon_core.interfaces import InstanceRequest, StoredNamespace
from gnomon_platforms.common import starting
from gnomon_platforms.kubernetes.channel import HttpChannel
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction, deployed_function
from gnomon_platforms.kubernetes.objects.manifests import changed_metadata, deployment
from gnomon_platforms.kubernetes.objects.pods import PodFacts
from gnomon_platforms.kubernetes.writes import Create, Patch
from gnomon_platforms.openfaas.events import AGAIN_S, Warnings
from gnomon_platforms.openfaas.planning import Step
from gnomon_platforms.openfaas.store import StoredNamespaces, marked, stored_namespace, unmarked
from gnomon_platforms.openfaas.workloads import Life, Surroundings, Workload
from gnomon_platforms.testing import Recorder
from tests.unit.kubernetes_platform.sent import OPTIONS, spec_of
from tests.unit.kubernetes_platform.small_cluster import SPEC, deployed, running, spare

QUOTA = 'FailedCreate: pods "figlet-1" is forbidden: exceeded quota: small'


class Written:
    """Steps that are written at once. What a function needs beside its Deployment is made, or refused."""

    def __init__(self, refusal: GnomonError | None = None) -> None:
        self.refusal = refusal

    async def take(self, step: Step, spec: object, version: int, deployed: object = None) -> int | None:
        del step, spec, version, deployed

    async def furnish_once(self, spec: object, deployed: object) -> None:
        del spec, deployed
        if self.refusal is not None:
            raise self.refusal


async def refused(
    found: DeployedFunction, written: Written, *pods: PodFacts, timeout_s: float = 1e6
) -> tuple[str, dict[str, str]]:
    """Ask for one instance; why it has gone, and what operators are told by then."""
    told, warned = Recorder(), dict[str, str]()
    around = Surroundings(
        deployed=lambda _: found,
        pods=lambda _: pods,
        session=cast("Any", None),
        clock=WallClock(),
        adopting=lambda: False,
        left_alone=lambda _: False,
        caught_up=lambda *_: asyncio.sleep(0),
        start_timeout_s=timeout_s,
        warn=lambda _, reason, text: warned.update({reason: text}),
    )
    workload = Workload(SPEC.key, cast("Any", written), around)
    request = InstanceRequest(SPEC, 1, 1, "n1", {})
    workload.add(Life(starting("a", request, "n1", 0, 0.0), request, told, workload.forget))
    for pod in pods:
        workload.seen(pod, pod.name)
    try:
        async with asyncio.timeout(30):
            while not told.gone:
                workload.look()
                await asyncio.sleep(0)
    finally:
        await workload.close()
    return told.gone["a"], warned


async def test_missing_pod_is_explained_by_its_event() -> None:
    why, warned = await refused(replace(deployed(1), failure=QUOTA), Written(), timeout_s=0.0)
    assert QUOTA in why
    assert QUOTA in warned["StartFailed"]


@pytest.mark.parametrize(("status", "code"), [(400, "kubernetes_invalid"), (503, "kubernetes_denied")])
async def test_refused_object_fails_the_deployment_at_once(status: int, code: str) -> None:
    refusal = GnomonError(status, code, "services is forbidden: exceeded quota: small", "Ask for more.")
    why, warned = await refused(deployed(1), Written(refusal), spare("p1"))
    assert "exceeded quota: small" in why
    assert "exceeded quota: small" in warned["StartFailed"]


async def test_operators_are_told_of_a_pod_that_ended_before_it_served_and_of_cores_that_it_did_not_get() -> None:
    pod = running("p1", "a", serving=False, ready=False, trouble="resize Infeasible: Node didn't have enough capacity: cpu")
    ended = replace(pod, phase="Failed", trouble="Evicted: The node was low on resource: memory.")
    why, warned = await refused(deployed(1), Written(), pod, ended)
    assert why == ended.trouble
    assert warned == {"ResizePending": f"p1: {pod.trouble}", "StartFailed": f"Instance a: {ended.trouble}"}


async def test_each_warning_of_a_function_is_written_once_a_minute_at_most() -> None:
    clock, asked, behind = VirtualClock(), list[str](), Background()

    async def find(key: FunctionKey) -> DeployedFunction | None:
        asked.append(key.name)
        return None

    warnings = Warnings(cast("Any", None), clock, behind, find)
    for later_s in (0.0, 1.0, AGAIN_S - 2.0, 1.0, 1.0):
        await clock.advance(later_s)
        warnings.say(SPEC.key, "NoCapacity", "There is no room.")
        warnings.say(FunctionKey("other"), "NoCapacity", "There is no room.")
    await behind.settled()
    assert Counter(asked) == {"figlet": 2, "other": 2}


DEPLOYMENT = {"service": "figlet", "image": "figlet:1"}
REQUEST = InstanceRequest(read_deployment(DEPLOYMENT), 1, 1, None, {})


@pytest.mark.parametrize("how", ["stopped", "ended"])
async def test_instance_ended_while_connecting_is_never_ready(how: str) -> None:
    listener, ended = Recorder(), list[Life]()
    life = Life(starting("figlet-1", REQUEST, "node-1", 0, 0.0), REQUEST, listener, ended.append)
    async with aiohttp.ClientSession() as session:
        channel = HttpChannel(session, "http://127.0.0.1:1", "token", 1.0, life.end)
        if how == "stopped":
            life.stop()
        else:
            life.end("its pod was removed")
        life.ready(channel, 0)
        life.end("the gateway stops")
    assert listener.ready == {}
    assert listener.times_gone == {"figlet-1": 1}
    assert ended == [life]


def test_cores_are_on_their_way_until_its_pod_has_them() -> None:
    request = InstanceRequest(read_deployment({**DEPLOYMENT, "annotations": {"gnomon/cores": "1"}}), 1, 1, None, {})
    life = Life(starting("figlet-1", request, "node-1", 0, 0.0), request, Recorder(), lambda _: None)
    life.give(3)
    assert (life.instance.cores, life.instance.coming_cores) == (1, 3)
    life.resized(3)
    assert (life.instance.cores, life.instance.coming_cores) == (3, None)
    life.give(1)
    assert (life.instance.cores, life.instance.coming_cores) == (3, 1)
    life.give(3)
    assert (life.instance.cores, life.instance.coming_cores) == (3, None), "it is to keep them"


def test_none_are_where_the_deployment_says_how_many_its_pods_have() -> None:
    request = InstanceRequest(read_deployment({**DEPLOYMENT, "limits": {"cpu": "2"}}), 1, 1, None, {})
    life = Life(starting("figlet-1", request, "node-1", 0, 0.0), request, Recorder(), lambda _: None)
    life.give(3)
    assert life.instance.coming_cores is None


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
    assert (found.failure, found.counted) == (f"FailedCreate: {message}", 1)
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
    """As the API server carries out a merge patch of metadata."""
    assert isinstance(patch, Patch)
    metadata = dict(document["metadata"])
    for field, changes in patch.changes["metadata"].items():
        changed = {**metadata.get(field, {}), **changes}
        metadata[field] = {key: value for key, value in changed.items() if value is not None}
    return {"metadata": metadata}


def test_labels_of_the_namespace_owner_are_kept() -> None:
    one = StoredNamespace("staging", {"app.kubernetes.io/part-of": "shop"}, {"cost-centre": "7"})
    document = patched(owned(), marked(one, owned()))
    assert stored_namespace(document) == one
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
