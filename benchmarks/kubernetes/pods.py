"""Clusters for a block: Bodies as pods of a real node with the platform in this process, and control planes without nodes.

`prepared` and `pods_on` take the cluster that KUBECONFIG names, that runs here (`make cluster`), or boot one. Its node has to be
this machine where pods are compared with processes. `tests.cluster.models` finds the images.

`booted` is a control plane: etcd and the apiserver, with controllers and fake nodes if they are wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gnomon import MODELS
from benchmarks.programs import ProgramFailedError
from benchmarks.shadow.models import StoredModel
from benchmarks.shadow.node import EventTimes, Place, deployment_of
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_platforms.kubernetes.client import connect
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions
from gnomon_platforms.nodes.coordinators import NodeOptions
from gnomon_platforms.nodes.models import ServedModels
from gnomon_platforms.openfaas.observed import OpenFaasOptions
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from gnomon_profiler.repository import DirectoryRepository
from tests.cluster import build, fake_nodes, models
from tests.cluster import cluster as clusters
from tests.cluster.client import Cluster, Kubectl, reached, until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.phases import CannotBeHad, Phases
from tests.cluster.processes import Process, Programs
from tests.cluster.settings import folders

BODY_LIMIT_S = 300.0
"""A Body's pod: its container, torch, its weights; on a machine that does other things, too."""
GONE_LIMIT_S = 300.0


@dataclass(frozen=True)
class Ground:
    """A cluster where Bodies can be pods. `token` is the coordinators', empty where no node has one."""

    cluster: Cluster
    namespace: str
    images: models.Images
    folder: Path
    token: str

    def pods(self) -> list[Any]:
        return list(self.cluster.core.list_namespaced_pod(self.namespace).items)

    def pod_of(self, instance_id: str) -> Any:
        """The pod that is an instance."""
        [found] = [pod for pod in self.pods() if (pod.metadata.annotations or {}).get("gnomon/instance") == instance_id]
        return found


@contextlib.contextmanager
def prepared(*, shadows: bool) -> Iterator[Ground]:
    """A namespace of functions with the models of `benchmarks.shadow.models`, and coordinators where `shadows` are wanted.

    Raises:
        ProgramFailedError: no such cluster can be had, and why.

    """
    try:
        with clusters.borrowed(folders(), Phases()) as kubeconfig:
            cluster = reached(kubeconfig)
            with on(cluster, MODELS, shadows=shadows) as ground:
                yield ground
    except CannotBeHad as reason:
        raise ProgramFailedError(str(reason)) from reason


@contextlib.contextmanager
def on(cluster: Cluster, folder: Path, *, shadows: bool) -> Iterator[Ground]:
    """Prepare a cluster that runs already, with this folder of models.

    Raises:
        CannotBeHad: it has no images of ours, or coordinators of its own.

    """
    compiled = build.kept(folders())
    if compiled is None:
        raise CannotBeHad("the cluster's programs are not compiled: make cluster-build")
    kubectl = Kubectl(compiled.folder / "kubectl", cluster.kubeconfig)
    images = models.images(cluster)
    namespace = f"models-{secrets.token_hex(3)}"
    with contextlib.ExitStack() as stack:
        token = stack.enter_context(models.coordinators(cluster, kubectl, images, folder)) if shadows else ""
        claim = stack.enter_context(models.volume(cluster, namespace, folder))
        stack.callback(_removed, cluster, namespace)
        models.furnish_namespace(cluster, namespace)
        cluster.core.create_namespaced_persistent_volume_claim(namespace, claim)
        yield Ground(cluster, namespace, images, folder, token)


def _removed(cluster: Cluster, namespace: str) -> None:
    """The namespace goes, and with it, before the coordinators, every pod that has their volume."""
    if namespace in models.namespaces(cluster):
        cluster.core.delete_namespace(namespace)
    until(lambda: namespace not in models.namespaces(cluster), f"{namespace} to go", GONE_LIMIT_S)


@dataclass
class Pods(Place):
    """A started platform whose instances are pods."""

    platform: OpenFaasPlatform
    ground: Ground

    def function(self, model: StoredModel, name: str, resources: dict[str, dict[str, str]] | None = None) -> FunctionSpec:
        """A function that serves a model of the volume; `resources` as a stack file has them."""
        document = deployment_of(model, name) | {"namespace": self.ground.namespace, "image": self.ground.images.body}
        spec = read_deployment(document | (resources or {}))
        self.platform.check(spec)
        return spec


@contextlib.asynccontextmanager
async def pods_on(ground: Ground) -> AsyncIterator[Pods]:
    """The platform as `gnomon serve --platform openfaas` has it, for the length of a block."""
    api = await asyncio.to_thread(connect, ground.cluster.kubeconfig)
    nodes = NodeOptions(ground.token) if ground.token else None
    served = ServedModels(DirectoryRepository(ground.folder), ground.folder)
    template = PodOptions(coordinated=nodes is not None, models_claim=models.CLAIM)
    options = OpenFaasOptions(namespace=ground.namespace, pods=template, adopting_s=0.0, models=served, nodes=nodes)
    platform, events = OpenFaasPlatform(api, options, epoch=lambda: 1), EventTimes()
    await platform.start(events)
    try:
        yield Pods(platform, events, ground, timeout_s=BODY_LIMIT_S)
    finally:
        await platform.stop()
        api.close()


@dataclass(frozen=True)
class Plane:
    """A running control plane."""

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
