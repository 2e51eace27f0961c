"""What becomes of an Ingress: served first, then said so, by whoever leads."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from kubernetes import client

from deploy.test_cluster.clusters import Cluster
from gnomon_platforms.knative.ingress import probing, proxy
from gnomon_platforms.knative.ingress.controller import LOOK_AGAIN_S
from gnomon_platforms.knative.ingress.model import ingress
from tests.kubernetes.knative_ingress.conftest import LIMIT_S, Ingresses, controller


async def test_an_ingress_is_ready_when_it_is_served_and_gone_when_it_is_deleted(ingresses: Ingresses) -> None:
    await asyncio.to_thread(ingresses.service, "a", "192.0.2.1")
    one = await asyncio.to_thread(ingresses.put, "one", "a")
    other = await asyncio.to_thread(ingresses.put, "other", "a", of_class="somebody-elses")
    await ingresses.ready("one")
    assert await ingresses.hash("one") == ingress(one).hash
    status = ingresses.get("one")["status"]
    assert status["publicLoadBalancer"] == {"ingress": [{"domainInternal": "public.system.svc.cluster.local"}]}
    assert {each["type"]: each["status"] for each in status["conditions"]} == {
        "LoadBalancerReady": "True",
        "NetworkConfigured": "True",
        "Ready": "True",
    }
    assert ingresses.get("other")["metadata"]["resourceVersion"] == other["metadata"]["resourceVersion"]
    assert await ingresses.hash("other") == ""
    arguments = ("networking.internal.knative.dev", "v1alpha1", ingresses.namespace, "ingresses", "one")
    await asyncio.to_thread(ingresses.cluster.custom.delete_namespaced_custom_object, *arguments)
    await ingresses.serves("one", "")


async def test_a_rollout_to_a_service_that_is_not_there_leaves_the_old_one_serving(ingresses: Ingresses) -> None:
    await asyncio.to_thread(ingresses.service, "a", "192.0.2.1")
    first = await asyncio.to_thread(ingresses.put, "one", "a")
    await ingresses.ready("one")
    second = await asyncio.to_thread(ingresses.put, "one", "b")
    await ingresses.until(lambda: ingresses.condition("one") == ("Unknown", "BackendMissing"), "the reason")
    assert await ingresses.hash("one") == ingress(first).hash
    await asyncio.to_thread(ingresses.service, "b", "192.0.2.2")
    await ingresses.ready("one")
    assert await ingresses.hash("one") == ingress(second).hash


async def test_what_cannot_be_served_is_said_with_its_field(ingresses: Ingresses) -> None:
    await asyncio.to_thread(ingresses.service, "a", "192.0.2.1")
    await asyncio.to_thread(ingresses.put, "one", "a", path={"appendHeaders": {"Transfer-Encoding": "chunked"}})
    await ingresses.until(lambda: ingresses.condition("one") == ("False", "Invalid"), "the reason")
    (network,) = [one for one in ingresses.get("one")["status"]["conditions"] if one["type"] == "NetworkConfigured"]
    assert "paths[0].appendHeaders" in network["message"]
    await asyncio.to_thread(ingresses.put, "one", "a")
    await ingresses.ready("one")


async def test_who_does_not_lead_serves_and_writes_nothing_until_it_leads(
    ingresses: Ingresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingresses.leading[0] = False
    await asyncio.to_thread(ingresses.service, "a", "192.0.2.1")
    one = await asyncio.to_thread(ingresses.put, "one", "a")
    await ingresses.serves("one", ingress(one).hash)
    assert "status" not in ingresses.get("one")
    await calm(monkeypatch)
    # The one that led was killed, and nothing else happens on the cluster.
    ingresses.leading[0] = True
    await ingresses.ready("one")


async def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return when what has changed is not looked at again by itself."""
    monkeypatch.setattr(proxy, "SWEEP_S", 0.0)
    await asyncio.sleep(2.5 * LOOK_AGAIN_S)


