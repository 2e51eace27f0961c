"""The service account of the gateway on a control plane: the roles of deploy/openfaas, and how to connect as it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from kubernetes.client import AuthorizationV1Api

from gnomon_platforms.kubernetes.resources import Scope
from gnomon_platforms.openfaas.permissions import all_permissions as table
from tests.cluster import build
from tests.cluster.client import Cluster, Kubectl, documents, until
from tests.kubernetes.access import EVERYWHERE, Account, Use, asked
from tests.kubernetes.kinds import SCALED_OBJECTS, define

DEPLOY = Path(__file__).parents[3] / "deploy" / "openfaas"
ACCESS = DEPLOY / "access.yaml"
SYSTEM, FUNCTIONS = "openfaas", "openfaas-fn"
ACCOUNT = Account(SYSTEM, "gateway")
NAMESPACES = {Scope.SYSTEM: SYSTEM, Scope.FUNCTIONS: FUNCTIONS, Scope.CLUSTER: EVERYWHERE}
MAY = {Use(NAMESPACES[scope], group, resource, verb) for scope, group, resource, verb in table()}
"""The permissions in the platform's own table."""


@contextlib.contextmanager
def installed_account(cluster: Cluster, compiled: build.Programs, folder: Path, *more: Path) -> Iterator[Path]:
    """A kubeconfig of the account, which has the roles of deploy/openfaas and of the files in `more`; gone afterwards."""
    kubectl = Kubectl(compiled.folder / "kubectl", cluster.kubeconfig)
    kubectl.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}, *documents(ACCESS, *more)])
    define(cluster, SCALED_OBJECTS)
    try:
        until(lambda: all(given(cluster, use) for use in asked(ACCESS, *more)), "the API server to know the roles")
        yield ACCOUNT.kubeconfig(cluster, folder)
    finally:
        kubectl("delete", *(f"--filename={file}" for file in (ACCESS, *more)), "--wait=false", "--ignore-not-found")
        kubectl("delete", "crd", SCALED_OBJECTS["metadata"]["name"])


def given(cluster: Cluster, use: Use) -> bool:
    """True if the API server allows this to the account: it reads roles a moment after they are written."""
    plural, _, subresource = use.resource.partition("/")
    wanted = {"namespace": use.namespace, "group": use.group, "resource": plural, "subresource": subresource, "verb": use.verb}
    review = cast("Any", {"spec": {"user": ACCOUNT.user, "resourceAttributes": wanted}})
    answer: Any = AuthorizationV1Api(cluster.api).create_subject_access_review(review)
    return bool(answer.status.allowed)
