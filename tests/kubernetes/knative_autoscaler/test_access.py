"""The autoscaler's service account has exactly the permissions that it uses."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import yaml
from kubernetes import client

from gnomon_platforms.knative.autoscaler.cluster import AutoscalerOptions
from gnomon_platforms.knative.autoscaler.shadows import ModelOptions
from gnomon_platforms.knative.resources import GATEWAY_LABELS
from gnomon_platforms.nodes.models import ServedModels
from gnomon_profiler.repository import DirectoryRepository
from gnomon_server.knative_autoscaler import KnativeOptions, KnativeService
from tests.cluster import build
from tests.cluster.client import Cluster, Kubectl, documents
from tests.kubernetes.access import EVERYWHERE, Account, Use, admitted, asked, restrict
from tests.kubernetes.kinds import SCALED_OBJECTS, conflicting_autoscaler, define, install_kinds
from tests.kubernetes.knative_autoscaler.conftest import KINDS
from tests.kubernetes.knative_autoscaler.played_knative import SERVING, PlayedKnative
from tests.kubernetes.knative_autoscaler.test_reconciler import ONE_CORE, QUICK, K, until

FOLDER = Path(__file__).parents[3] / "deploy" / "knative" / "autoscaler"
SYSTEM = "knative-serving"
ACCOUNT = Account(SYSTEM, "gnomon-autoscaler")
CHECKED_BY_ADMISSION = {Use(EVERYWHERE, "autoscaling.internal.knative.dev", "podautoscalers/finalizers", "update")}
"""Asked by the API server itself, where OwnerReferencesPermissionEnforcement is on, and never sent."""


@pytest.fixture
def knative_plane(own_plane: Cluster, compiled: build.Programs) -> Cluster:
    """A control plane without other tests' Revisions: this account looks after every namespace."""
    install_kinds(own_plane, compiled, *KINDS)
    define(own_plane, SCALED_OBJECTS)
    return own_plane


@pytest.fixture
def played(knative_plane: Cluster) -> Iterator[PlayedKnative]:
    knative = PlayedKnative(knative_plane, "users", SYSTEM, 99)
    knative.start()
    yield knative
    knative.stop()


async def test_role_grants_exactly_what_the_account_uses(
    own_plane: Cluster, played: PlayedKnative, compiled: build.Programs, tmp_path: Path
) -> None:
    data = {"scale-to-zero-grace-period": "1s"}
    own_plane.core.create_namespaced_config_map(SYSTEM, {"metadata": {"name": "config-autoscaler"}, "data": data})
    Kubectl(compiled.folder / "kubectl", own_plane.kubeconfig).apply(documents(FOLDER / "access.yaml"))
    may = asked(FOLDER / "access.yaml")
    kubeconfig = await asyncio.to_thread(ACCOUNT.kubeconfig, own_plane, tmp_path)
    # Nodes are looked at by who has models to decide by.
    models = ModelOptions(ServedModels(DirectoryRepository(tmp_path / "models"), tmp_path / "models"))
    service = KnativeService(KnativeOptions(kubeconfig=kubeconfig, scaled=AutoscalerOptions(models=models)), Random(1))
    await service.start()
    try:
        # To zero and back, another that asks for an activator at its Service first, and one whose pods somebody else counts.
        played.revision("f-00001", QUICK)
        played.revision("asks-00001", {**QUICK, K + "target-burst-capacity": "0"})
        theirs = cast("Any", conflicting_autoscaler("theirs-00001-deployment"))
        client.AutoscalingV2Api(own_plane.api).create_namespaced_horizontal_pod_autoscaler("users", theirs)
        played.revision("theirs-00001", QUICK)
        await until(lambda: played.replicas("f-00001") == 0, "no pods")
        played.queued["f-00001"] = 1
        await until(lambda: played.replicas("f-00001") == 1, "a pod for what waits")
        played.revision("sized-00001", {**QUICK, "gnomon/cores": "2"}, **ONE_CORE)
        last = {Use(EVERYWHERE, "", "services", "get"), Use(EVERYWHERE, "", "pods/resize", "patch")}
        last |= {Use(EVERYWHERE, "", "events", "create")}
        await until(lambda: last <= ACCOUNT.uses(own_plane, may).all, "the Service's address, an Event, and other cores")
        await led_to_a_gateway_and_back(own_plane, played)
    finally:
        await service.stop()
    found = await asyncio.to_thread(ACCOUNT.uses, own_plane, may)
    assert found.refused == set(), "the roles lack this"
    assert found.all - may == set(), "this is used, and not in the roles"
    assert may - found.all == CHECKED_BY_ADMISSION, "this is asked for, and never used"
    assert not any("*" in part for use in may for part in use)


