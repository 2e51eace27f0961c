"""Pods that stand for those of an installation: with their labels, in their namespaces, listening at their ports.

    put ▶ one container for each port, which answers every request and can ask any address itself ▶ ask

What a network lets through depends on labels, namespaces and ports alone, so that the small web server does for all of them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.client import Cluster, Kubectl, until
from tests.kubernetes.conftest import accounts
from tests.kubernetes.installation.forms import Manifest

USER = 65532
"""As whom the web server runs in namespaces that want it not to be root."""
ASK_LIMIT_S = 60.0
"""Its own patience, for networks that answer nothing to whom they refuse, is 10 s."""
START_LIMIT_S = 120.0
PORT = {"http": 8080}
ANSWERED = re.compile(r"^\d{3} ")
ENDED_BADLY = "command terminated with exit code 1"


@dataclass(frozen=True)
class Place:
    """Where a pod is, how it is labelled, and at which ports it listens, by their names."""

    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=lambda: PORT)


def as_installed(workload: Manifest) -> Place:
    """The specification of a Deployment's or a DaemonSet's pods."""
    template = workload["spec"]["template"]
    ports = [port for container in template["spec"]["containers"] for port in container.get("ports", ())]
    named = {port["name"]: port["containerPort"] for port in ports}
    return Place(workload["metadata"]["namespace"], template["metadata"]["labels"], named)


class Standing:
    """The pods of one test, by the names that it has for them."""

    def __init__(self, cluster: Cluster, kubectl: Kubectl, image: str) -> None:
        self._cluster, self._kubectl, self._image = cluster, kubectl, image
        self._made: dict[str, Place] = {}
        self._places: dict[str, Place] = {}
        self._addresses: dict[str, str] = {}

    def put(self, places: Mapping[str, Place]) -> None:
        """Make them, in namespaces that are there, and wait until all of them listen."""
        for namespace in {place.namespace for place in places.values()}:
            until(lambda name=namespace: accounts(self._cluster, name), f"the service account of {namespace}")
        for name, place in places.items():
            self._cluster.core.create_namespaced_pod(place.namespace, pod(name, place, self._image))
        self._made |= places
        self._places |= places
        for name in places:
            self._addresses[name] = until(lambda name=name: self._ready(name), f"the pod {name}", START_LIMIT_S)

    def others_beside(self) -> Standing:
        """Others, which can be asked together with these."""
        others = Standing(self._cluster, self._kubectl, self._image)
        others._places, others._addresses = dict(self._places), dict(self._addresses)
        return others

    def end(self) -> None:
        """Remove those that were put here, in namespaces that may stay."""
        for name, place in self._made.items():
            self._cluster.core.delete_namespaced_pod(name, place.namespace, grace_period_seconds=0)

    def ask(self, who: str, whom: str, port: int) -> bool:
        """True if a request from one of them to another, or to some address, is answered."""
        return self.asked(who, f"http://{self._addresses.get(whom, whom)}:{port}/")

    def asked(self, who: str, url: str) -> bool:
        """True if anybody answers there, with whatever status.

        Raises:
            AssertionError: it could not be asked.

        """
        place = self._places[who]
        words = [
            "exec",
            who,
            "--namespace",
            place.namespace,
            "--container",
            next(iter(place.ports)),
            "--",
            "/answer",
            "-ask",
            url,
        ]
        command = [self._kubectl.program, f"--kubeconfig={self._kubectl.kubeconfig}", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ASK_LIMIT_S)
        answered = ANSWERED.match(done.stdout) is not None
        assert answered or ENDED_BADLY in done.stderr, done.stderr
        return answered

    def _ready(self, name: str) -> str | None:
        """The pod's address, once every container runs."""
        status = self._cluster.core.read_namespaced_pod(name, self._places[name].namespace).status
        containers = status.container_statuses or ()
        return str(status.pod_ip) if containers and all(container.ready for container in containers) else None


def pod(name: str, place: Place, image: str) -> dict[str, Any]:
    """A pod that Pod Security's strictest level lets in."""
    less = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    containers = [
        {
            "name": named,
            "image": image,
            "env": [{"name": "PORT", "value": str(port)}],
            "ports": [{"name": named, "containerPort": port}],
            "resources": {"requests": {"cpu": "5m", "memory": "8Mi"}, "limits": {"memory": "32Mi"}},
            "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
            "securityContext": less,
        }
        for named, port in place.ports.items()
    ]
    spec = {
        "containers": containers,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    return {"metadata": {"name": name, "labels": dict(place.labels)}, "spec": spec}
