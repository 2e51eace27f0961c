"""Nodes by the hundred that run nothing: kwok keeps their heartbeats and says of their pods what a kubelet would.

Pods with such a node become Running and Ready within a second; nothing answers at their addresses, unless all are told to have
one at which somebody does. Good for controllers that decide about many objects. Works beside a control plane alone; with its
controllers, Deployments make the pods.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.build import Programs as Compiled
from tests.cluster.client import Kubectl
from tests.cluster.phases import Trouble
from tests.cluster.processes import Process, Programs

MARK = "kwok.x-k8s.io/node"
# Of kwok's stages: nodes that live, and pods that start and end at once.
STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")


@dataclass(frozen=True)
class FakeNodes:
    """kwok beside a control plane of the folder `state`. With `pods_at`, that is the address of every pod."""

    state: Path
    compiled: Compiled
    running: Programs
    pods_at: str | None = None

    def start(self, kubeconfig: Path) -> Process:
        """Start kwok; it looks after nodes that are marked as its own, and leaves others alone."""
        stages = self.state / "kwok-stages.yaml"
        text = "\n---\n".join(path.read_text() for path in self._stages())
        stages.write_text(text if self.pods_at is None else _all_at(self.pods_at, text))
        flags: dict[str, object] = {
            "kubeconfig": kubeconfig,
            "config": stages,
            "manage-all-nodes": "false",
            "manage-nodes-with-annotation-selector": f"{MARK}=fake",
            "cidr": "10.245.0.0/16",
            "node-ip": "10.245.0.1",
            "node-lease-duration-seconds": 40,
        }
        return self.running.start(
            "kwok", [self.compiled.folder / "kwok", *(f"--{name}={value}" for name, value in flags.items())]
        )

    def _stages(self) -> Iterator[Path]:
        for name in STAGES:
            for path in sorted((self.compiled.manifests / "kwok" / name).glob("*.yaml")):
                if path.name != "kustomization.yaml":
                    yield path


def _all_at(address: str, stages: str) -> str:
    """The stages with this address in place of the one that each pod would get."""
    said = f'      podIP: "{address}"\n      podIPs:\n      - ip: "{address}"\n      phase:'
    changed, times = re.subn(r"      \{\{ \$podIPs := .*?      phase:", lambda _: said, stages, flags=re.DOTALL)
    if times != 1:
        raise Trouble("kwok's stages do not say where they give a pod its address.")
    return changed


def nodes(count: int, cores: int, memory_gib: int) -> list[dict[str, Any]]:
    """Objects of `count` fake nodes, fake-0 and so on."""
    size = {"cpu": str(cores), "memory": f"{memory_gib}Gi", "pods": "110"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": f"fake-{number}",
                "annotations": {MARK: "fake"},
                "labels": {"kubernetes.io/hostname": f"fake-{number}", "kubernetes.io/os": "linux", "type": "fake"},
            },
            "status": {"allocatable": size, "capacity": size},
        }
        for number in range(count)
    ]


def add(kubectl: Kubectl, count: int, cores: int = 16, memory_gib: int = 64) -> None:
    """Put fake nodes into the cluster."""
    kubectl("create", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes(count, cores, memory_gib)}))