async def led_to_a_gateway_and_back(cluster: Cluster, played: PlayedKnative) -> None:
    """The Service of a Revision that batches leads to a gateway, past it while that is not ready, and is left to Knative."""
    name, pod, gateway = "batches-00001", "10.254.0.1", "10.254.0.2"
    slices: Any = client.DiscoveryV1Api(cluster.api)

    def led_to() -> list[str]:
        found = slices.list_namespaced_endpoint_slice("users", label_selector=f"kubernetes.io/service-name={name}").items
        return [address for endpoint_slice in found for each in endpoint_slice.endpoints for address in each.addresses]

    labels = dict(shadow.split("=") for shadow in GATEWAY_LABELS.split(","))
    container = {"name": "gateway", "image": "dev.local/none:v1"}
    cluster.core.create_namespaced_pod(
        SYSTEM, {"metadata": {"name": "gateway", "labels": labels}, "spec": {"containers": [container]}}
    )

    def ready(text: str) -> None:
        conditions = [{"type": "Ready", "status": text}]
        status = {"phase": "Running", "podIP": gateway, "podIPs": [{"ip": gateway}], "conditions": conditions}
        cluster.core.patch_namespaced_pod_status("gateway", SYSTEM, {"status": status})

    await asyncio.to_thread(ready, "True")
    played.revision(name, {**QUICK, "gnomon/max-batch": "8"})
    subsets = [{"addresses": [{"ip": pod}], "ports": [{"name": "http", "port": 8012}]}]
    metadata = {"name": name, "labels": {"networking.internal.knative.dev/serviceType": "Public"}}
    cluster.core.create_namespaced_endpoints("users", {"metadata": metadata, "subsets": subsets})
    await until(lambda: led_to() == [gateway], "its Service to lead to the gateway")
    await asyncio.to_thread(ready, "False")
    await until(lambda: led_to() == [pod], "its Service to lead past the gateway")
    patch = {"metadata": {"annotations": {"gnomon/max-batch": None}}}
    cluster.custom.patch_namespaced_custom_object(*SERVING, "users", "revisions", name, patch)
    await until(lambda: led_to() == [], "Knative to have the Service")


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
    lease: Any = client.CoordinationV1Api(own_plane.api).read_namespaced_lease("gnomon-knative-autoscaler", SYSTEM)
    assert not lease.spec.holder_identity
    assert lease.spec.lease_transitions > 200_000_000, "nodes may have obeyed the class before it was removed and installed again"


def test_the_deployment_is_accepted_and_its_pods_are_restricted(own_plane: Cluster, compiled: build.Programs) -> None:
    own_plane.core.create_namespace({"metadata": {"name": SYSTEM}})
    restrict(own_plane, SYSTEM)
    Kubectl(compiled.folder / "kubectl", own_plane.kubeconfig)("apply", "--validate=strict", "-k", str(FOLDER))
    [container] = admitted(own_plane, "gnomon-autoscaler", SYSTEM)["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_nothing_that_is_applied_is_left_out_of_the_kustomization() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert set(listed) == {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
