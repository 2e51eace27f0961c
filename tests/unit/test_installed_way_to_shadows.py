"""The way of a Body to a Shadow on another node, as `deploy` opens it for functions and for Revisions: there and no further."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gnomon_platforms.knative.resources import REVISION_LABEL
from gnomon_platforms.kubernetes.objects.names import FUNCTION_LABEL

DEPLOY = Path(__file__).parents[2] / "deploy"
COORDINATOR = DEPLOY / "openfaas" / "coordinator"
NODES = {"matchLabels": {"kubernetes.io/metadata.name": "gnomon-nodes"}}


def specification(file: Path, kind: str, name: str) -> dict[str, Any]:
    documents = yaml.safe_load_all(file.read_text())
    [found] = [one["spec"] for one in documents if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return dict(found)


def daemons() -> tuple[dict[str, Any], dict[str, int]]:
    """The coordinators' pods, and their ports by name."""
    template = specification(COORDINATOR / "daemonset.yaml", "DaemonSet", "coordinator")["template"]
    [coordinator] = [one for one in template["spec"]["containers"] if one["name"] == "coordinator"]
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
