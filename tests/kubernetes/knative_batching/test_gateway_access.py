"""The gateway of Revisions as it is installed: its manifest works, its account does what it may, its pods are restricted."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from gnomon_platforms.knative.resources import GATEWAY_LABELS, GATEWAY_PORT
from gnomon_platforms.kubernetes.client import connect
from tests.cluster import build
from tests.cluster.client import Cluster, Kubectl, documents
from tests.kubernetes.access import Account, admitted, asked, restrict
from tests.kubernetes.kinds import install_kinds
from tests.kubernetes.knative_autoscaler.conftest import KINDS
from tests.kubernetes.knative_autoscaler.played_knative import PlayedKnative
from tests.kubernetes.knative_autoscaler.test_reconciler import QUICK
from tests.kubernetes.knative_batching.conftest import ENV, HANDLER, SECRET, TOKEN, Pod

FOLDER = Path(__file__).parents[3] / "deploy" / "knative" / "gateway"
SYSTEM = "knative-serving"
ACCOUNT = Account(SYSTEM, "gnomon-gateway")
ADDRESS = "127.0.98.1"
"""Nobody else listens there at the ports of the manifest."""


@pytest.fixture
def plane(own_plane: Cluster, compiled: build.Programs) -> Cluster:
    """A control plane without other tests' Revisions: this account looks at every namespace."""
    install_kinds(own_plane, compiled, *KINDS)
    return own_plane


@pytest.fixture
def played(plane: Cluster) -> Iterator[PlayedKnative]:
    knative = PlayedKnative(plane, "users", SYSTEM, 98)
    knative.start()
    yield knative
    knative.stop()


async def test_as_its_manifest_says_it_is_well_serves_writes_nothing_and_does_what_its_account_may(
    plane: Cluster, played: PlayedKnative, compiled: build.Programs, tmp_path: Path
) -> None:
    """A process with the container's arguments, ports and probes; its address and its way to the cluster are the test's."""
    Kubectl(compiled.folder / "kubectl", plane.kubeconfig).apply(documents(FOLDER / "access.yaml"))
    may = asked(FOLDER / "access.yaml")
    kubeconfig = await asyncio.to_thread(ACCOUNT.kubeconfig, plane, tmp_path)
    (tmp_path / "handler.py").write_text(HANDLER)
    seen: list[tuple[str, int]] = []
    played.begins = lambda _, address: Pod(address, tmp_path, seen, token=TOKEN)
    plane.core.create_namespaced_secret("users", {"metadata": {"name": SECRET}, "stringData": {SECRET: TOKEN}})
    [deployment] = [document for document in documents(FOLDER / "gateway.yaml") if document["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: f"http://{ADDRESS}:{port['containerPort']}" for port in container["ports"]}
    home = tmp_path / "home"
    home.mkdir()
    process = await asyncio.create_subprocess_exec(
        *(Path(sys.executable).with_name("gnomon"), *container["args"], f"--host={ADDRESS}", f"--kubeconfig={kubeconfig}"),
        cwd=home,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60.0)
        assert line == b"Gnomon buffers Revisions that batch, on port 8012. Ctrl-C stops it.\n"
        played.revision("f-00001", {**QUICK, "gnomon/max-batch": "8"}, env=ENV)
        names = {"Knative-Serving-Revision": "f-00001", "Knative-Serving-Namespace": "users"}
        async with aiohttp.ClientSession() as user:
            for probe in (container[f"{kind}Probe"] for kind in ("startup", "readiness")):
                async with user.get(ports[probe["httpGet"]["port"]] + probe["httpGet"]["path"]) as answer:
                    assert (answer.status, await answer.text()) == (200, "OK")
            async with user.post(ports["http"], data=b"x", headers=names) as answer:
                assert (answer.status, await answer.read()) == (200, b"x")
        alive = urlsplit(ports[container["livenessProbe"]["tcpSocket"]["port"]])
        (await asyncio.open_connection(alive.hostname, alive.port))[1].close()
    finally:
        process.send_signal(signal.SIGTERM)
        status = await asyncio.wait_for(process.wait(), 60.0)
    assert status == 0
    assert seen == [("/gnomon/batch", 1)]
    assert list(home.iterdir()) == [], "its root file system is read-only"
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


def test_the_deployment_is_accepted_and_is_found_and_led_to_by_the_autoscaler(plane: Cluster, compiled: build.Programs) -> None:
    plane.core.create_namespace({"metadata": {"name": SYSTEM}})
    restrict(plane, SYSTEM)
    Kubectl(compiled.folder / "kubectl", plane.kubeconfig)("apply", "--validate=strict", "-k", str(FOLDER))
    [container] = admitted(plane, "gnomon-gateway", SYSTEM)["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert GATEWAY_PORT in [port["containerPort"] for port in container["ports"]]
    labels = plane.apps.read_namespaced_deployment("gnomon-gateway", SYSTEM).spec.template.metadata.labels
    assert dict(shadow.split("=") for shadow in GATEWAY_LABELS.split(",")).items() <= labels.items()
