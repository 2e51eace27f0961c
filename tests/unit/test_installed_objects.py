"""The objects that `kubectl apply -k` of the folders in `deploy` applies, and the connection to Shadows on other nodes."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnomon_platforms.knative.resources import REVISION_LABEL
from gnomon_platforms.kubernetes.objects.names import FUNCTION_LABEL

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted(
    path for folder in ("knative", "knative-models", "openfaas", "openfaas-models") for path in (DEPLOY / folder).rglob("*.yaml")
)
COLLECTORS = {"namespaceSelector": {"matchLabels": {"metrics": "enabled"}}}


def objects(kind: str) -> dict[tuple[str, str], dict[str, Any]]:
    """All of a kind, by namespace and name."""
    found = [
        document for path in FILES for document in yaml.safe_load_all(path.read_text()) if document and document["kind"] == kind
    ]
    return {(row["metadata"].get("namespace", ""), row["metadata"]["name"]): row["spec"] for row in found}


def test_every_deployment_can_be_drained_pod_by_pod() -> None:
    """Bounded from below, a Deployment with one replica would keep its node for ever, and one with a broken pod as well."""
    deployments, budgets = objects("Deployment"), objects("PodDisruptionBudget")
    assert len(deployments) == 3
    assert budgets.keys() == deployments.keys()
    for name, budget in budgets.items():
        selector = deployments[name]["selector"]
        assert budget == {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": selector}


def test_scraped_ports_are_open_to_prometheus() -> None:
    """By the pods' annotations, from anywhere or from namespaces with the label that the how-tos name."""
    policies = objects("NetworkPolicy")
    for (namespace, name), spec in {**objects("Deployment"), **objects("DaemonSet")}.items():
        pod = spec["template"]
        said = {key.removeprefix("prometheus.io/"): text for key, text in pod["metadata"]["annotations"].items()}
        assert (said["scrape"], said["path"]) == ("true", "/metrics"), name
        port = int(said["port"])
        assert port in [port["containerPort"] for each in pod["spec"]["containers"] for port in each.get("ports", ())], name
        rules = [
            rule
            for (where, _), policy in policies.items()
            if where == namespace and policy["podSelector"].get("matchLabels", {}).items() <= pod["metadata"]["labels"].items()
            for rule in policy["ingress"]
        ]
        admitted = [rule.get("from", [COLLECTORS]) for rule in rules if port in [port["port"] for port in rule["ports"]]]
        assert any(COLLECTORS in peers for peers in admitted), name


def test_policy_for_an_external_gateway_opens_the_same_ports() -> None:
    text = (DEPLOY.parent / "docs/howto/run-on-kubernetes.md").read_text()
    [policy] = [
        row for row in map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)) if row["kind"] == "NetworkPolicy"
    ]
    ours = objects("NetworkPolicy")[policy["metadata"]["namespace"], "functions"]
    assert policy["spec"]["podSelector"] == ours["podSelector"]
    assert [rule["ports"] for rule in policy["spec"]["ingress"]] == [rule["ports"] for rule in ours["ingress"]]
    assert policy["spec"]["policyTypes"] == ["Ingress"], "what functions may reach stays as it is"


COORDINATOR = DEPLOY / "openfaas" / "coordinator"
NODES = {"matchLabels": {"kubernetes.io/metadata.name": "gnomon-nodes"}}


def specification(file: Path, kind: str, name: str) -> dict[str, Any]:
    documents = yaml.safe_load_all(file.read_text())
    [found] = [document["spec"] for document in documents if (document["kind"], document["metadata"]["name"]) == (kind, name)]
    return dict(found)


def daemons() -> tuple[dict[str, Any], dict[str, int]]:
    """The coordinators' pods, and their ports by name."""
    template = specification(COORDINATOR / "daemonset.yaml", "DaemonSet", "coordinator")["template"]
    [coordinator] = [container for container in template["spec"]["containers"] if container["name"] == "coordinator"]
    ports = {port["name"]: port["containerPort"] for port in coordinator["ports"]}
    assert {f"--port={ports['control']}", f"--pair-port={ports['pairs']}"} <= set(coordinator["args"])
    return template, ports


@pytest.mark.parametrize(
    ("file", "name", "label"),
    [
        (COORDINATOR / "network.yaml", "coordinator", FUNCTION_LABEL),
        (DEPLOY / "knative-models" / "network.yaml", "coordinator-knative", REVISION_LABEL),
    ],
)
def test_bodies_reach_the_coordinator_port_for_bodies_only(file: Path, name: str, label: str) -> None:
    _, ports = daemons()
    bodies = {"namespaceSelector": {}, "podSelector": {"matchExpressions": [{"key": label, "operator": "Exists"}]}}
    opened = {rule["ports"][0]["port"]: rule for rule in specification(file, "NetworkPolicy", name)["ingress"]}
    assert opened.keys() == set(ports.values())
    assert opened[ports["pairs"]] == {"from": [bodies], "ports": [{"port": ports["pairs"], "protocol": "TCP"}]}
    assert bodies not in opened[ports["control"]]["from"]


@pytest.mark.parametrize("file", ["network.yaml", "function-namespace/network.yaml"])
def test_functions_may_go_there(file: str) -> None:
    template, ports = daemons()
    egress = specification(DEPLOY / "openfaas" / file, "NetworkPolicy", "functions")["egress"]
    [out] = [rule for rule in egress if rule["to"][0].get("namespaceSelector") == NODES]
    assert out["ports"] == [{"port": ports["pairs"], "protocol": "TCP"}]
    [peer] = out["to"]
    assert peer["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
