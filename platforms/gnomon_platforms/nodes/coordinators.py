"""The coordinator pods of a cluster's nodes: found by an informer, connected to, and their pools' CPU requests kept up to date.

    DaemonSet pods ─ informer ▶ `CoordinatorConnections.set_address(node, address)` ▶ state and requests
    a node's state ▶ cores of its Shadows ▶ `PoolRequests` patches the pool container's CPU request, some time later

A Shadow gets its cores at once, by CPU affinity. The CPU request of its pool's pod is for the scheduler only, so it is written in
the background, always the newest number. A failed write is retried with exponential back-off, or at once with the next number.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gnomon_core.addresses import http_url
from gnomon_core.coordination import NODE_PORT, NODES_NAMESPACE
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance
from gnomon_platforms.kubernetes.client import STRATEGIC_PATCH, Api, Document
from gnomon_platforms.kubernetes.informer import Change, Informer, Source
from gnomon_platforms.kubernetes.nodes import Load, pod_load
from gnomon_platforms.kubernetes.objects.pod_template import COORDINATOR_LABELS
from gnomon_platforms.kubernetes.objects.quantities import amount_of
from gnomon_platforms.kubernetes.resources import PODS, Permission, Scope
from gnomon_platforms.kubernetes.writes import Patch, Target, Write, Writer
from gnomon_platforms.nodes.node_shadow import ShadowContext
from gnomon_platforms.nodes.shadows import ShadowTracker

if TYPE_CHECKING:
    import aiohttp

CONTAINER = "pool"
BASE_ANNOTATION, BASE_CORES = "gnomon/pool-cores", 0.1
"""Annotation of the DaemonSet's pods: the pool's CPU request without a Shadow, which a resize overwrites; and the default where
the annotation is missing."""
SAME_CORES = 0.05
"""Tolerance within which a request counts as up to date."""
FIRST_STATE_TIMEOUT_S = 2.0
"""Seconds to wait for each node's first state, which takes milliseconds unless the node has just died."""
BACKOFF_S, MAX_BACKOFF_S = 1.0, 60.0
"""Pause after a failed write, doubled with each further failure."""

POOLS = (
    Permission(Scope.NODES, "", "pods", ("get", "list", "watch"), "find the nodes' coordinators"),
    Permission(Scope.NODES, "", "pods/resize", ("patch",), "let a pool's request follow what its Shadows have"),
)
"""The table behind the role `gnomon-pools` of deploy/openfaas/coordinator, in the coordinators' namespace. The gateway of
OpenFaaS and the autoscaler class of Knative are bound to the role."""

_LOG = logging.getLogger("gnomon.nodes")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """The coordinators' token, namespace and port."""

    token: str
    namespace: str = NODES_NAMESPACE
    port: int = NODE_PORT


@dataclass(frozen=True, slots=True)
class CoordinatorPod:
    """A pod of the DaemonSet.

    `address` is None until the pod is ready; `pool_cores` is its pool's CPU request, `base_cores` that request without a Shadow.
    """

    name: str
    uid: str
    node: str
    address: str | None
    pool_cores: float
    base_cores: float = BASE_CORES


def coordinator_pod(pod: Mapping[str, Any]) -> CoordinatorPod:
    """Read a pod as the API server sends it."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    ready = any(
        condition.get("type") == "Ready" and condition.get("status") == "True" for condition in status.get("conditions") or ()
    )
    address = status.get("podIP") if ready and "deletionTimestamp" not in metadata else None
    pool: Mapping[str, Any] = next(
        (container for container in spec.get("containers") or () if container.get("name") == CONTAINER), {}
    )
    requested = ((pool.get("resources") or {}).get("requests") or {}).get("cpu", "0")
    base_cores = amount_of((metadata.get("annotations") or {}).get(BASE_ANNOTATION)) or BASE_CORES
    node = spec.get("nodeName") or ""
    return CoordinatorPod(metadata["name"], metadata.get("uid", ""), node, address, amount_of(requested), base_cores)


def load_besides_shadows(namespace: str) -> Callable[[Document], Load]:
    """Return a reader of pods' requests without the Shadows' part of coordinators' pods: each Shadow has its own claim."""

    def load(pod: Document) -> Load:
        found = pod_load(pod)
        labels = pod["metadata"].get("labels") or {}
        if pod["metadata"].get("namespace") != namespace or not COORDINATOR_LABELS.items() <= labels.items():
            return found
        coordinator = coordinator_pod(pod)
        return replace(found, cores=found.cores - max(0.0, coordinator.pool_cores - coordinator.base_cores))

    return load


