"""Pinned values and places: versions, addresses and folders, each said once.

Versions of Go modules are in `programs/go.mod` and nowhere else; those of Debian's packages are the distribution's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent

# The machine has one address that only this cluster uses, on an interface of its own: nothing depends on the network around.
INTERFACE = "gnomon-test0"
NODE = "gnomon-test"
NODE_ADDRESS = "10.243.0.1"
POD_RANGE = "10.244.0.0/24"
SERVICE_RANGE = "10.96.0.0/16"
KUBERNETES_ADDRESS = "10.96.0.1"  # the first of the services' range is the apiserver's
DNS_ADDRESS = "10.96.0.10"
DOMAIN = "cluster.local"

# Every control group of the cluster is below this one, so that removing it removes no one else's.
CONTROL_GROUP = "gnomon-test"

# Manifests of CSI drivers name the kubelet's folder by its usual place, so it is there, and a machine that has one is refused.
KUBELET_FOLDER = Path("/var/lib/kubelet")

# A tag other than `latest` means that an image that is here is not pulled.
TAG = "v1"
REGISTRY = "dev.local"  # Knative asks no registry for the digests of names that begin so


@dataclass(frozen=True)
class Folders:
    """The folders of compiled programs and of a running cluster's state."""

    cache: Path
    state: Path

    @property
    def kubeconfig(self) -> Path:
        """Speaks to the cluster as its administrator."""
        return self.state / "admin.conf"

    @property
    def logs(self) -> Path:
        """The folder of logs, one file per program."""
        return self.state / "logs"


def folders() -> Folders:
    """From GNOMON_CLUSTER_CACHE, or the user's cache folder."""
    named = os.environ.get("GNOMON_CLUSTER_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(named).resolve() if named else base / "gnomon" / "cluster"
    return Folders(cache=cache, state=cache / "state")


def image(name: str) -> str:
    """The full name of one of the cluster's own images."""
    return f"{REGISTRY}/{name}:{TAG}"
