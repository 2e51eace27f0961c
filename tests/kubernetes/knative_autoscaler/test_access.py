"""What the autoscaler's service account may do is what it does: no more, and no less."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import yaml
from kubernetes import client

from deploy.test_cluster import build
from deploy.test_cluster.client import Kubectl, documents
from deploy.test_cluster.clusters import Cluster, reached
from deploy.test_cluster.control_plane import ControlPlane
from deploy.test_cluster.processes import Programs
from gnomon_cli.knative import KnativeOptions, KnativeService
from gnomon_platforms.knative.scaling.autoscaler import AutoscalerOptions
from tests.kubernetes.knative_autoscaler.conftest import install_kinds
from tests.kubernetes.knative_autoscaler.played_knative import PlayedKnative
from tests.kubernetes.knative_autoscaler.test_reconciler import QUICK, K, until

FOLDER = Path(__file__).parents[3] / "deploy" / "knative" / "autoscaler"
SYSTEM, ACCOUNT = "knative-serving", "gnomon-autoscaler"
USER = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"
CHECKED_BY_ADMISSION = {("autoscaling.internal.knative.dev", "podautoscalers/finalizers", "update")}
"""Asked by the API server itself, where OwnerReferencesPermissionEnforcement is on, and never sent."""

Use = tuple[str, str, str]
"""Group, resource with its subresource, verb."""


@pytest.fixture
def own_plane(compiled: build.Programs, tmp_path: Path) -> Iterator[Cluster]:
    """One without other tests' Revisions: this account looks after every namespace."""
    plane = ControlPlane(tmp_path / "state", compiled.folder, Programs(tmp_path / "state", end_with_us=True))
    try:
        plane.boot()
        cluster = reached(plane.kubeconfig)
        install_kinds(cluster, compiled)
        yield cluster
        cluster.api.close()
    finally:
        plane.end()


@pytest.fixture
def played(own_plane: Cluster) -> Iterator[PlayedKnative]:
    knative = PlayedKnative(own_plane, "users", SYSTEM, 99)
    knative.start()
    yield knative
    knative.stop()


def account(cluster: Cluster, compiled: build.Programs, folder: Path) -> Path:
    """A kubeconfig with the account's token, after the roles of the deployment were applied."""
    Kubectl(compiled.folder / "kubectl", cluster.kubeconfig).apply(documents(FOLDER / "access.yaml"))
    token = cluster.core.create_namespaced_service_account_token(ACCOUNT, SYSTEM, {"spec": {"expirationSeconds": 3600}})
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    [user] = config["users"]
    user["user"] = {"token": token.status.token}
    file = folder / "account.conf"
    file.write_text(json.dumps(config))
    file.chmod(0o600)
    return file


def events(cluster: Cluster) -> list[dict[str, Any]]:
    lines = (cluster.kubeconfig.parent / "logs" / "audit.log").read_text().splitlines()
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    return [one for one in whole if one["user"]["username"] == USER and "objectRef" in one]


def use_of(event: dict[str, Any]) -> Use:
    target = event["objectRef"]
    resource = "/".join(part for part in (target["resource"], target.get("subresource")) if part)
    return target.get("apiGroup", ""), resource, event["verb"]


def asked() -> set[Use]:
    """All that the roles allow."""
    rules = [rule for one in documents(FOLDER / "access.yaml") for rule in one.get("rules", ())]
    assert all(set(rule) == {"apiGroups", "resources", "verbs"} for rule in rules)
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


async def test_what_the_account_may_do_is_what_it_does(
    own_plane: Cluster, played: PlayedKnative, compiled: build.Programs, tmp_path: Path
) -> None:
    data = {"scale-to-zero-grace-period": "1s"}
    own_plane.core.create_namespaced_config_map(SYSTEM, {"metadata": {"name": "config-autoscaler"}, "data": data})
    kubeconfig = await asyncio.to_thread(account, own_plane, compiled, tmp_path)
    service = KnativeService(KnativeOptions(kubeconfig=kubeconfig, scaled=AutoscalerOptions()), Random(1))
    await service.start()
    try:
        # To zero and back, and another that asks for an activator at its Service first.
        played.revision("f-00001", QUICK)
        played.revision("asks-00001", {**QUICK, K + "target-burst-capacity": "0"})
        await until(lambda: played.replicas("f-00001") == 0, "no pods")
        played.queued["f-00001"] = 1
        await until(lambda: played.replicas("f-00001") == 1, "a pod for what waits")
        await until(lambda: any(use_of(one) == ("", "services", "get") for one in events(own_plane)), "the Service's address")
    finally:
        await service.stop()
    found = await asyncio.to_thread(events, own_plane)
    assert {use_of(one) for one in found if one.get("responseStatus", {}).get("code") == 403} == set(), "the roles lack this"
    used = {use_of(one) for one in found}
    assert used - asked() == set(), "this is used, and not in the roles"
    assert asked() - used == CHECKED_BY_ADMISSION, "this is asked for, and never used"
    assert not any("*" in part for use in asked() for part in use)


async def test_gnomon_serve_scales_knative_until_it_is_told_to_end(own_plane: Cluster, played: PlayedKnative) -> None:
    gnomon = Path(sys.executable).with_name("gnomon")
    arguments = ["serve", "--platform", "knative", "--kubeconfig", str(own_plane.kubeconfig), "--port", "0"]
    process = await asyncio.create_subprocess_exec(gnomon, *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(90.0):
            assert await process.stdout.readline() == b"Gnomon scales Revisions of the class gnomon. Ctrl-C stops it.\n"
        played.revision("f-00001", QUICK)
        await until(lambda: played.condition("f-00001", "Ready")["status"] == "True", "Ready")
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60.0):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    # Whoever comes next need not wait for the Lease.
    lease = client.CoordinationV1Api(own_plane.api).read_namespaced_lease("gnomon-knative-autoscaler", SYSTEM)
    assert not cast("Any", lease).spec.holder_identity


def test_the_deployment_is_accepted_and_its_pods_are_restricted(own_plane: Cluster, compiled: build.Programs) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    own_plane.core.create_namespace({"metadata": {"name": SYSTEM, "labels": labels}})
    kubectl = Kubectl(compiled.folder / "kubectl", own_plane.kubeconfig)
    kubectl("apply", "--validate=strict", "-k", str(FOLDER))
    template = own_plane.apps.read_namespaced_deployment("gnomon-autoscaler", SYSTEM).spec.template
    spec = own_plane.api.sanitize_for_serialization(template.spec)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": spec}
    own_plane.core.create_namespaced_pod(SYSTEM, pod, dry_run="All")
    [container] = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_nothing_that_is_applied_is_left_out_of_the_kustomization() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert set(listed) == {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
