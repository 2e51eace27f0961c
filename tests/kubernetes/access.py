"""Comparison of a service account's permissions with the requests that it makes.

    manifests ─ `asked` ▶ uses that the roles allow          ┐ a test compares them, in both directions: what is not asked for
    the account's own token ▶ API server ▶ audit log ─ `uses` ▶ ┘ is refused, and what is never used is not asked for

A use has the namespace of the role that allows it, and none where that is a ClusterRole.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.cluster.client import Cluster, documents

EVERYWHERE = ""
REFUSED = 403


class Use(NamedTuple):
    """A verb on one kind of object: `pods`, or a subresource such as `pods/resize`."""

    namespace: str
    group: str
    resource: str
    verb: str


@dataclass(frozen=True)
class Account:
    """A service account."""

    namespace: str
    name: str

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    def kubeconfig(self, cluster: Cluster, folder: Path) -> Path:
        """A kubeconfig with a token of the account's, which must be there."""
        make = cluster.core.create_namespaced_service_account_token
        token = make(self.name, self.namespace, {"spec": {"expirationSeconds": 3600}})
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        [user] = config["users"]
        user["user"] = {"token": token.status.token}
        file = folder / f"{self.name}.conf"
        file.write_text(json.dumps(config))
        file.chmod(0o600)
        return file

    def uses(self, cluster: Cluster, may: Collection[Use], since: str = "") -> Uses:
        """The requests of the account, from the API server's audit log. A line that is being written is left out.

        `since` is a `moment` before which nothing counts: another test may have been this account.
        """
        lines = (cluster.kubeconfig.parent / "logs" / "audit.log").read_text().splitlines()
        whole = [json.loads(line) for line in lines if line.endswith("}")]
        mine = [row for row in whole if row["user"]["username"] == self.user and "objectRef" in row]
        mine = [row for row in mine if row["requestReceivedTimestamp"] >= since]
        refused = {use_of(row, may) for row in mine if row.get("responseStatus", {}).get("code") == REFUSED}
        return Uses({use_of(request, may) for request in mine}, refused)


@dataclass(frozen=True)
class Uses:
    """All that an account asked for, and what of it was refused."""

    all: set[Use]
    refused: set[Use]


def moment() -> str:
    """Now, as the API server writes it down."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def use_of(event: dict[str, Any], may: Collection[Use]) -> Use:
    """The permission that an event of the audit log used, by the role that allows it: the namespace's own, else a ClusterRole."""
    target = event["objectRef"]
    resource = "/".join(part for part in (target["resource"], target.get("subresource")) if part)
    use = Use(target.get("namespace", EVERYWHERE), target.get("apiGroup", ""), resource, event["verb"])
    everywhere = use._replace(namespace=EVERYWHERE)
    return everywhere if use not in may and everywhere in may else use


def asked(*manifests: Path) -> set[Use]:
    """All that the roles in these files allow."""
    roles = [document for document in documents(*manifests) if "rules" in document]
    return {
        Use(role["metadata"].get("namespace", EVERYWHERE), group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def admitted(cluster: Cluster, deployment: str, namespace: str) -> dict[str, Any]:
    """The specification of a Deployment's pods, which the API server would take in its namespace.

    Raises:
        ApiException: it would not.

    """
    template = cluster.apps.read_namespaced_deployment(deployment, namespace).spec.template
    spec: dict[str, Any] = cluster.api.sanitize_for_serialization(template.spec)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": spec}
    cluster.core.create_namespaced_pod(namespace, pod, dry_run="All")
    return spec


def restrict(cluster: Cluster, namespace: str) -> None:
    """Let a namespace take only pods that Pod Security calls restricted."""
    cluster.core.patch_namespace(namespace, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
