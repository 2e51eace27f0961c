"""What the ingress's service account may do is what it does: no more, and no less; and it ends as it is told to."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from kubernetes import client

from deploy.test_cluster import build
from deploy.test_cluster.client import Kubectl, documents
from deploy.test_cluster.clusters import Cluster, until
from gnomon_platforms.knative.ingress.__main__ import options, parser
from tests.kubernetes.access import Account, admitted, asked, restrict
from tests.kubernetes.kinds import install_kinds
from tests.kubernetes.knative_ingress.conftest import Ingresses
from tests.kubernetes.knative_ingress.processes import ingress_process

ACCESS = Path(__file__).parents[3] / "deploy" / "knative" / "ingress" / "access.yaml"
SYSTEM = "knative-serving"
ACCOUNT = Account(SYSTEM, "gnomon-ingress")


@pytest.fixture
def knative_plane(own_plane: Cluster, compiled: build.Programs) -> Cluster:
    """One without other tests' Ingresses: this account looks after every namespace."""
    install_kinds(own_plane, compiled, "networking/ingress.yaml", "serving/300-resources/revision.yaml")
    for name in (SYSTEM, "users"):
        own_plane.core.create_namespace({"metadata": {"name": name}})
    return own_plane


async def test_what_the_account_may_do_is_what_it_does(
    knative_plane: Cluster, compiled: build.Programs, tmp_path: Path, haproxy: None
) -> None:
    Kubectl(compiled.folder / "kubectl", knative_plane.kubeconfig).apply(documents(ACCESS))
    may = asked(ACCESS)
    kubeconfig = await asyncio.to_thread(ACCOUNT.kubeconfig, knative_plane, tmp_path)
    given = ("--gateway=192.0.2.9:8080", "--ingress-class=ours")
    async with ingress_process(kubeconfig, *given) as process:
        ingresses = Ingresses(knative_plane, "users", "ours", process.binds)
        await asyncio.to_thread(ingresses.service, "a", "192.0.2.1")
        await asyncio.to_thread(ingresses.put, "one", "a")
        await ingresses.ready("one")
        await asyncio.to_thread(ingresses.put, "one", "a", path={"path": "/only"})
        await ingresses.ready("one")
        # The Lease is renewed every two seconds.
        await asyncio.to_thread(until, lambda: may <= ACCOUNT.uses(knative_plane, may).all, "each right to be used")
        assert await process.end() == 0
    found = await asyncio.to_thread(ACCOUNT.uses, knative_plane, may)
    assert found.refused == set(), "the roles lack this"
    assert found.all == may
    # Whoever comes next need not wait for the Lease.
    lease = client.CoordinationV1Api(knative_plane.api).read_namespaced_lease("gnomon-ingress", SYSTEM)
    assert not cast("Any", lease).spec.holder_identity


def test_the_deployment_is_accepted_and_its_pods_are_restricted(knative_plane: Cluster, compiled: build.Programs) -> None:
    restrict(knative_plane, SYSTEM)
    Kubectl(compiled.folder / "kubectl", knative_plane.kubeconfig)("apply", "--validate=strict", "-k", str(ACCESS.parent))
    [container] = admitted(knative_plane, "gnomon-ingress", SYSTEM)["containers"]
    asked_for = options(parser().parse_args(container["args"]))
    listening = {str(port["containerPort"]) for port in container["ports"]}
    binds = asked_for.proxy.binds
    told = (binds.http, binds.https, binds.local, *asked_for.controller.own, asked_for.page)
    assert {bind.rpartition(":")[2] for bind in told} == listening
    assert container["livenessProbe"]["httpGet"]["port"] == "page"
    services = {one.metadata.name for one in knative_plane.core.list_namespaced_service(SYSTEM).items}
    addresses = asked_for.controller.addresses
    assert {addresses.public.split(".")[0], addresses.private.split(".")[0], "gnomon-ingress-peers"} == services
