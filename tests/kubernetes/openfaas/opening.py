"""Opens the store of a cluster that a kubeconfig names, in whichever process asks."""

from __future__ import annotations

from pathlib import Path

from gnomon_platforms.kubernetes.client import connect
from gnomon_platforms.openfaas.store import KubernetesStore


def opened(kubeconfig: Path) -> KubernetesStore:
    return KubernetesStore(connect(kubeconfig))
