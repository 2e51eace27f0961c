"""Processes of `gnomon serve` that share a control plane's functions, as the gateway's pods do.

Each listens for the others at a loopback address of its own, which the status of its pod says. No node runs these pods.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.ownership import OwnershipMap
from gnomon_platforms.kubernetes.ownership import KEY, NAME
from tests.cluster.client import Cluster
from tests.integration.ownership.callers import FUNCTIONS, HANDLER, Balanced
from tests.kubernetes.openfaas.conftest import NAMESPACE, controlled, kubelet
from tests.kubernetes.openfaas.gateways import Gateway
from tests.kubernetes.openfaas.kubelet import Kubelet
from tests.waiting import until

__all__ = ["controlled", "echo_handler", "gateways", "kubelet"]
LABELS = {"app.kubernetes.io/name": "gnomon", "app.kubernetes.io/component": "gateway"}


class Gateways(Balanced):
    """The processes by name, and what the cluster says of them."""

    def __init__(self, cluster: Cluster, folder: Path, ledger: Path, options: Sequence[str] = ()) -> None:
        super().__init__(ledger)
        self.cluster, self.folder, self._options = cluster, folder, options
        self.namespace = f"gateways-{secrets.token_hex(3)}"
        self.processes: dict[str, Gateway] = {}
        self.stopped: set[str] = set()
        self._secret = folder / "peers"
        self._secret.write_text(secrets.token_hex(20))
        self._inside_port = free_port()

    async def start(self, name: str) -> Gateway:
        """Begin one, as a Deployment does; it is in the load balancer when it is healthy."""
        address = f"127.0.9.{len(self.processes) + 1}"
        environment = {"POD_NAMESPACE": self.namespace, "POD_NAME": name}
        gateway = self.processes[name] = Gateway(self.cluster.kubeconfig, self.folder / name, environment=environment)
        await asyncio.to_thread(self._pod, name, address)
        options = ["--advertise", address, "--inside-port", str(self._inside_port), "--peer-secret", str(self._secret)]
        line = await asyncio.to_thread(gateway.start, *options, *self._options)
        assert "serves on" in line
        self.ports[name] = gateway.port
        await until(lambda: name in self.sent_to, f"{name} is not healthy")
        return gateway

    async def end(self, name: str, number: int = signal.SIGTERM) -> int:
        """Let one stop, or kill it; its exit status."""
        status = await asyncio.to_thread(self.processes[name].end, number)
        self.ports.pop(name)
        await asyncio.to_thread(self.cluster.core.delete_namespaced_pod, name, self.namespace, grace_period_seconds=0)
        return status

    def pid(self, name: str) -> int:
        process = self.processes[name].process
        assert process is not None
        return process.pid

    def map(self) -> OwnershipMap | None:
        """The newest map."""
        try:
            data = self.cluster.core.read_namespaced_config_map(NAME, self.namespace).data
        except Exception as error:
            if getattr(error, "status", 0) == 404:
                return None
            raise
        try:
            return OwnershipMap.from_json(json.loads(data[KEY]))
        except GnomonError:
            return None

    def owners(self) -> set[str]:
        """The owners of functions, by the test's names."""
        found = self.map()
        return set() if found is None else {owner.id.rpartition("_")[0] for owner in found.owners}

    def members(self) -> set[str]:
        found = self.map()
        return set() if found is None else {member.id.rpartition("_")[0] for member in found.members}

    def pods(self) -> set[str]:
        """The functions' pods that are to stay."""
        listed = self.cluster.core.list_namespaced_pod(NAMESPACE).items
        return {pod.metadata.name for pod in listed if pod.metadata.deletion_timestamp is None}

    def leader(self) -> str:
        """The replica that holds the Lease."""
        api = self.cluster.custom
        lease = api.get_namespaced_custom_object("coordination.k8s.io", "v1", self.namespace, "leases", "gnomon")
        return str(lease["spec"].get("holderIdentity") or "").rpartition("_")[0]

    async def eventually(self, holds: Callable[[], bool], why: str) -> None:
        """Ask beside the loop until it holds."""
        end_s = asyncio.get_running_loop().time() + 60.0
        while not await asyncio.to_thread(holds):
            assert asyncio.get_running_loop().time() < end_s, why
            await asyncio.sleep(0.05)

    async def shared_by(self, *names: str, members: int) -> None:
        """Wait until exactly these own, of so many that there are."""
        await self.eventually(lambda: self.owners() == set(names) and len(self.members()) == members, f"{names} never owned")

    async def deploy(self, name: str, **fields: Any) -> None:
        """Every function, by any gateway, and wait until all gateways see two instances of each."""
        for function in FUNCTIONS:
            document = {
                "service": function,
                "image": "echo:1",
                "labels": {"com.openfaas.scale.min": "2"},
                "annotations": {"gnomon/autoscaler": "fixed"},
                **fields,
            }
            answer = await asyncio.to_thread(self.processes[name].call, "POST", "/system/functions", document)
            assert answer.status == 202, answer.data
        await self.eventually(lambda: all(self.ready(name) for name in self.sent_to), "two instances of each never served")

    def ready(self, name: str) -> bool:
        """True if a gateway could send batches to two instances of each function: what it says of itself, not of the leader's."""
        text = self.processes[name].call("GET", "/metrics").data.decode()
        lines = [line for line in text.splitlines() if line.startswith("gateway_service_ready_count{")]
        return len(lines) == len(FUNCTIONS) and all(line.endswith(" 2.0") for line in lines)

    def close(self) -> None:
        for gateway in self.processes.values():
            if gateway.process is not None and gateway.process.poll() is None:
                os.kill(gateway.process.pid, signal.SIGCONT)
                gateway.end(signal.SIGKILL)
        self.cluster.core.delete_namespace(self.namespace)

    def _pod(self, name: str, address: str) -> None:
        spec = {"schedulerName": "nobody", "containers": [{"name": "gateway", "image": "gateway:1"}]}
        self.cluster.core.create_namespaced_pod(self.namespace, {"metadata": {"name": name, "labels": LABELS}, "spec": spec})
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        self.cluster.core.patch_namespaced_pod_status(name, self.namespace, {"status": status})