class NodeCoordinators:
    """The coordinators of all nodes, and the tracker of their Shadows. Started and stopped with the platform."""

    def __init__(self, api: Api, writer: Writer, options: NodeOptions) -> None:
        self._options = options
        self._writer = writer
        self._api = api
        self._pods = self._informer()
        self.requests = PoolRequests(writer, options.namespace, self._ready_pod)
        self.shadows: ShadowTracker | None = None
        """The tracker of the nodes' Shadows; None until started."""

    async def start(self, context: ShadowContext, session: aiohttp.ClientSession) -> None:
        """Connect to the coordinators, and adopt the Shadows of an earlier leader, as far as nodes answer.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        # An informer that failed to start cannot be started again, and this may be the next attempt.
        self._pods = self._informer()
        await self._pods.start()
        self.shadows = ShadowTracker(context, session, self._options.token, self.requests.set_cores)
        self._pods.listen(self._pod_changed)
        await self.shadows.connections.wait_first_states(FIRST_STATE_TIMEOUT_S)

    async def stop(self) -> None:
        """Disconnect from the nodes."""
        await self.requests.stop()
        if self.shadows is not None:
            await self.shadows.close()
        await self._pods.stop()

    def instances(self, function: str) -> list[Instance]:
        return [] if self.shadows is None else self.shadows.instances(function)

    def body_found(self, node: str | None) -> None:
        """Adopt the Shadows of a Body of an earlier process that was found on this node, once the caller has returned."""
        if self.shadows is not None and node is not None:
            asyncio.get_running_loop().call_soon(self.shadows.reconcile, node)

    def _informer(self) -> Informer[CoordinatorPod]:
        labels = ",".join(f"{key}={value}" for key, value in COORDINATOR_LABELS.items())
        return Informer(self._api, Source(PODS, self._options.namespace, labels=labels), coordinator_pod)

    def _ready_pod(self, node: str) -> CoordinatorPod | None:
        return next((pod for pod in self._pods.values() if pod.node == node and pod.address), None)

    def _pod_changed(self, change: Change[CoordinatorPod]) -> None:
        assert self.shadows is not None
        pod = change.new or change.old
        if pod is None or not pod.node:
            return
        if not any(other_pod.node == pod.node for other_pod in self._pods.values()):
            self.shadows.coordinator_removed(pod.node)
            return
        # A node has two pods during a rolling update: the ready one counts. A pod that is only busy becomes ready again, with its
        # Shadows, so a node without a ready pod keeps them.
        ready = self._ready_pod(pod.node)
        address = None if ready is None or ready.address is None else http_url(ready.address, self._options.port)
        self.shadows.connections.set_address(pod.node, address)


class PoolRequests:
    """Keeps the CPU request of each node's pool equal to its base plus the cores of its Shadows.

    `ready_pod` returns a node's ready coordinator pod as the informer has it.
    """

    def __init__(self, writer: Writer, namespace: str, ready_pod: Callable[[str], CoordinatorPod | None]) -> None:
        self._writer, self._namespace, self._ready_pod = writer, namespace, ready_pod
        self._cores: dict[str, int] = {}
        """The cores of each node's Shadows."""
        self._changed: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._written: dict[str, tuple[str, float]] = {}
        """The last write on each node: the pod's uid and its CPU request. The informer's pod may be older."""
        self.tasks: dict[str, asyncio.Task[None]] = {}
        """The task that writes each node's request; absent while the request is up to date."""

    def set_cores(self, node: str, cores: int) -> None:
        """Let the pool's request follow the cores that the Shadows of a node have."""
        if cores != self._cores.get(node):
            self._changed[node].set()
        self._cores[node] = cores
        if node not in self.tasks:
            self.tasks[node] = asyncio.get_running_loop().create_task(self._run(node))

    async def stop(self) -> None:
        """Stop writing."""
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    async def _run(self, node: str) -> None:
        try:
            await self._write_newest(node)
        finally:
            # Here and not in a done callback, which runs a turn of the loop later: a number set in between would be lost.
            self.tasks.pop(node, None)

    async def _write_newest(self, node: str) -> None:
        done, pause_s = None, BACKOFF_S
        while (cores := self._cores[node]) != done:
            self._changed[node].clear()
            if await self._write(node, cores):
                done, pause_s = cores, BACKOFF_S
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed[node].wait()
            pause_s = min(2 * pause_s, MAX_BACKOFF_S)

    async def _write(self, node: str, cores: int) -> bool:
        """Write the request for these cores; False where that failed. A pod that becomes ready reports its cores anew."""
        pod = self._ready_pod(node)
        if pod is None:
            return True
        desired_cores = pod.base_cores + cores
        uid, last = self._written.get(node, (pod.uid, desired_cores))
        if _requests(pod, desired_cores) and (uid != pod.uid or last == desired_cores):
            return True
        self._written[node] = pod.uid, desired_cores

        def decide(current: Document | None) -> Write | None:
            if current is None or current["metadata"].get("uid") != pod.uid or _requests(coordinator_pod(current), desired_cores):
                return None
            resources = {"requests": {"cpu": f"{round(1000 * desired_cores)}m"}}
            return Patch({"spec": {"containers": [{"name": CONTAINER, "resources": resources}]}}, "resize", STRATEGIC_PATCH)

        try:
            await self._writer.settle(
                Target(PODS, self._namespace, pod.name), decide, f"give the pool of {node} {desired_cores:g} cores"
            )
        except GnomonError as error:
            _LOG.warning("The CPU request of the pool on node %s was not set to %g cores: %s", node, desired_cores, error)
            return False
        return True


def _requests(pod: CoordinatorPod, cores: float) -> bool:
    """True if the CPU request of the pod's pool is this."""
    return abs(pod.pool_cores - cores) < SAME_CORES