@pytest.mark.parametrize("part", ["master", "current"])
async def test_an_haproxy_that_was_killed_serves_again_though_nothing_else_happens(
    ingresses: Ingresses, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    await asyncio.to_thread(ingresses.service, "a", "192.0.2.1")
    one = await asyncio.to_thread(ingresses.put, "one", "a")
    await ingresses.ready("one")
    await calm(monkeypatch)
    before = await ingresses.workers()
    os.kill(getattr(before, part), signal.SIGKILL)

    async def another() -> bool:
        with contextlib.suppress(OSError):  # it is not there yet
            return (await ingresses.workers()).master not in (None, before.master)
        return False

    async with asyncio.timeout(LIMIT_S):
        while not await another():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
    await ingresses.serves("one", ingress(one).hash)


async def test_a_certificate_may_come_later(ingresses: Ingresses, tmp_path: Path) -> None:
    key, public = tmp_path / "key", tmp_path / "crt"
    options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=one"]
    command = ["openssl", "req", "-x509", *options, "-keyout", str(key), "-out", str(public)]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    await asyncio.to_thread(ingresses.service, "a", "192.0.2.1")
    tls = [{"hosts": [ingresses.host("one")], "secretName": "one", "secretNamespace": ingresses.namespace}]
    await asyncio.to_thread(ingresses.put, "one", "a", tls=tls)
    await ingresses.until(lambda: ingresses.condition("one") == ("Unknown", "CertificateMissing"), "the reason")
    data = {field: base64.b64encode(file.read_bytes()).decode() for field, file in (("tls.crt", public), ("tls.key", key))}
    secret = {
        "metadata": {"name": "one", "labels": {"networking.internal.knative.dev/certificate-uid": "1"}},
        "type": "kubernetes.io/tls",
        "data": data,
    }
    await asyncio.to_thread(ingresses.cluster.core.create_namespaced_secret, ingresses.namespace, secret)
    await ingresses.ready("one")


async def test_a_certificate_that_goes_bad_is_said_and_holds_up_nobody(ingresses: Ingresses, tmp_path: Path) -> None:
    def secret(name: str, *, key: str) -> dict[str, str]:
        files = (("tls.crt", f"{name}.crt"), ("tls.key", f"{key}.key"))
        return {field: base64.b64encode((tmp_path / file).read_bytes()).decode() for field, file in files}

    for name in ("first", "second"):
        options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
        command = ["openssl", "req", "-x509", *options, "-keyout", f"{tmp_path}/{name}.key", "-out", f"{tmp_path}/{name}.crt"]
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    core, labels = ingresses.cluster.core, {"networking.internal.knative.dev/certificate-uid": "1"}
    made = {"metadata": {"name": "one", "labels": labels}, "type": "kubernetes.io/tls", "data": secret("first", key="first")}
    await asyncio.to_thread(core.create_namespaced_secret, ingresses.namespace, made)
    await asyncio.to_thread(ingresses.service, "a", "192.0.2.1")
    tls = [{"hosts": [ingresses.host("one")], "secretName": "one", "secretNamespace": ingresses.namespace}]
    await asyncio.to_thread(ingresses.put, "one", "a", tls=tls)
    await ingresses.ready("one")
    # A renewal of which only the certificate has arrived.
    renewed = {"data": secret("second", key="first")}
    await asyncio.to_thread(core.patch_namespaced_secret, "one", ingresses.namespace, renewed)
    await ingresses.until(lambda: ingresses.condition("one") == ("Unknown", "CertificateNotRenewed"), "the reason")
    await asyncio.to_thread(ingresses.put, "other", "a")
    await ingresses.ready("other")
    # Its own changes are served, too.
    changed = await asyncio.to_thread(ingresses.put, "one", "a", tls=tls, path={"path": "/only"})
    await ingresses.serves("one", ingress(changed).hash)
    renewed = {"data": secret("second", key="second")}
    await asyncio.to_thread(core.patch_namespaced_secret, "one", ingresses.namespace, renewed)
    await ingresses.ready("one")


async def test_ready_means_served_by_every_proxy(ingress_kind: Cluster, own_namespace: str, haproxy: None) -> None:
    address, ports = own_address(), free_ports(2)
    probes = tuple(f"{address}:{port}" for port in ports)
    await asyncio.to_thread(proxies, ingress_kind, own_namespace, *ports)
    async with controller(ingress_kind, own_namespace, peers="proxies") as leader:
        await asyncio.to_thread(leader.service, "a", "192.0.2.1")
        one = await asyncio.to_thread(leader.put, "one", "a")
        await leader.until(lambda: leader.condition("one") == ("Unknown", "Uninitialized"), "the other proxy to be missed")
        assert await leader.hash("one") == ingress(one).hash
        async with controller(ingress_kind, own_namespace, probes=probes, leading=False) as follower:
            await leader.ready("one")
            assert await follower.hash("one") == ingress(one).hash


async def test_a_proxy_that_hangs_keeps_no_route_from_being_followed(
    ingress_kind: Cluster, own_namespace: str, haproxy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One on a node that has died: it is among the ready ones for as long as Kubernetes takes to notice."""
    monkeypatch.setattr(probing, "TIMEOUT_S", 600.0)
    with socket.create_server((own_address(), 0)) as hung:
        port = hung.getsockname()[1]
        await asyncio.to_thread(proxies, ingress_kind, own_namespace, port, port)
        async with controller(ingress_kind, own_namespace, peers="proxies") as leader:
            await asyncio.to_thread(leader.service, "a", "192.0.2.1")
            one = await asyncio.to_thread(leader.put, "one", "a")
            await leader.serves("one", ingress(one).hash)
            # By now it is asked what it serves, and does not answer.
            held, _ = await asyncio.to_thread(hung.accept)
            with held:
                other = await asyncio.to_thread(leader.put, "other", "a")
                await leader.serves("other", ingress(other).hash)
                assert leader.condition("one")[0] != "True"


def proxies(cluster: Cluster, namespace: str, http_port: int, local_port: int) -> None:
    """Let another proxy of this class be ready on this machine, with these ports for probes."""
    named = [{"name": "probe-http", "port": http_port}, {"name": "probe-local", "port": local_port}]
    ready = [{"addresses": [own_address()], "conditions": {"ready": True}}]
    metadata = {"name": "proxies-1", "labels": {"kubernetes.io/service-name": "proxies"}}
    sliced = {"metadata": metadata, "addressType": "IPv4", "ports": named, "endpoints": ready}
    client.DiscoveryV1Api(cluster.api).create_namespaced_endpoint_slice(namespace, sliced)


def own_address() -> str:
    """An address of this machine that an EndpointSlice may have: not of loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback's")
        found: str = asked.getsockname()[0]
        return found


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports
