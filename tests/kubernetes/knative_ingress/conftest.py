"""A control plane with Knative's Ingresses, and a controller of ours with a real HAProxy."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from deploy.test_cluster import build
from deploy.test_cluster.clusters import Cluster, until
from gnomon_platforms.knative.ingress.backends import GatewayPlace
from gnomon_platforms.knative.ingress.config import Binds
from gnomon_platforms.knative.ingress.controller import Controller, ControllerOptions
from gnomon_platforms.knative.ingress.probing import probe
from gnomon_platforms.knative.ingress.proxy import MASTER_SOCKET, Proxy, ProxyOptions
from gnomon_platforms.knative.ingress.runtime_api import Master, Workers
from gnomon_platforms.knative.ingress.seeing import SeeingOptions
from gnomon_platforms.knative.ingress.status import Addresses
from gnomon_platforms.kubernetes.client import connect
from tests.kubernetes.kinds import install_kinds

NETWORKING = ("networking.internal.knative.dev", "v1alpha1")
LIMIT_S = 120.0


@pytest.fixture(scope="session")
def haproxy() -> None:
    if shutil.which("haproxy") is None:
        pytest.skip("there is no haproxy here: apt-get install haproxy")


@pytest.fixture(scope="session")
def ingress_kind(control_plane: Cluster, compiled: build.Programs) -> Cluster:
    install_kinds(control_plane, compiled, "networking/ingress.yaml")
    return control_plane


@dataclass
class Ingresses:
    """Ingresses of one namespace and one class, as a user makes them and sees them."""

    cluster: Cluster
    namespace: str
    ingress_class: str
    binds: Binds
    leading: list[bool] = field(default_factory=lambda: [True])
    folder: Path = Path()
    """HAProxy's own."""

    def service(self, name: str, *addresses: str, port: int = 8012) -> None:
        """A Service with ready endpoints, at this port of theirs."""
        ports = [{"name": "http", "port": 80, "targetPort": port}]
        self.cluster.core.create_namespaced_service(self.namespace, {"metadata": {"name": name}, "spec": {"ports": ports}})
        metadata = {"name": f"{name}-1", "labels": {"kubernetes.io/service-name": name}}
        endpoints = [{"addresses": [address], "conditions": {"ready": True}} for address in addresses]
        sliced = {"metadata": metadata, "addressType": "IPv4", "ports": [{"name": "http", "port": port}], "endpoints": endpoints}
        client.DiscoveryV1Api(self.cluster.api).create_namespaced_endpoint_slice(self.namespace, sliced)

    def put(self, name: str, service: str, *, of_class: str = "", **fields: Any) -> dict[str, Any]:
        """Make an Ingress for NAME.example.com, or change it; the document that the API server has."""
        splits = [{"serviceNamespace": self.namespace, "serviceName": service, "servicePort": 80, "percent": 100}]
        paths = [{"splits": splits, **fields.pop("path", {})}]
        rules = [{"hosts": [self.host(name)], "visibility": "ExternalIP", "http": {"paths": paths}}]
        body = {
            "apiVersion": "/".join(NETWORKING),
            "kind": "Ingress",
            "metadata": {"name": name, "annotations": {"networking.knative.dev/ingress.class": of_class or self.ingress_class}},
            "spec": {"rules": rules, "httpOption": "Enabled", **fields},
        }
        arguments = (*NETWORKING, self.namespace, "ingresses")
        try:
            made: dict[str, Any] = self.cluster.custom.create_namespaced_custom_object(*arguments, body)
        except client.ApiException as error:
            if error.status != 409:
                raise
            made = self.cluster.custom.patch_namespaced_custom_object(*arguments, name, {"spec": body["spec"]})
        return made

    def get(self, name: str) -> dict[str, Any]:
        """An Ingress as it is."""
        found: dict[str, Any] = self.cluster.custom.get_namespaced_custom_object(*NETWORKING, self.namespace, "ingresses", name)
        return found

    def condition(self, name: str, kind: str = "Ready") -> tuple[str, str]:
        """A condition's status and reason, of the newest generation."""
        document = self.get(name)
        status = document.get("status", {})
        if status.get("observedGeneration") != document["metadata"]["generation"]:
            return "", ""
        found = next((one for one in status.get("conditions", []) if one["type"] == kind), {})
        return found.get("status", ""), found.get("reason", "")

    async def until(self, check: Callable[[], Any], what: str) -> None:
        """Wait beside the event loop."""
        await asyncio.to_thread(until, check, what, LIMIT_S)

    async def ready(self, name: str) -> None:
        await self.until(lambda: self.condition(name)[0] == "True", f"the Ingress {name} to be ready")

    async def hash(self, name: str) -> str:
        """What the proxy serves at the host."""
        return (await probe(self.binds.probe_http, self.host(name))).hash

    async def workers(self) -> Workers:
        """HAProxy's processes."""
        return await Master(self.folder / MASTER_SOCKET).workers()

    async def serves(self, name: str, expected: str) -> None:
        """Wait until the proxy serves this version of it."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                with contextlib.suppress(OSError):  # HAProxy is started with the first tables
                    if await self.hash(name) == expected:
                        return
                await asyncio.sleep(0.05)

    def host(self, name: str) -> str:
        return f"{name}.{self.namespace}.example.com"


@pytest.fixture
def own_namespace(ingress_kind: Cluster) -> Iterator[str]:
    name = f"ingress-{secrets.token_hex(3)}"
    ingress_kind.core.create_namespace({"metadata": {"name": name}})
    yield name
    ingress_kind.core.delete_namespace(name)


@asynccontextmanager
async def controller(
    cluster: Cluster,
    namespace: str,
    *,
    peers: str = "",
    probes: tuple[str, ...] = (),
    leading: bool = True,
    gateway: GatewayPlace | None = None,
) -> AsyncIterator[Ingresses]:
    """A controller of the namespace's class.

    `peers` is the Service of all proxies, `probes` where this one is probed, `gateway` where Revisions that batch are led to.
    """
    folder = Path(tempfile.mkdtemp(prefix="gnomon-"))
    sockets = [f"unix@{folder}/{name}.sock" for name in ("http", "https", "local", "probe-http", "probe-local")]
    binds = Binds(*sockets[: 5 - len(probes)], *probes)
    made = Ingresses(cluster, namespace, f"class-{namespace}", binds, [leading], folder / "proxy")
    api = await asyncio.to_thread(connect, cluster.kubeconfig)
    proxy = Proxy(ProxyOptions(made.folder, binds=binds))
    addresses = Addresses("public.system.svc.cluster.local", "private.system.svc.cluster.local")
    all_proxies = (namespace, peers) if peers else None
    options = ControllerOptions(
        addresses, (binds.probe_http, binds.probe_local), SeeingOptions(made.ingress_class, gateway), all_proxies
    )
    task = asyncio.create_task(Controller(api, proxy, options, leading=lambda: made.leading[0]).run())
    try:
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await proxy.close()
        api.close()
        shutil.rmtree(folder)


@pytest.fixture
async def ingresses(ingress_kind: Cluster, own_namespace: str, haproxy: None) -> AsyncIterator[Ingresses]:
    async with controller(ingress_kind, own_namespace) as made:
        yield made
