"""etcd and the apiserver, and where a cluster is whole, the controller manager and the scheduler; and their certificates.

The first two alone are enough for tests of reconcilers: they start in seconds, as any user, and objects are only what clients
write. With the controller manager Deployments make pods, and owners that are gone take along what they own; with kwok
(`fake_nodes.py`) pods seem to run. One certificate authority signs a certificate for each program, anew for each boot.
"""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.processes import Process, Programs
from tests.cluster.settings import DOMAIN, KUBERNETES_ADDRESS, NODE, NODE_ADDRESS, POD_RANGE, SERVICE_RANGE

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
    """True if it answers with 200."""
    try:
        with urllib.request.urlopen(address, timeout=5, context=trusting):
            return True
    except OSError:  # which is also how urllib words every other status
        return False


DAYS = "30"
CONFIGURATION = """\
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
authorityKeyIdentifier = keyid
subjectAltName = ${ENV::ALTERNATIVES}
"""
SERVICE_NAMES = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{DOMAIN}"]
EVERYWHERE = [f"DNS:{name}" for name in ["localhost", NODE, *SERVICE_NAMES]] + [
    f"IP:{address}" for address in ["127.0.0.1", NODE_ADDRESS, KUBERNETES_ADDRESS]
]

# Name of the certificate → its subject: the user and the groups that Kubernetes' own roles are bound to.
SUBJECTS = {
    "admin": "/O=system:masters/CN=admin",
    "apiserver": "/O=system:masters/CN=apiserver",
    "etcd": "/CN=etcd",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
    "node": f"/O=system:nodes/CN=system:node:{NODE}",
}


@dataclass(frozen=True)
class Certificates:
    """The files of one cluster's certificates."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The certificate of the authority that all parts trust."""
        return self.folder / "authority.crt"

    @property
    def tokens(self) -> Path:
        """The key that signs the tokens of service accounts."""
        return self.folder / "tokens.key"

    def of(self, name: str) -> tuple[Path, Path]:
        """Certificate and key."""
        return self.folder / f"{name}.crt", self.folder / f"{name}.key"

    def make(self, names: Sequence[str] = tuple(SUBJECTS)) -> None:
        """The authority and all certificates."""
        self.folder.mkdir(mode=0o700, parents=True)
        (self.folder / "openssl.cnf").write_text(CONFIGURATION)
        self._openssl("authority", "/CN=gnomon-test-cluster", ["-extensions", "authority"])
        for name in names:
            signed = ["-CA", str(self.authority), "-CAkey", str(self.folder / "authority.key"), "-extensions", "leaf"]
            self._openssl(name, SUBJECTS[name], signed)
        _openssl(["openssl", "genrsa", "-out", self.tokens, "2048"])

    def _openssl(self, name: str, subject: str, more: list[str]) -> None:
        certificate, key = self.of(name)
        configuration = ["-config", str(self.folder / "openssl.cnf"), "-days", DAYS, "-subj", subject]
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        _openssl(["openssl", "req", "-x509", *curve, *configuration, *more, "-keyout", key, "-out", certificate])

    def kubeconfig(self, name: str, server: str, target: Path) -> Path:
        """A file by which a program, or a person, speaks to the apiserver."""
        certificate, key = self.of(name)
        user = {"client-certificate": str(certificate), "client-key": str(key)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": NODE, "cluster": {"server": server, "certificate-authority": str(self.authority)}}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": NODE, "user": name}}],
            "current-context": name,
        }
        target.touch(mode=0o600)
        target.write_text(json.dumps(content, indent=1))
        return target


def _openssl(command: Sequence[str | Path]) -> None:
    """Run openssl. It says on its error output what it does; that is shown only where it fails."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin", "ALTERNATIVES": ",".join(EVERYWHERE)}
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command[:3]))} failed: {done.stderr.strip()}")
