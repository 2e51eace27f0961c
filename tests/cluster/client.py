"""Clients of a cluster: kubectl, as a user of it would (apply, wait, get), and the official Python client, as tests do."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from kubernetes import client, config

from gnomon_platforms.kubernetes.connections import closing
from tests.cluster.phases import Trouble

# Both load plain values only; the one in C reads Knative's 400 KB of schemas in a tenth of the time.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Kubectl:
    """kubectl with one kubeconfig."""

    program: Path
    kubeconfig: Path

    def __call__(self, *arguments: str, given: str | None = None, limit_s: float = 120) -> str:
        """Run it; its output, or Trouble with what it said."""
        # What it learns of a cluster goes with the cluster; another one on the same port has other kinds.
        learned = self.kubeconfig.parent / "cache"
        command = [str(self.program), f"--kubeconfig={self.kubeconfig}", f"--cache-dir={learned}", *arguments]
        try:
            done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise Trouble(f"kubectl {' '.join(arguments)} took longer than {limit_s:.0f} s.") from error
        if done.returncode:
            raise Trouble(f"kubectl {' '.join(arguments)} failed: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def apply(self, objects: Sequence[dict[str, Any]]) -> None:
        """Apply objects in the order given."""
        everything = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self("apply", "--server-side", "--force-conflicts", "-f", "-", given=json.dumps(everything))

    def available(self, namespace: str, names: Sequence[str], limit_s: float) -> None:
        """Wait until Deployments are available; Trouble names what their pods wait for."""
        try:
            targets = [f"deployment/{name}" for name in names]
            self(
                "wait", "-n", namespace, f"--timeout={limit_s:.0f}s", "--for=condition=Available", *targets, limit_s=limit_s + 10
            )
        except Trouble as trouble:
            raise Trouble(f"{trouble}\n{self.why(namespace)}") from trouble

    def why(self, namespace: str) -> str:
        """The last warnings of a namespace, one a line."""
        events = json.loads(self("get", "events", "-n", namespace, "--field-selector=type=Warning", "-o", "json"))["items"]
        return "\n".join(f"{item['involvedObject']['name']}: {item['message']}" for item in events[-10:])


def documents(*paths: Path) -> list[dict[str, Any]]:
    """The objects of YAML files, in order."""
    return [document for path in paths for document in yaml.load_all(path.read_text(), LOADER) if document]


Value = TypeVar("Value")


@dataclass(frozen=True)
class Cluster:
    """How to reach one: its kubeconfig, and a client made of it.

    The parts of its interface are not typed: tests write objects as plain dictionaries and know which fields the answers have.
    """

    kubeconfig: Path
    api: Any

    @property
    def core(self) -> Any:
        return client.CoreV1Api(self.api)

    @property
    def apps(self) -> Any:
        return client.AppsV1Api(self.api)

    @property
    def custom(self) -> Any:
        return client.CustomObjectsApi(self.api)


def reached(kubeconfig: Path) -> Cluster:
    """A cluster by its kubeconfig."""
    make: Any = config.new_client_from_config  # which says nothing of its types
    api = make(str(kubeconfig))
    closing(api.rest_client.pool_manager)
    return Cluster(kubeconfig, api)


def until(check: Callable[[], Value | None], what: str, limit_s: float = 60.0) -> Value:
    """The first true value of `check`. The limit decides how long a failure takes, so it is generous."""
    deadline_s = time.monotonic() + limit_s
    while not (value := check()):
        if time.monotonic() > deadline_s:
            raise AssertionError(f"after {limit_s:.0f} s still waiting for {what}")
        time.sleep(0.1)
    return value
