"""The whole cluster: pods run, answer, are scaled and resized, and Knative serves with the classes that it comes with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kubernetes import client

from tests.cluster.client import Cluster, until
from tests.cluster.knative import SERVING, answer_for_ingress, condition


def available(cluster: Cluster, namespace: str, name: str) -> int:
    return cluster.apps.read_namespaced_deployment(name, namespace).status.available_replicas or 0


def pods(cluster: Cluster, namespace: str) -> list[Any]:
    return [pod for pod in cluster.core.list_namespaced_pod(namespace).items if not pod.metadata.deletion_timestamp]


def test_a_deployment_becomes_available_and_is_scaled(cluster: Cluster, namespace: str, deploy: Callable[..., str]) -> None:
    name = deploy("answers", replicas=2)
    until(lambda: available(cluster, namespace, name) == 2, "two pods")
    cluster.apps.patch_namespaced_deployment_scale(name, namespace, {"spec": {"replicas": 4}})
    until(lambda: available(cluster, namespace, name) == 4, "four pods")
    cluster.apps.patch_namespaced_deployment_scale(name, namespace, {"spec": {"replicas": 1}})
    until(lambda: len(pods(cluster, namespace)) == 1, "all but one pod to go")


def test_a_service_leads_to_its_pods_by_name(
    cluster: Cluster, namespace: str, deploy: Callable[..., str], answer_image: str
) -> None:
    """From pod to pod: by the cluster's name server, the service's address and the network between pods."""
    name = deploy("server", env=[{"name": "ANSWER", "value": "from the pod"}])
    ports = [{"port": 80, "targetPort": 8080}]
    cluster.core.create_namespaced_service(
        namespace, {"metadata": {"name": "server"}, "spec": {"selector": {"app": name}, "ports": ports}}
    )
    until(lambda: available(cluster, namespace, name) == 1, "the server")
    asking = {"name": "ask", "image": answer_image, "args": ["-ask", "http://server/"]}
    spec = {"restartPolicy": "OnFailure", "containers": [asking]}
    cluster.core.create_namespaced_pod(namespace, {"metadata": {"name": "ask"}, "spec": spec})
    until(lambda: cluster.core.read_namespaced_pod("ask", namespace).status.phase == "Succeeded", "an answer")
    assert cluster.core.read_namespaced_pod_log("ask", namespace).splitlines()[-1] == "200 from the pod"


def test_a_pod_gets_other_cores_while_it_runs(cluster: Cluster, namespace: str, deploy: Callable[..., str]) -> None:
    name = deploy("resized")
    until(lambda: available(cluster, namespace, name) == 1, "the pod")
    pod = pods(cluster, namespace)[0].metadata.name
    wanted = {"requests": {"cpu": "70m"}, "limits": {"cpu": "300m"}}
    cluster.core.patch_namespaced_pod_resize(pod, namespace, {"spec": {"containers": [{"name": "answer", "resources": wanted}]}})

    def effective() -> bool:
        status = cluster.core.read_namespaced_pod(pod, namespace).status.container_statuses[0]
        return bool(status.resources and status.resources.limits.get("cpu") == "300m")

    until(effective, "the container's new limit")
    assert cluster.core.read_namespaced_pod(pod, namespace).status.container_statuses[0].restart_count == 0


@pytest.mark.usefixtures("with_knative")
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


@pytest.mark.usefixtures("with_knative")
def test_a_name_of_knatives_own_is_refused_for_a_class(cluster: Cluster, namespace: str, answer_image: str) -> None:
    """Knative's webhook runs, and is asked."""
    template = {
        "metadata": {"annotations": {"autoscaling.knative.dev/class": "own.knative.dev"}},
        "spec": {"containers": [{"image": answer_image}]},
    }
    body = {"apiVersion": "/".join(SERVING), "kind": "Service", "metadata": {"name": "refused"}, "spec": {"template": template}}
    with pytest.raises(client.ApiException) as refused:
        cluster.custom.create_namespaced_custom_object(*SERVING, namespace, "services", body)
    assert refused.value.status == 400
    assert "own.knative.dev" in str(refused.value.body)
