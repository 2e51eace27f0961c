"""The tables by which `gnomon doctor` asks for permissions are the roles that are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnomon_platforms.knative.permissions import AUTOSCALER, GATEWAY
from gnomon_platforms.kubernetes.resources import Permission, Scope
from gnomon_platforms.nodes.coordinators import POOLS
from gnomon_platforms.openfaas.permissions import PERMISSIONS
from tests.cluster.client import documents
from tests.kubernetes.access import EVERYWHERE, Use, asked
from tests.kubernetes.installation.forms import DEPLOY

KNATIVE, OPENFAAS = DEPLOY / "knative", DEPLOY / "openfaas"


@pytest.mark.parametrize(
    ("folder", "table", "system"),
    [
        (KNATIVE / "autoscaler", AUTOSCALER, "knative-serving"),
        (KNATIVE / "gateway", GATEWAY, "knative-serving"),
        (OPENFAAS / "coordinator", POOLS, "openfaas"),
        (OPENFAAS, PERMISSIONS, "openfaas"),
    ],
)
def test_roles_grant_exactly_what_is_used(folder: Path, table: tuple[Permission, ...], system: str) -> None:
    spaces = {Scope.CLUSTER: EVERYWHERE, Scope.SYSTEM: system, Scope.NODES: "gnomon-nodes", Scope.FUNCTIONS: "openfaas-fn"}
    wanted = {
        Use(spaces[permission.scope], permission.group, permission.resource, verb)
        for permission in table
        for verb in permission.verbs
    }
    assert wanted == asked(folder / "access.yaml")
    assert all(permission.why for permission in table)
    rules = [rule for document in documents(folder / "access.yaml") for rule in document.get("rules", ())]
    named = {
        (group, resource): rule.get("resourceNames", [""])
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert all(named[permission.group, permission.resource] == [permission.only] for permission in table if permission.only)