def free_port() -> int:
    """A port that nobody has at the addresses of replicas."""
    with socket.socket() as probe:
        probe.bind(("127.0.9.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


@pytest.fixture
def source() -> str:
    """Of what the node's pods run, with `{ledger!r}` for where it writes down what it executes."""
    return HANDLER


@pytest.fixture
def echo_handler(tmp_path: Path, ledger: Path, source: str) -> Path:
    """The handler of the node's pods."""
    folder = tmp_path / "function"
    folder.mkdir()
    (folder / "handler.py").write_text(source.format(ledger=str(ledger)))
    return folder


@pytest.fixture
def options() -> list[str]:
    """Options of the gateways beside those for sharing functions."""
    return []


@pytest.fixture
async def gateways(
    controlled: Cluster,
    kubelet: Kubelet,
    tmp_path: Path,
    ledger: Path,
    options: list[str],
) -> AsyncIterator[Gateways]:
    """A cluster with two replicas: `a`, which leads, and `b`, which owns every function."""
    found = Gateways(controlled, tmp_path, ledger, options)
    core = controlled.core
    await asyncio.to_thread(core.create_namespace, {"metadata": {"name": found.namespace}})
    accounts = core.list_namespaced_service_account
    balancing = asyncio.create_task(found.balance())
    try:
        await found.eventually(
            lambda: any(account.metadata.name == "default" for account in accounts(found.namespace).items), "no service account"
        )
        await found.start("a")
        await found.shared_by("a", members=1)
        await found.start("b")
        await found.shared_by("b", members=2)
        yield found
    finally:
        balancing.cancel()
        await asyncio.gather(balancing, return_exceptions=True)
        await asyncio.to_thread(found.close)
