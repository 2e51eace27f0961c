"""A Deployment read back as a function: one that we made, one of other software's, and whatever else is found there."""

from __future__ import annotations

import json

from gnomon_platforms.kubernetes.objects.functions import deployed_function
from gnomon_platforms.kubernetes.objects.manifests import changed_metadata, deployment
from tests.unit.kubernetes_platform.sent import OPTIONS, spec_of


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


def test_whatever_is_written_into_a_deployment_is_read_or_left_out() -> None:
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
