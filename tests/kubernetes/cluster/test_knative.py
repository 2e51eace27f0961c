"""Knative serves on this cluster with the classes that it comes with."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes import client

from tests.cluster.client import Cluster, until
from tests.cluster.knative import SERVING, answer_for_ingress, condition


@pytest.fixture(autouse=True)
def knative(cluster: Cluster) -> None:
    try:
        cluster.core.read_namespace("knative-serving")
    except client.ApiException as error:
        if error.status != 404:
            raise
        pytest.skip("this cluster has no Knative")


def test_a_service_gets_ready_and_answers_through_the_activator(cluster: Cluster, namespace: str, answer_image: str) -> None:
    container = {"image": answer_image, "env": [{"name": "ANSWER", "value": "by way of Knative"}]}
    body = {
        "apiVersion": "/".join(SERVING),
        "kind": "Service",
        "metadata": {"name": "answers"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    cluster.custom.create_namespaced_custom_object(*SERVING, namespace, "services", body)
    answer_for_ingress(cluster, namespace, "answers")

    def service() -> dict[str, Any]:
        found: dict[str, Any] = cluster.custom.get_namespaced_custom_object(*SERVING, namespace, "services", "answers")
        return found

    until(lambda: condition(service()) == "True", "the service to be Ready", limit_s=120)
    revision = service()["status"]["latestReadyRevisionName"]
    headers = [f"-header=Knative-Serving-Namespace:{namespace}", f"-header=Knative-Serving-Revision:{revision}"]
    asking = {"name": "ask", "image": answer_image, "args": ["-ask=http://activator-service.knative-serving/", *headers]}
    spec = {"restartPolicy": "OnFailure", "containers": [asking]}
    cluster.core.create_namespaced_pod(namespace, {"metadata": {"name": "ask"}, "spec": spec})
    until(lambda: cluster.core.read_namespaced_pod("ask", namespace).status.phase == "Succeeded", "an answer", limit_s=120)
    assert cluster.core.read_namespaced_pod_log("ask", namespace).splitlines()[-1] == "200 by way of Knative"


def test_a_name_of_knatives_own_is_refused_for_a_class(cluster: Cluster, namespace: str, answer_image: str) -> None:
    """Its webhook runs, and is asked."""
    template = {
        "metadata": {"annotations": {"autoscaling.knative.dev/class": "own.knative.dev"}},
        "spec": {"containers": [{"image": answer_image}]},
    }
    body = {"apiVersion": "/".join(SERVING), "kind": "Service", "metadata": {"name": "refused"}, "spec": {"template": template}}
    with pytest.raises(client.ApiException) as refused:
        cluster.custom.create_namespaced_custom_object(*SERVING, namespace, "services", body)
    assert refused.value.status == 400
    assert "own.knative.dev" in str(refused.value.body)
