"""A control plane for the length of a block: etcd and the apiserver, with controllers and fake nodes if they are wanted."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.programs import ProgramFailedError
from deploy.test_cluster import build, fake_nodes
from deploy.test_cluster.client import Kubectl
from deploy.test_cluster.control_plane import ControlPlane
from deploy.test_cluster.processes import Process, Programs
from deploy.test_cluster.settings import folders


@dataclass(frozen=True)
class Plane:
    """One that runs."""

    control: ControlPlane
    server: str
    kubectl: Kubectl

    @property
    def kubeconfig(self) -> Path:
        return self.control.kubeconfig

    def process(self, name: str) -> Process:
        """The newest process of a name, such as `apiserver`."""
        return [process for process in self.control.running.all() if process.name == name][-1]

    def kill(self, name: str) -> list[str]:
        """Kill a program; the command by which it can be started again."""
        process = self.process(name)
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
        process.end(patience_s=0)
        return command

    def start(self, name: str, command: list[str]) -> None:
        """Start a program that was killed."""
        self.control.running.start(name, command)


@contextlib.contextmanager
def booted(*, controllers: bool = False, nodes: int = 0, pods_at: str | None = None) -> Iterator[Plane]:
    """A control plane, ended with the block and with us. The pods of its fake nodes all have the address `pods_at`.

    Raises:
        ProgramFailedError: its programs are not compiled.

    """
    compiled = build.kept(folders())
    kwok = build.kept(folders(), build.KWOK_SOURCES) if nodes else None
    if compiled is None or (nodes and kwok is None):
        raise ProgramFailedError("The cluster's programs are not compiled: make cluster-build")
    with tempfile.TemporaryDirectory(prefix="gnomon-plane-") as folder:
        state = Path(folder) / "state"
        running = Programs(state, end_with_us=True)
        control = ControlPlane(state, compiled.folder, running)
        try:
            server = control.boot()
            kubectl = Kubectl(compiled.folder / "kubectl", control.kubeconfig)
            if controllers:
                control.start_controllers(server)
            if kwok is not None:
                fake_nodes.FakeNodes(state, kwok, running, pods_at).start(control.kubeconfig)
                fake_nodes.add(kubectl, nodes)
            yield Plane(control, server, kubectl)
        finally:
            control.end()
