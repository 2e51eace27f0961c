"""`gnomon serve --platform openfaas` against a control plane: what its users do with gnomon, faas-cli and kubectl."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from kubernetes.client import AutoscalingV2Api

from gnomon_core.errors import GnomonError
from tests.cluster.client import Cluster
from tests.kubernetes.openfaas.conftest import NAMESPACE
from tests.kubernetes.openfaas.gateways import GNOMON, Gateway, Load
from tests.kubernetes.openfaas.kubelet import Kubelet
from tests.waiting import eventually

# Two starts of a gateway, each a Lease long at most, and a machine that others keep busy.
pytestmark = pytest.mark.timeout(400)

STACK = """
version: 1.0
provider: {name: openfaas}
functions:
  echo:
    image: echo:1
    labels: {com.openfaas.scale.min: "2", team: vision}
    annotations: {gnomon/autoscaler: POLICY, topic: "a b"}
    secrets: [api-key]
"""
Tool = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def gateway(controlled: Cluster, kubelet: Kubelet, tmp_path: Path) -> Iterator[Gateway]:
    assert kubelet.name == "node-a"
    gateway_process = Gateway(controlled.kubeconfig, tmp_path / "first")
    gateway_process.start()
    yield gateway_process
    if gateway_process.process is not None and gateway_process.process.poll() is None:
        assert gateway_process.end() == 0


@pytest.fixture(params=["gnomon", pytest.param("faas-cli", marks=pytest.mark.faas_cli)])
def tool(request: pytest.FixtureRequest, gateway: Gateway, tmp_path: Path) -> Tool:
    command = GNOMON
    if request.param == "faas-cli":
        path = shutil.which("faas-cli")
        if path is None:
            pytest.skip("no faas-cli on PATH")
        command = [path]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENFAAS_")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**kept, "HOME": str(tmp_path), "OPENFAAS_URL": gateway.url}
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


def uids(cluster: Cluster) -> set[str]:
    """The pods that serve the function."""
    found = cluster.core.list_namespaced_pod(NAMESPACE, label_selector="faas_function=echo").items
    return {pod.metadata.uid for pod in found if not pod.metadata.deletion_timestamp}


def deploy(gateway: Gateway, method: str = "POST", policy: str = "fixed", **fields: Any) -> None:
    document = {
        "service": "echo",
        "image": "echo:1",
        "labels": {"com.openfaas.scale.min": "2"},
        "annotations": {"gnomon/autoscaler": policy},
        **fields,
    }
    answer = gateway.call(method, "/system/functions", document)
    assert answer.status == 202, answer.data


def available(gateway: Gateway, count: int) -> None:
    eventually(lambda: gateway.status("echo").get("availableReplicas") == count, f"{count} pods never served")


def test_a_stack_is_deployed_listed_asked_and_removed(tool: Tool, gateway: Gateway, controlled: Cluster, tmp_path: Path) -> None:
    (tmp_path / "stack.yml").write_text(STACK.replace("POLICY", "fixed"))
    tool("secret", "create", "api-key", "--from-literal", "s3cret")
    assert "api-key" in tool("secret", "list").stdout
    tool("deploy", "-f", "stack.yml")
    available(gateway, 2)
    assert "echo" in tool("list").stdout
    described = tool("describe", "echo").stdout
    assert "team" in described
    assert "vision" in described
    found = controlled.apps.read_namespaced_deployment("echo", NAMESPACE)
    assert (found.spec.replicas, found.metadata.annotations["topic"]) == (2, "a b")
    asked = gateway.call("POST", f"/function/echo.{NAMESPACE}", b"hello")
    assert (asked.status, asked.data) == (200, b"hello")
    (tmp_path / "stack.yml").write_text(STACK.replace("POLICY", "kpa"))
    before = uids(controlled)
    tool("deploy", "-f", "stack.yml")
    assert gateway.call("GET", "/gnomon/functions/echo").json()["scaling"] == "kpa"
    assert uids(controlled) == before, "another policy needs no other pods"
    tool("remove", "echo")
    lists = controlled.apps.list_namespaced_deployment, controlled.core.list_namespaced_service
    eventually(lambda: not any(listed(NAMESPACE).items for listed in lists), "something of the function stayed")
    tool("secret", "remove", "api-key")
    assert gateway.call("GET", "/system/secrets").json() == []


def test_policy_and_pods_are_switched_while_requests_flow_and_none_is_lost(gateway: Gateway, controlled: Cluster) -> None:
    deploy(gateway)
    available(gateway, 2)
    load = Load(f"{gateway.url}/function/echo", threads=4, each=550)
    eventually(lambda: load.count > 300)
    deploy(gateway, "PUT", "kpa")
    eventually(lambda: load.count > 900)
    before = uids(controlled)
    deploy(gateway, "PUT", "fixed", envVars={"newer": "1"})
    answers = load.join()
    assert answers == {"right": 2200}
    eventually(lambda: not before & uids(controlled), "old pods stayed")
    available(gateway, 2)


def test_a_rollout_restart_replaces_all_pods_and_loses_no_request(gateway: Gateway, controlled: Cluster) -> None:
    def deployment() -> Any:
        return controlled.apps.read_namespaced_deployment_status("echo", NAMESPACE).status

    deploy(gateway)
    available(gateway, 2)
    # Pods that have not been ready for `minReadySeconds` count as unhealthy: a rolling update removes them first.
    eventually(lambda: deployment().available_replicas == 2, "the pods never were available")
    before = uids(controlled)
    ready: list[int] = []
    serving: list[int] = []

    def replaced(before: set[str]) -> bool:
        ready.append(deployment().ready_replicas or 0)
        serving.append(gateway.status("echo")["availableReplicas"])
        return not before & uids(controlled)

    load = Load(f"{gateway.url}/function/echo", threads=4, each=550)
    eventually(lambda: load.count > 300)
    for restarted_at in ("2026-11-24T03:00:00Z", "2026-11-24T03:01:00Z"):
        # As kubectl rollout restart writes it.
        annotations = {"kubectl.kubernetes.io/restartedAt": restarted_at}
        restart = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
        controlled.apps.patch_namespaced_deployment("echo", NAMESPACE, restart)
        eventually(lambda before=before: replaced(before), "old pods stayed")
        eventually(lambda: len(uids(controlled)) == 2, "more pods than are wanted stayed")
        before = uids(controlled)
    assert load.join() == {"right": 2200}
    assert min(ready) == 2, "a pod goes when another is ready"
    # The gateway opens its channel to the new pod while the old one ends already.
    assert min(serving) >= 1, "no instance served for a moment"


def test_kubectl_scale_emits_an_event_that_names_the_policy(gateway: Gateway, controlled: Cluster) -> None:
    deploy(gateway)
    available(gateway, 2)
    controlled.apps.patch_namespaced_deployment_scale("echo", NAMESPACE, {"spec": {"replicas": 5}}, field_manager="kubectl")

    def events() -> list[Any]:
        found = controlled.core.list_namespaced_event(NAMESPACE, field_selector="reason=ScaleReverted").items
        return [event for event in found if event.involved_object.name == "echo"]

    [event] = eventually(events, "no Event was put on the Deployment")
    assert "kubectl asked for 5 pods" in event.message
    assert "scaling policy fixed decides" in event.message
    eventually(lambda: len(uids(controlled)) == 2, "five pods stayed")
    # What we are asked for ourselves is no news.
    gateway.call("POST", "/system/scale-function/echo", {"serviceName": "echo", "replicas": 3})
    available(gateway, 3)
    assert len(events()) == 1


def test_gateway_reports_its_version_and_provider(gateway: Gateway) -> None:
    assert gateway.call("GET", "/system/info").json()["provider"]["orchestration"] == "kubernetes"
    assert gateway.call("GET", "/system/namespaces").json() == [NAMESPACE]
    assert gateway.call("GET", "/healthz").status == 200


def test_a_gateway_that_stops_or_is_killed_leaves_its_pods_and_the_next_one_serves_them(
    gateway: Gateway, controlled: Cluster
) -> None:
    deploy(gateway)
    available(gateway, 2)
    before = uids(controlled)
    assert gateway.end() == 0
    assert uids(controlled) == before
    gateway.start()
    # Two are wanted, two are there: nothing is made.
    available(gateway, 2)
    assert gateway.call("POST", "/function/echo", b"again").data == b"again"
    gateway.end(signal.SIGKILL)
    line = gateway.start()
    assert "stands by" in line, "the Lease of the one that was killed is not over"
    assert "serves on" in gateway.line()
    available(gateway, 2)
    assert gateway.call("POST", "/function/echo", b"third").data == b"third"
    assert uids(controlled) == before


def test_pods_whose_functions_secret_has_been_deleted_are_served_on_by_the_next_gateway(
    gateway: Gateway, controlled: Cluster
) -> None:
    secret = {"name": "api-key", "namespace": NAMESPACE}
    assert gateway.call("POST", "/system/secrets", {**secret, "value": "s3cret"}).status == 202
    deploy(gateway, secrets=["api-key"])
    available(gateway, 2)
    before = uids(controlled)
    assert gateway.call("DELETE", "/system/secrets", secret).status == 202
    assert gateway.end() == 0
    gateway.start()
    available(gateway, 2)
    assert gateway.call("POST", "/function/echo", b"again").data == b"again"
    assert uids(controlled) == before
    assert gateway.call("DELETE", "/system/functions", {"functionName": "echo"}).status == 202
    eventually(lambda: not controlled.apps.list_namespaced_deployment(NAMESPACE).items, "it stayed")


def test_standby_forwards_until_it_leads(gateway: Gateway, controlled: Cluster, tmp_path: Path) -> None:
    deploy(gateway)
    available(gateway, 2)
    before = uids(controlled)
    second = Gateway(controlled.kubeconfig, tmp_path / "second")
    assert "stands by" in second.start()
    assert second.end() == 0, "one that stands by is to be stopped as well"
    line = second.start()
    assert "stands by" in line
    assert gateway.url in line, "it says who leads"
    try:
        # Whoever asks the second is answered, by the first.
        assert second.call("POST", "/function/echo", b"over there").data == b"over there"
        assert second.status("echo")["name"] == "echo"
        lease = controlled.custom.get_namespaced_custom_object("coordination.k8s.io", "v1", NAMESPACE, "leases", "gnomon")
        assert lease["metadata"]["annotations"]["gnomon/address"] == gateway.url
        # The first ends in an orderly way: it says so to what comes, until the second leads, to whom they come again.
        load = Load(f"{second.url}/function/echo", threads=2, each=150, patient=True)
        eventually(lambda: load.count > 50)
        assert gateway.end() == 0
        assert "serves on" in second.line()
        assert load.join() == {"right": 300}
        assert second.status("echo")["availableReplicas"] == 2
        assert uids(controlled) == before
    finally:
        assert second.end() == 0


def test_a_function_that_is_removed_with_kubectl_is_served_no_more(gateway: Gateway, controlled: Cluster) -> None:
    deploy(gateway)
    available(gateway, 2)
    controlled.apps.delete_namespaced_deployment("echo", NAMESPACE)
    eventually(lambda: gateway.call("GET", "/system/function/echo").status == 404, "it was served still")
    eventually(lambda: not controlled.apps.list_namespaced_deployment(NAMESPACE).items, "it came back")
    assert gateway.call("GET", "/system/functions").json() == []


def test_pods_that_an_hpa_counts_are_left_alone_and_the_reason_is_told(gateway: Gateway, controlled: Cluster) -> None:
    deploy(gateway)
    available(gateway, 2)
    before = uids(controlled)
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "echo"}
    body = {"metadata": {"name": "theirs"}, "spec": {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 4}}
    hpas = AutoscalingV2Api(controlled.api)
    hpas.create_namespaced_horizontal_pod_autoscaler(NAMESPACE, cast("Any", body))
    try:

        def events() -> list[Any]:
            found = controlled.core.list_namespaced_event(NAMESPACE, field_selector="reason=ForeignAutoscaler").items
            return [event for event in found if event.involved_object.name == "echo"]

        event = eventually(events, "no Event was put on the Deployment")[0]
        assert "HorizontalPodAutoscaler theirs" in event.message
        gateway.call("POST", "/system/scale-function/echo", {"serviceName": "echo", "replicas": 1})

        def errors() -> list[str]:
            decisions = gateway.call("GET", "/gnomon/functions/echo/decisions").json()
            return [decision["error"] for decision in decisions if "foreign_autoscaler" in decision["error"]]

        eventually(errors, "no decision says why")
        assert gateway.call("POST", "/function/echo", b"serves on").data == b"serves on"
        assert uids(controlled) == before
        refused = gateway.call("PUT", "/system/functions", {"service": "echo", "image": "echo:2"})
        assert (refused.status, refused.json()["error"]["code"]) == (409, "foreign_autoscaler")
    finally:
        hpas.delete_namespaced_horizontal_pod_autoscaler("theirs", NAMESPACE)
    # It is ours again.
    gateway.call("POST", "/system/scale-function/echo", {"serviceName": "echo", "replicas": 3})
    available(gateway, 3)


def test_without_a_cluster_it_says_what_is_missing(tmp_path: Path) -> None:
    from gnomon_platforms.kubernetes.client import connect  # noqa: PLC0415 - only this test

    broken = tmp_path / "config"
    broken.write_text("nothing")
    with pytest.raises(GnomonError) as refused:
        connect(broken)
    assert refused.value.code == "kubernetes_credentials"
