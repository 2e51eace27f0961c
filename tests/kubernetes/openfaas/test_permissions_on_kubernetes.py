"""The gateway's service account has exactly the permissions that it uses.

The platform runs as the account of deploy/openfaas, with its own token, and does all that it can do. What the API server's audit
log says of it is compared with the roles.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from kubernetes.client import AutoscalingV2Api

from gnomon_core.clock import WallClock
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import LogQuery, StoredFunction, StoredNamespace
from gnomon_core.ownership import OwnershipMap, Replica
from gnomon_platforms.kubernetes.client import Api, connect
from gnomon_platforms.kubernetes.lease import Leader, Tenure
from gnomon_platforms.kubernetes.ownership import ConfigMapBoard
from gnomon_platforms.kubernetes.resources import LEASES
from gnomon_platforms.kubernetes.writes import Target, Writer
from gnomon_platforms.openfaas.observed import OpenFaasOptions
from gnomon_platforms.openfaas.permissions import WIDE
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from gnomon_platforms.openfaas.store import KubernetesStore
from tests.cluster import build
from tests.cluster.client import Cluster, Kubectl, reached, until
from tests.contracts.test_platform import deployment, instance_of
from tests.kubernetes.access import EVERYWHERE, Use, asked, moment
from tests.kubernetes.openfaas.as_gateway import ACCOUNT, DEPLOY, FUNCTIONS, MAY, SYSTEM, installed_account
from tests.kubernetes.openfaas.kubelet import Kubelet
from tests.platform_testing import Recorder
from tests.waiting import until as holds

OPTIONS = OpenFaasOptions(namespace=FUNCTIONS, adopting_s=0.0, start_timeout_s=60.0, stored=True)


@pytest.fixture
def account(controlled: Cluster, compiled: build.Programs, tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig with the token of the gateway's service account, which has the roles of deploy/openfaas."""
    with installed_account(controlled, compiled, tmp_path) as kubeconfig:
        yield kubeconfig


async def act(kubeconfig: Path, rivalled: Callable[[], Awaitable[None]]) -> None:
    """All that the platform does to a cluster: lead, deploy, place, resize, update, make way for another autoscaler, remove.

    `rivalled` lets an autoscaler target the function.
    """
    api, clock, rng = await asyncio.to_thread(connect, kubeconfig), WallClock(), random.Random(1)
    tenure = Tenure(gone=pytest.fail)
    leader = Leader(Writer(api, clock, rng), Target(LEASES, SYSTEM, "gnomon"), "this", tenure, clock)
    await leader.attempt()
    await leader.attempt()
    assert tenure.leading
    await share(api, Writer(api, clock, rng, tenure.check))

    store = await asyncio.to_thread(lambda: KubernetesStore(api, namespace=FUNCTIONS, fence=tenure.check))
    await asyncio.to_thread(keep_a_secret, store)
    platform, listener = OpenFaasPlatform(api, OPTIONS, fence=tenure.check), Recorder()
    await platform.start(listener)
    spec, newer = deployment(annotations={"gnomon/cores": "1"}), deployment(envVars={"newer": "1"})
    await asyncio.to_thread(store.put_function, StoredFunction(spec, 1, 1.5))
    first = await platform.create(instance_of(spec, version=1))
    await listener.channel(first.id)
    await platform.resize(first.id, 2)
    for _ in range(600):
        if platform.instances("echo.openfaas-fn")[0].cores == 2:
            break
        await asyncio.sleep(0.05)
    # Another instance takes its place at once: the ReplicaSet is not scaled down, and the pod is deleted by its uid.
    await platform.destroy(first.id)
    first = await platform.create(instance_of(spec, version=1))
    await listener.channel(first.id)
    with contextlib.suppress(GnomonError):  # whom the test plays as a node keeps no logs
        await platform.logs.lines(LogQuery(spec.key))
    await asyncio.to_thread(store.put_function, StoredFunction(newer, 2, 1.5))
    second = await platform.create(instance_of(newer, version=2))
    await listener.channel(second.id)
    await rivalled()
    await listener.until(lambda: any("also scales this Deployment" in text for _, text in listener.lines))
    await asyncio.to_thread(store.delete_function, spec.key)
    for instance in (first, second):
        await platform.destroy(instance.id)
        await listener.reason(instance.id)  # the first one's pod may have been replaced by the rolling update already
    deployments = platform._cluster.deployments
    await deployments.until(lambda: not deployments.values(), 60.0)
    await platform.stop()
    await asyncio.to_thread(store.close)
    await leader.release()
    api.close()


async def share(api: Api, writer: Writer) -> None:
    """Publish which gateway has which functions, twice."""
    board = ConfigMapBoard(api, writer, SYSTEM, "app.kubernetes.io/component=gateway")
    await board.start()
    for epoch in (1, 2):
        assert await board.publish(OwnershipMap(epoch, (Replica("this", "http://10.0.0.1:8082", 1),)))
    await board.stop()
    writer.close()


def keep_a_secret(store: KubernetesStore) -> None:
    key = FunctionKey("api-key", FUNCTIONS)
    for value in (b"one", b"two"):
        store.put_secret(key, value)
    assert list(store.secrets(FUNCTIONS)) == ["api-key"]
    assert store.delete_secret(key)


