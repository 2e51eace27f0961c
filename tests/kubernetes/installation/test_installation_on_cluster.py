"""The whole of it on a cluster with a node: our image, `kubectl apply -k`, and a gateway that answers and that doctor finds well.

The image is built from its own Dockerfile where the cluster is ours; another one gets it from where GNOMON_GATEWAY_IMAGE says.
Nothing is installed where a namespace `openfaas` is there already.
"""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from kubernetes import client

from gnomon_cli.main import gnomon
from gnomon_core.ownership import OwnershipMap
from gnomon_platforms.kubernetes.ownership import KEY, NAME
from tests.cluster import build, models
from tests.cluster.client import Cluster, Kubectl, until
from tests.cluster.phases import CannotBeHad
from tests.cluster.settings import folders
from tests.kubernetes.installation.forms import overlaid

SYSTEM, FUNCTIONS = "openfaas", "openfaas-fn"
START_LIMIT_S = 240.0
GATEWAY = "app.kubernetes.io/component=gateway"
NOT_FOUND = 404


@pytest.fixture(scope="module")
def gateway_image(cluster: Cluster) -> str:
    try:
        return models.small(cluster, "gnomon-gateway", "GNOMON_GATEWAY_IMAGE")
    except CannotBeHad as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def gateway(
    cluster: Cluster, compiled: build.Programs, gateway_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """An installation; gone afterwards."""
    if {SYSTEM, FUNCTIONS} & {namespace.metadata.name for namespace in cluster.core.list_namespace().items}:
        pytest.skip("something is installed on this cluster already")
    kubectl = Kubectl(compiled.folder / "kubectl", cluster.kubeconfig)
    overlay = overlaid(tmp_path_factory.mktemp("overlay"), "openfaas", {"gnomon-gateway": gateway_image})
    try:
        kubectl("apply", "-k", str(overlay))
        # The pods wait for the second, and look for the first when they start.
        login = {"basic-auth-user": "admin", "basic-auth-password": secrets.token_hex(24)}
        for name, held in (("gateway-peers", {"secret": secrets.token_hex(24)}), ("basic-auth", login)):
            cluster.core.create_namespaced_secret(SYSTEM, {"metadata": {"name": name}, "stringData": held})
        until(lambda: ready(cluster) == 2, "two gateways", START_LIMIT_S)
        yield cluster
    finally:
        kubectl("delete", "-k", str(overlay), "--ignore-not-found", "--timeout=180s", limit_s=200)


def ready(cluster: Cluster) -> int:
    return cluster.apps.read_namespaced_deployment("gateway", SYSTEM).status.ready_replicas or 0


def pods(cluster: Cluster) -> list[Any]:
    return list(cluster.core.list_namespaced_pod(SYSTEM, label_selector=GATEWAY).items)


def holder(cluster: Cluster) -> str:
    """The Lease's holder."""
    leases: Any = client.CoordinationV1Api(cluster.api).list_namespaced_lease(SYSTEM)
    [lease] = leases.items
    return str(lease.spec.holder_identity)


def in_pod(cluster: Cluster, *command: str) -> str:
    """The output of a command in a gateway's container, whatever its exit status."""
    kept = build.kept(folders())
    assert kept is not None
    shell = ["sh", "-c", f"{shlex.join(command)} 2>&1 || true"]
    name = pods(cluster)[0].metadata.name
    return Kubectl(kept.folder / "kubectl", cluster.kubeconfig)("exec", "-n", SYSTEM, name, "--", *shell)


def asked(cluster: Cluster, path: str) -> tuple[int, bytes]:
    """A request to the gateway's Service, from inside of a pod of its own."""
    code = (
        "import urllib.request, urllib.error\n"
        "try:\n"
        f"    answer = urllib.request.urlopen('http://gateway.openfaas:8080{path}', timeout=20)\n"
        "    print(answer.status, answer.read().decode())\n"
        "except urllib.error.HTTPError as error:\n"
        "    print(error.code, error.read().decode())\n"
    )
    status, _, body = in_pod(cluster, "python3", "-c", code).partition(" ")
    return int(status), body.encode()


def test_two_gateways_serve_and_one_of_them_leads(gateway: Cluster) -> None:
    assert asked(gateway, "/healthz")[0] == 200
    # Whoever has no login is refused.
    assert asked(gateway, "/system/functions")[0] == 401
    assert holder(gateway).rpartition("_")[0] in {pod.metadata.name for pod in pods(gateway)}


def test_both_share_the_functions_and_the_one_that_leads_has_no_queues(gateway: Cluster) -> None:
    def published() -> OwnershipMap | None:
        try:
            data = gateway.core.read_namespaced_config_map(NAME, SYSTEM).data
        except client.ApiException as error:
            if error.status != NOT_FOUND:
                raise
            return None
        return OwnershipMap.from_json(json.loads(data[KEY]))

    def shared() -> bool:
        found = published()
        return found is not None and (len(found.members), len(found.owners)) == (2, 1)

    until(shared, "a map of owners with both replicas, of which one owns")
    found = published()
    assert found is not None
    [owner] = found.owners
    assert owner.id != holder(gateway)


def test_the_image_writes_nowhere_but_where_it_may_and_installs_nothing(gateway: Cluster) -> None:
    assert in_pod(gateway, "id", "-u").strip() == "10001"
    assert "Read-only file system" in in_pod(gateway, "python3", "-c", "open('/opt/gnomon/x', 'w')")
    assert in_pod(gateway, "python3", "-c", "open('/tmp/x', 'w'); print('written')").strip() == "written"
    for module in ("pip", "ensurepip"):
        assert f"No module named {module}" in in_pod(gateway, "python3", "-m", module)
    tools = "import shutil; print([name for name in ('pip', 'uv', 'gcc', 'cc', 'make', 'apt-get') if shutil.which(name)])"
    assert in_pod(gateway, "python3", "-c", tools).strip() in ("[]", "['apt-get']")


def test_doctor_finds_it_well(gateway: Cluster) -> None:
    words = ["doctor", "--json", "--platform", "openfaas", "--kubeconfig", str(gateway.kubeconfig)]
    result = CliRunner().invoke(gnomon, [*words, "--service-account", "openfaas:gateway"])
    found = json.loads(result.output)
    assert [row for row in found if row["level"] == "fail"] == []
    assert result.exit_code == 0
    levels = {row["check"]: row["level"] for row in found}
    assert {levels[check] for check in ("gateway", "permissions", "in-place resize", "login", "replicas")} == {"ok"}
