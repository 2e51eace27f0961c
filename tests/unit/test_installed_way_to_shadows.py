"""The way of a Body to a Shadow on another node, as `deploy/openfaas` opens it: there and no further."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

OPENFAAS = Path(__file__).parents[2] / "deploy" / "openfaas"
NODES = {"matchLabels": {"kubernetes.io/metadata.name": "gnomon-nodes"}}
FUNCTIONS = {"namespaceSelector": {}, "podSelector": {"matchExpressions": [{"key": "faas_function", "operator": "Exists"}]}}


def specification(file: str, kind: str, name: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((OPENFAAS / file).read_text())
    [found] = [one["spec"] for one in documents if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return dict(found)


def test_it_leads_from_functions_to_the_coordinators_port_for_them_and_not_to_the_gateways() -> None:
    daemons = specification("coordinator/daemonset.yaml", "DaemonSet", "coordinator")["template"]
    [coordinator] = [one for one in daemons["spec"]["containers"] if one["name"] == "coordinator"]
    ports = {port["name"]: port["containerPort"] for port in coordinator["ports"]}
    assert {f"--port={ports['control']}", f"--pair-port={ports['pairs']}"} <= set(coordinator["args"])

    rules = specification("coordinator/network.yaml", "NetworkPolicy", "coordinator")["ingress"]
    opened = {rule["ports"][0]["port"]: rule for rule in rules}
    assert opened.keys() == set(ports.values())
    assert opened[ports["pairs"]] == {"from": [FUNCTIONS], "ports": [{"port": ports["pairs"], "protocol": "TCP"}]}
    assert FUNCTIONS not in opened[ports["control"]]["from"]

    for file in ("network.yaml", "function-namespace/network.yaml"):
        egress = specification(file, "NetworkPolicy", "functions")["egress"]
        [out] = [rule for rule in egress if rule["to"][0].get("namespaceSelector") == NODES]
        assert out["ports"] == [{"port": ports["pairs"], "protocol": "TCP"}]
        [peer] = out["to"]
        assert peer["podSelector"]["matchLabels"].items() <= daemons["metadata"]["labels"].items()
