"""etcd and the apiserver, and where a cluster is whole, the controller manager and the scheduler.

The first two alone are enough for tests of reconcilers: they start in seconds, as any user, and objects are only what clients
write. With the controller manager Deployments make pods, and owners that are gone take along what they own; with kwok
(`fake_nodes.py`) pods seem to run.
"""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from deploy.test_cluster.certificates import Certificates
from deploy.test_cluster.processes import Process, Programs
from deploy.test_cluster.settings import NODE_ADDRESS, POD_RANGE, SERVICE_RANGE

BOOT_LIMIT_S = 90.0

# What service accounts ask for is written down, so that a test can compare it with what their roles allow.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}


@dataclass(frozen=True)
class ControlPlane:
    """A control plane of its own folder: `programs` are the compiled ones, `address` is where the apiserver listens."""

    state: Path
    programs: Path
    running: Programs
    address: str = "127.0.0.1"

    @property
    def certificates(self) -> Certificates:
        return Certificates(self.state / "certificates")

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.state / "admin.conf"

    def boot(self) -> str:
        """Start etcd and the apiserver; returns its address when it answers."""
        self.certificates.make()
        etcd = self._start_etcd()
        port = free_port(self.address)
        server = f"https://{self.address}:{port}"
        self.certificates.kubeconfig("admin", server, self.kubeconfig)
        apiserver = self._start_apiserver(etcd, port)
        trusting = ssl.create_default_context(cafile=str(self.certificates.authority))
        trusting.load_cert_chain(*map(str, self.certificates.of("admin")))
        self.running.wait(apiserver, lambda: answers(f"{server}/readyz", trusting), BOOT_LIMIT_S)
        return server

    def _start_etcd(self) -> str:
        """Reached by certificates only: whoever may write to it owns the cluster, and with it the machine."""
        clients, peers = (f"https://127.0.0.1:{free_port()}" for _ in range(2))
        authority, (certificate, key) = self.certificates.authority, self.certificates.of("etcd")
        command: list[str | Path] = [self.programs / "server", "--name=only", f"--data-dir={self.state / 'etcd'}"]
        command += [f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}"]
        command += [f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=only={peers}"]
        for prefix in ("", "peer-"):
            command += [f"--{prefix}cert-file={certificate}", f"--{prefix}key-file={key}"]
            command += [f"--{prefix}trusted-ca-file={authority}", f"--{prefix}client-cert-auth"]
        # Nothing of a test's cluster has to survive the machine.
        command += ["--unsafe-no-fsync", "--log-level=warn"]
        self.running.start("etcd", command)
        return clients

    def _start_apiserver(self, etcd: str, port: int) -> Process:
        certificate, key = self.certificates.of("apiserver")
        etcd_certificate, etcd_key = self.certificates.of("etcd")
        policy = self.state / "audit-policy.json"
        policy.write_text(json.dumps(AUDIT_POLICY))
        settings: dict[str, object] = {
            "etcd-servers": etcd,
            "etcd-cafile": self.certificates.authority,
            "etcd-certfile": etcd_certificate,
            "etcd-keyfile": etcd_key,
            "bind-address": self.address,
            "advertise-address": self.address,
            "secure-port": port,
            "tls-cert-file": certificate,
            "tls-private-key-file": key,
            "client-ca-file": self.certificates.authority,
            "kubelet-certificate-authority": self.certificates.authority,
            "kubelet-client-certificate": certificate,
            "kubelet-client-key": key,
            # For logs and commands: the node's name is in no name server outside of the cluster.
            "kubelet-preferred-address-types": "InternalIP",
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": self.certificates.tokens,
            "service-account-signing-key-file": self.certificates.tokens,
            "service-cluster-ip-range": SERVICE_RANGE,
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            # Loopback is no address that an endpoint may have, and alone there is nobody to reach it.
            "endpoint-reconciler-type": "none" if self.address.startswith("127.") else "lease",
            # Webhooks are called at their endpoints, so that the apiserver needs no kube-proxy beside it.
            "enable-aggregator-routing": "true",
            "allow-privileged": "true",
            "audit-policy-file": policy,
            "audit-log-path": self.state / "logs" / "audit.log",
            "v": 1,
        }
        command: list[str | Path] = [self.programs / "kube-apiserver", *(f"--{name}={value}" for name, value in settings.items())]
        return self.running.start("apiserver", command)

    def start_controllers(self, server: str) -> None:
        """The controller manager and the scheduler. Both take their own time; nothing waits for them."""
        for name in ("controller-manager", "scheduler"):
            self.certificates.kubeconfig(name, server, self.state / f"{name}.conf")
        common: dict[str, object] = {"leader-elect": "false", "secure-port": 0}
        manager = {
            **common,
            "kubeconfig": self.state / "controller-manager.conf",
            "service-account-private-key-file": self.certificates.tokens,
            "root-ca-file": self.certificates.authority,
            "use-service-account-credentials": "true",
            "cluster-cidr": POD_RANGE,
            # With the defaults, 20 and 30, the default service account came 4 s late.
            "kube-api-qps": 300,
            "kube-api-burst": 500,
            # A quota counts a write that then met a conflict until it is counted anew: every five minutes by default.
            "resource-quota-sync-period": "5s",
        }
        scheduler = {**common, "kubeconfig": self.state / "scheduler.conf", "kube-api-qps": 300, "kube-api-burst": 500}
        for name, settings in (("kube-controller-manager", manager), ("kube-scheduler", scheduler)):
            self.running.start(name, [self.programs / name, *(f"--{flag}={value}" for flag, value in settings.items())])

    def end(self) -> None:
        """Stop what `boot` and `start_controllers` started, and forget its state."""
        for process in reversed(self.running.all()):
            process.end(patience_s=0)
        shutil.rmtree(self.state, ignore_errors=True)


def whole(state: Path, programs: Path) -> ControlPlane:
    """The control plane of a cluster whose pods must reach it."""
    return ControlPlane(state, programs, Programs(state), NODE_ADDRESS)


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def answers(address: str, trusting: ssl.SSLContext) -> bool:
    """Whether it answers with 200."""
    try:
        with urllib.request.urlopen(address, timeout=5, context=trusting):  # noqa: S310 - our own apiserver
            return True
    except OSError:  # which is also how urllib words every other status
        return False
