"""What the gateway's service account may do is what it does; its process ends as it is told to; its pods are restricted."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from deploy.test_cluster import build
from deploy.test_cluster.client import Kubectl, documents
from deploy.test_cluster.clusters import Cluster
from gnomon_platforms.knative.ingress.__main__ import gateway_place
from gnomon_platforms.knative.scaling.resources import GATEWAY_LABELS
from gnomon_platforms.kubernetes.api import connect
from tests.kubernetes.access import Account, admitted, asked, restrict
from tests.kubernetes.kinds import install_kinds
from tests.kubernetes.knative_autoscaler.conftest import KINDS
from tests.kubernetes.knative_autoscaler.played_knative import PlayedKnative
from tests.kubernetes.knative_autoscaler.test_reconciler import QUICK
from tests.kubernetes.knative_batching.conftest import ENV, HANDLER, SECRET
from tests.kubernetes.knative_batching.pods import TOKEN, Pod

KNATIVE = Path(__file__).parents[3] / "deploy" / "knative"
FOLDER = KNATIVE / "gateway"
SYSTEM = "knative-serving"
ACCOUNT = Account(SYSTEM, "gnomon-gateway")


@pytest.fixture
def plane(own_plane: Cluster, compiled: build.Programs) -> Cluster:
    """One without other tests' Revisions: this account looks at every namespace."""
    install_kinds(own_plane, compiled, *KINDS)
    return own_plane


@pytest.fixture
def played(plane: Cluster) -> Iterator[PlayedKnative]:
    knative = PlayedKnative(plane, "users", SYSTEM, 98)
    knative.start()
    yield knative
    knative.stop()


async def test_what_the_account_may_do_is_what_it_does(
    plane: Cluster, played: PlayedKnative, compiled: build.Programs, tmp_path: Path
) -> None:
    Kubectl(compiled.folder / "kubectl", plane.kubeconfig).apply(documents(FOLDER / "access.yaml"))
    may = asked(FOLDER / "access.yaml")
    kubeconfig = await asyncio.to_thread(ACCOUNT.kubeconfig, plane, tmp_path)
    (tmp_path / "handler.py").write_text(HANDLER)
    seen: list[tuple[str, int]] = []
    played.begins = lambda _, address: Pod(address, tmp_path, seen, token=TOKEN)
    plane.core.create_namespaced_secret("users", {"metadata": {"name": SECRET}, "stringData": {SECRET: TOKEN}})
    gnomon = Path(sys.executable).with_name("gnomon")
    given = ["--platform=knative", "--gateway", "--port=0", "--page-port=0", f"--kubeconfig={kubeconfig}"]
    process = await asyncio.create_subprocess_exec(gnomon, "serve", *given, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 60.0)).decode()
        port = int(line.partition("on port ")[2].partition(".")[0])
        played.revision("f-00001", {**QUICK, "gnomon/max-batch": "8"}, env=ENV)
        names = {"Knative-Serving-Revision": "f-00001", "Knative-Serving-Namespace": "users"}
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=names) as user, user.post("/", data=b"x") as answer:
            assert (answer.status, await answer.read()) == (200, b"x")
    finally:
        process.send_signal(signal.SIGTERM)
        status = await asyncio.wait_for(process.wait(), 60.0)
    assert status == 0
    assert seen == [("/gnomon/batch", 1)]
    found = await asyncio.to_thread(ACCOUNT.uses, plane, may)
    assert found.refused == set(), "the roles lack this"
    assert found.all == may


def test_other_secrets_are_refused(plane: Cluster, compiled: build.Programs) -> None:
    plane.core.create_namespace({"metadata": {"name": SYSTEM}})
    kubectl = Kubectl(compiled.folder / "kubectl", plane.kubeconfig)
    kubectl.apply(documents(FOLDER / "access.yaml"))

    api = connect(plane.kubeconfig)

    def may(verb: str, name: str) -> bool:
        attributes = {"resource": "secrets", "verb": verb, "namespace": "users", "name": name}
        review = {"spec": {"user": ACCOUNT.user, "resourceAttributes": attributes}}
        answer = api.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body=review)
        return bool(answer["status"]["allowed"])

    assert may("get", SECRET)
    assert not may("get", "another")
    assert not may("list", "")
    api.close()


def test_the_deployment_is_accepted_and_is_where_the_ingress_leads_and_the_autoscaler_asks(
    plane: Cluster, compiled: build.Programs
) -> None:
    plane.core.create_namespace({"metadata": {"name": SYSTEM}})
    restrict(plane, SYSTEM)
    Kubectl(compiled.folder / "kubectl", plane.kubeconfig)("apply", "--validate=strict", "-k", str(FOLDER))
    [container] = admitted(plane, "gnomon-gateway", SYSTEM)["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    labels = plane.apps.read_namespaced_deployment("gnomon-gateway", SYSTEM).spec.template.metadata.labels
    assert dict(one.split("=") for one in GATEWAY_LABELS.split(",")).items() <= labels.items()

    [led] = [
        argument.removeprefix("--gateway=")
        for one in documents(KNATIVE / "ingress" / "ingress.yaml")
        if one["kind"] == "Deployment"
        for argument in one["spec"]["template"]["spec"]["containers"][0]["args"]
        if argument.startswith("--gateway=")
    ]
    place = gateway_place(led, SYSTEM)
    service = plane.core.read_namespaced_service(place.service[1], place.service[0])
    assert place.port in [one.port for one in service.spec.ports]
    assert service.spec.selector.items() <= labels.items()