async def test_gateway_role_grants_exactly_what_it_uses(controlled: Cluster, kubelet: Kubelet, account: Path) -> None:
    assert kubelet.name == "node-a"
    began = moment()

    async def rivalled() -> None:
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "echo"}
        body = {"metadata": {"name": "theirs"}, "spec": {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 2}}
        make = AutoscalingV2Api(controlled.api).create_namespaced_horizontal_pod_autoscaler
        await asyncio.to_thread(make, FUNCTIONS, cast("Any", body))

    try:
        await act(account, rivalled)
    finally:
        AutoscalingV2Api(controlled.api).delete_collection_namespaced_horizontal_pod_autoscaler(FUNCTIONS)
    found = await asyncio.to_thread(ACCOUNT.uses, controlled, MAY, began)
    assert found.refused == set(), "the roles lack this"
    assert found.all - MAY == set(), "this is used, and not in gnomon_platforms.openfaas.permissions"
    assert MAY - found.all == set(), "this is asked for, and never used"


async def test_gateway_role_refuses_everything_else(controlled: Cluster, account: Path) -> None:
    """The account reads no secrets but those of functions, makes no pods and gives nobody rights."""
    cluster = reached(account)

    def status(call: Any, *given: Any) -> int:
        try:
            call(*given)
        except Exception as error:  # noqa: BLE001 - only its status matters
            return int(getattr(error, "status", 0))
        return 200

    until(lambda: status(cluster.core.list_node) == 200, "the roles to be known")
    try:
        assert status(cluster.core.list_secret_for_all_namespaces) == 403
        assert status(cluster.core.read_namespaced_secret, "basic-auth", SYSTEM) == 403
        assert status(cluster.core.create_namespaced_pod, FUNCTIONS, {"metadata": {"name": "mine"}}) == 403
        assert status(cluster.core.read_namespace, "kube-system") == 403
    finally:
        cluster.api.close()


async def test_a_functions_pod_has_no_token_of_the_api_server(controlled: Cluster, kubelet: Kubelet) -> None:
    """Not in its own specification, nor in what admission made of it."""
    api = await asyncio.to_thread(connect, controlled.kubeconfig)
    platform, listener = OpenFaasPlatform(api, replace(OPTIONS, stored=False)), Recorder()
    await platform.start(listener)
    await listener.channel((await platform.create(instance_of(deployment()))).id)
    [pod] = (await asyncio.to_thread(controlled.core.list_namespaced_pod, FUNCTIONS)).items
    assert pod.spec.automount_service_account_token is False
    sources = [source for volume in pod.spec.volumes for source in (volume.projected.sources if volume.projected else ())]
    assert [source for source in sources if source.service_account_token] == []
    mounts = [mount.mount_path for container in pod.spec.containers for mount in container.volume_mounts]
    assert [path for path in mounts if "serviceaccount" in path] == []
    # The namespace's own account has nothing to give either.
    review = {"user": f"system:serviceaccount:{FUNCTIONS}:default", "resourceAttributes": {"verb": "get", "resource": "pods"}}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {**review, "groups": ["system:serviceaccounts"]},
    }
    answer = await asyncio.to_thread(api.call, "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body=body)
    assert answer["status"]["allowed"] is False
    await platform.stop()


TEAM = "team-a"


def roles(kubectl: Kubectl, folder: Path) -> Path:
    """The roles of deploy/openfaas/cluster-wide, as a file."""
    here = folder.resolve() / "wide"
    here.mkdir()
    parts = {"resources": DEPLOY, "components": DEPLOY / "cluster-wide"}
    document = {field: [os.path.relpath(path, here)] for field, path in parts.items()}
    (here / "kustomization.yaml").write_text(json.dumps(document))
    made = [row for row in yaml.safe_load_all(kubectl("kustomize", str(here))) if row["kind"].startswith("ClusterRole")]
    file = here / "roles.yaml"
    file.write_text(yaml.safe_dump_all(made))
    return file


async def test_a_cluster_wide_gateway_may_do_beside_the_rest_what_it_does(
    controlled: Cluster, compiled: build.Programs, tmp_path: Path
) -> None:
    file, began = roles(Kubectl(compiled.folder / "kubectl", controlled.kubeconfig), tmp_path), moment()
    with installed_account(controlled, compiled, tmp_path, file) as kubeconfig:
        api = await asyncio.to_thread(connect, kubeconfig)
        store = await asyncio.to_thread(KubernetesStore, api)
        platform = OpenFaasPlatform(api, OpenFaasOptions(adopting_s=0.0, stored=True))
        await platform.start(Recorder())
        # Made, changed, and let go of.
        for labels in ({}, {"team": "a"}):
            await asyncio.to_thread(store.put_namespace, StoredNamespace(TEAM, labels))
        await holds(lambda: TEAM in [namespace.name for namespace in store.namespaces()], "it does not see what it made")
        await asyncio.to_thread(store.delete_namespace, TEAM)
        await platform.stop()
        await asyncio.to_thread(store.close)
        api.close()
    controlled.core.delete_namespace(TEAM)
    may, cluster_wide = (
        asked(file),
        {Use(EVERYWHERE, permission.group, permission.resource, verb) for permission in WIDE for verb in permission.verbs},
    )
    found = await asyncio.to_thread(ACCOUNT.uses, controlled, may, began)
    assert found.refused == set(), "the roles lack this"
    assert found.all - may == set(), "this is used, and not in the roles"
    assert cluster_wide - found.all == set(), "this is asked for, and never used"
