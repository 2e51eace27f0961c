"""Pods run: Deployments become available, answer, are scaled, and get other cores while they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.cluster.client import Cluster, until


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
