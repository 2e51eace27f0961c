"""Who is who in the cluster: one certificate authority, and a certificate for each program. Made anew for each boot.

Elliptic curves throughout, because a key takes a millisecond; tokens of service accounts are signed by RSA, which every client
knows.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.test_cluster.settings import DOMAIN, KUBERNETES_ADDRESS, NODE, NODE_ADDRESS

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
        """What everyone trusts."""
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
        run(["openssl", "genrsa", "-out", self.tokens, "2048"])

    def _openssl(self, name: str, subject: str, more: list[str]) -> None:
        certificate, key = self.of(name)
        configuration = ["-config", str(self.folder / "openssl.cnf"), "-days", DAYS, "-subj", subject]
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        run(["openssl", "req", "-x509", *curve, *configuration, *more, "-keyout", key, "-out", certificate])

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


def run(command: Sequence[str | Path]) -> None:
    """Run openssl. It says on its error output what it does; that is shown only where it fails."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin", "ALTERNATIVES": ",".join(EVERYWHERE)}
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command[:3]))} failed: {done.stderr.strip()}")
