"""What the ingress's service account may do is what it does: no more, and no less; and it ends as it is told to."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from kubernetes import client

from deploy.test_cluster import build
from deploy.test_cluster.client import Kubectl, documents
from deploy.test_cluster.clusters import Cluster, reached, until
from deploy.test_cluster.control_plane import ControlPlane
from deploy.test_cluster.processes import Programs
from gnomon_platforms.knative.ingress.__main__ import options, parser
from gnomon_platforms.knative.ingress.config import Binds
from tests.kubernetes.knative_ingress.conftest import Ingresses, install_kinds

ACCESS = Path(__file__).parents[3] / "deploy" / "knative" / "ingress" / "access.yaml"
SYSTEM, ACCOUNT = "knative-serving", "gnomon-ingress"
USER = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"

Use = tuple[str, str, str]
"""Group, resource with its subresource, verb."""


@pytest.fixture
def own_plane(compiled: build.Programs, tmp_path: Path) -> Iterator[Cluster]:
    plane = ControlPlane(tmp_path / "state", compiled.folder, Programs(tmp_path / "state", end_with_us=True))
    try:
        plane.boot()
        cluster = reached(plane.kubeconfig)
        install_kinds(cluster, compiled, "networking/ingress.yaml", "serving/300-resources/revision.yaml")
        for name in (SYSTEM, "users"):
            cluster.core.create_namespace({"metadata": {"name": name}})
        yield cluster
        cluster.api.close()
    finally:
        plane.end()


def account(cluster: Cluster, compiled: build.Programs, folder: Path) -> Path:
    """A kubeconfig with the account's token, after the roles of the deployment were applied."""
    Kubectl(compiled.folder / "kubectl", cluster.kubeconfig).apply(documents(ACCESS))
    token = cluster.core.create_namespaced_service_account_token(ACCOUNT, SYSTEM, {"spec": {"expirationSeconds": 3600}})
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    [user] = config["users"]
    user["user"] = {"token": token.status.token}
    file = folder / "account.conf"
    file.write_text(json.dumps(config))
    file.chmod(0o600)
    return file


def asked() -> set[Use]:
    """All that the roles allow."""
    rules = [rule for one in documents(ACCESS) for rule in one.get("rules", ())]
    each = [(rule["apiGroups"], rule["resources"], rule["verbs"]) for rule in rules]
    return {(group, kind, verb) for groups, kinds, verbs in each for group in groups for kind in kinds for verb in verbs}


def used(cluster: Cluster) -> tuple[set[Use], set[Use]]:
    """What the account did, and what it was refused, by the audit log."""
    lines = (cluster.kubeconfig.parent / "logs" / "audit.log").read_text().splitlines()
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    done, refused = set(), set()
    for one in whole:
        if one["user"]["username"] == USER and "objectRef" in one:
            target = one["objectRef"]
            kind = "/".join(part for part in (target["resource"], target.get("subresource")) if part)
            done.add((target.get("apiGroup", ""), kind, one["verb"]))
            if one.get("responseStatus", {}).get("code") == 403:
                refused.add((target.get("apiGroup", ""), kind, one["verb"]))
    return done, refused


async def test_what_the_account_may_do_is_what_it_does(
    own_plane: Cluster, compiled: build.Programs, tmp_path: Path, haproxy: None
) -> None:
    kubeconfig = await asyncio.to_thread(account, own_plane, compiled, tmp_path)
    folder = Path(tempfile.mkdtemp(prefix="gnomon-"))
    binds = Binds(*(f"unix@{folder}/{name}.sock" for name in ("http", "https", "local", "probe-http", "probe-local")))
    given = [f"--{name.replace('_', '-')}={getattr(binds, name)}" for name in binds.__dataclass_fields__]
    given += [f"--folder={folder}/proxy", f"--kubeconfig={kubeconfig}", "--gateway=192.0.2.9:8080", "--ingress-class=ours"]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "gnomon_platforms.knative.ingress", *given)
    try:
        ingresses = Ingresses(own_plane, "users", "ours", binds)
        await asyncio.to_thread(ingresses.service, "a", "192.0.2.1")
        await asyncio.to_thread(ingresses.put, "one", "a")
        await ingresses.ready("one")
        await asyncio.to_thread(ingresses.put, "one", "a", path={"path": "/only"})
        await ingresses.ready("one")
        # The Lease is renewed every two seconds.
        await asyncio.to_thread(until, lambda: asked() <= used(own_plane)[0], "each right to be used")
    finally:
        process.send_signal(signal.SIGTERM)
        status = await asyncio.wait_for(process.wait(), 60.0)
        shutil.rmtree(folder)
    assert status == 0
    done, refused = await asyncio.to_thread(used, own_plane)
    assert refused == set(), "the roles lack this"
    assert done == asked()
    # Whoever comes next need not wait for the Lease.
    lease = client.CoordinationV1Api(own_plane.api).read_namespaced_lease("gnomon-ingress", SYSTEM)
    assert not cast("Any", lease).spec.holder_identity


def test_the_deployment_is_accepted_and_its_pods_are_restricted(own_plane: Cluster, compiled: build.Programs) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    own_plane.core.patch_namespace(SYSTEM, {"metadata": {"labels": labels}})
    kubectl = Kubectl(compiled.folder / "kubectl", own_plane.kubeconfig)
    kubectl("apply", "--validate=strict", "-k", str(ACCESS.parent))
    template = own_plane.apps.read_namespaced_deployment("gnomon-ingress", SYSTEM).spec.template
    spec = own_plane.api.sanitize_for_serialization(template.spec)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": spec}
    own_plane.core.create_namespaced_pod(SYSTEM, pod, dry_run="All")
    [container] = spec["containers"]
    asked_for = options(parser().parse_args(container["args"]))
    listening = {str(port["containerPort"]) for port in container["ports"]}
    binds = asked_for.proxy.binds
    assert {bind.rpartition(":")[2] for bind in (binds.http, binds.https, binds.local, *asked_for.controller.own)} == listening
    services = {one.metadata.name for one in own_plane.core.list_namespaced_service(SYSTEM).items}
    addresses = asked_for.controller.addresses
    assert {addresses.public.split(".")[0], addresses.private.split(".")[0], "gnomon-ingress-peers"} == services
