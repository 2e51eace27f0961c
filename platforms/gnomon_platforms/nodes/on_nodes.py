"""The nodes' coordinators, as the platform finds and uses them: one a node, where their DaemonSet's pod is ready.

    pods of the DaemonSet ─ informer ▶ `NodePairs.reach(node, address)` ▶ state and wishes
    a node's state ▶ cores that its Shadows have ▶ the pool container's request follows, some time later

A Shadow has its cores at once, by affinity; that its pool's pod asks for them is for the scheduler's accounts only, so it is
written behind, the newest number at a time. A write that fails is made again after a while, or with the next number.
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
from gnomon_platforms.kubernetes.objects.quantities import amount_of
from gnomon_platforms.kubernetes.resources import PODS
from gnomon_platforms.kubernetes.writes import Patch, Target, Write, Writer
from gnomon_platforms.nodes.home import Home
from gnomon_platforms.nodes.pairs import NodePairs

if TYPE_CHECKING:
    import aiohttp

CONTAINER = "pool"
_LABELS = {"app.kubernetes.io/name": "gnomon", "app.kubernetes.io/component": "coordinator"}
BASE_ANNOTATION, BASE_CORES = "gnomon/pool-cores", 0.1
"""On the DaemonSet's pods: what the pool asks for without a Shadow, which its request tells no more once it was resized; and what
that is where they do not say so."""
SAME_CORES = 0.05
"""Closer than that, a request is what it should be."""
HEARD_S = 2.0
"""For the first word of nodes that are to answer. It comes within milliseconds, but from one that has died a moment ago."""
AGAIN_S, LATEST_AGAIN_S = 1.0, 60.0
"""After how long a write that has failed is made again, at first and at most."""

_LOG = logging.getLogger("gnomon.nodes")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What the operator says once: the coordinators' token, and where they are."""

    token: str
    namespace: str = NODES_NAMESPACE
    port: int = NODE_PORT


@dataclass(frozen=True, slots=True)
class CoordinatorPod:
    """A pod of the DaemonSet.

    `address` is None until it is ready; `pool_cores` is what its pool asks for, `base_cores` what it asks for without a Shadow.
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
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions") or ())
    address = status.get("podIP") if ready and "deletionTimestamp" not in metadata else None
    pool: Mapping[str, Any] = next((one for one in spec.get("containers") or () if one.get("name") == CONTAINER), {})
    requested = ((pool.get("resources") or {}).get("requests") or {}).get("cpu", "0")
    base_cores = amount_of((metadata.get("annotations") or {}).get(BASE_ANNOTATION)) or BASE_CORES
    node = spec.get("nodeName") or ""
    return CoordinatorPod(metadata["name"], metadata.get("uid", ""), node, address, amount_of(requested), base_cores)


def load_besides_shadows(namespace: str) -> Callable[[Document], Load]:
    """Read what a pod asks for; of a coordinator's, what it asks for without Shadows, whose cores are claimed one by one."""

    def load(pod: Document) -> Load:
        found = pod_load(pod)
        labels = pod["metadata"].get("labels") or {}
        if pod["metadata"].get("namespace") != namespace or any(labels.get(key) != value for key, value in _LABELS.items()):
            return found
        seen = coordinator_pod(pod)
        return replace(found, cores=found.cores - max(0.0, seen.pool_cores - seen.base_cores))

    return load


class OnNodes:
    """The coordinators, and the Shadows with them. Begun and closed with the platform."""

    def __init__(self, api: Api, writer: Writer, options: NodeOptions) -> None:
        self._options = options
        self._writer = writer
        self._api = api
        self._pods = self._informer()
        self.pairs: NodePairs | None = None
        self._wanted: dict[str, int] = {}
        """By node, the cores that its Shadows have."""
        self._changed_number: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._written: dict[str, tuple[str, float]] = {}
        """By node, the uid of the pod that was written to last and what it was to ask for: what is seen of it may be older."""
        self._sizing: dict[str, asyncio.Task[None]] = {}

    async def start(self, home: Home, session: aiohttp.ClientSession) -> None:
        """See who is there, and which Shadows an earlier leader has left, as far as nodes answer.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        # One that has failed to start has ended, and this may be the next attempt.
        self._pods = self._informer()
        await self._pods.start()
        self.pairs = NodePairs(home, session, self._options.token, self._claimed)
        self._pods.listen(self._changed)
        await self.pairs.nodes.heard(HEARD_S)

    async def stop(self) -> None:
        """Let go of the nodes."""
        for task in self._sizing.values():
            task.cancel()
        await asyncio.gather(*self._sizing.values(), return_exceptions=True)
        if self.pairs is not None:
            await self.pairs.close()
        await self._pods.stop()

    def instances(self, function: str) -> list[Instance]:
        return [] if self.pairs is None else self.pairs.instances(function)

    def body_found(self, node: str | None) -> None:
        """A Body of an earlier process has been found on this node: so are its Shadows, once this has returned."""
        if self.pairs is not None and node is not None:
            asyncio.get_running_loop().call_soon(self.pairs.look, node)

    def _informer(self) -> Informer[CoordinatorPod]:
        labels = ",".join(f"{key}={value}" for key, value in _LABELS.items())
        return Informer(self._api, Source(PODS, self._options.namespace, labels=labels), coordinator_pod)

    def _changed(self, change: Change[CoordinatorPod]) -> None:
        assert self.pairs is not None
        pod = change.new or change.old
        if pod is None or not pod.node:
            return
        theirs = [one for one in self._pods.values() if one.node == pod.node]
        if not theirs:
            self.pairs.abandoned(pod.node)
            return
        # While one is exchanged a node has two: the ready one counts. One that is only busy is ready again, with its Shadows.
        found = next((one.address for one in theirs if one.address), None)
        self.pairs.nodes.reach(pod.node, None if found is None else http_url(found, self._options.port))

    def _claimed(self, node: str, cores: int) -> None:
        """So many cores have the Shadows of a node."""
        if cores != self._wanted.get(node):
            self._changed_number[node].set()
        self._wanted[node] = cores
        if node not in self._sizing:
            self._sizing[node] = asyncio.get_running_loop().create_task(self._follow(node))

    async def _follow(self, node: str) -> None:
        try:
            await self._write_newest(node)
        finally:
            # Not when the task's callbacks come, a turn of the loop later: a number that came in between would be nobody's.
            self._sizing.pop(node, None)

    async def _write_newest(self, node: str) -> None:
        done, pause_s = None, AGAIN_S
        while (cores := self._wanted[node]) != done:
            self._changed_number[node].clear()
            if await self._size(node, cores):
                done, pause_s = cores, AGAIN_S
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed_number[node].wait()
            pause_s = min(2 * pause_s, LATEST_AGAIN_S)

    async def _size(self, node: str, cores: int) -> bool:
        """Let the node's pool ask for so many; False where that failed. What one that is not ready has is said when it is."""
        pod = next((one for one in self._pods.values() if one.node == node and one.address), None)
        if pod is None:
            return True
        wanted = pod.base_cores + cores
        uid, last = self._written.get(node, (pod.uid, wanted))
        if _asks(pod, wanted) and (uid != pod.uid or last == wanted):
            return True
        self._written[node] = pod.uid, wanted

        def decide(seen: Document | None) -> Write | None:
            if seen is None or seen["metadata"].get("uid") != pod.uid or _asks(coordinator_pod(seen), wanted):
                return None
            resources = {"requests": {"cpu": f"{round(1000 * wanted)}m"}}
            return Patch({"spec": {"containers": [{"name": CONTAINER, "resources": resources}]}}, "resize", STRATEGIC_PATCH)

        try:
            await self._writer.settle(
                Target(PODS, self._options.namespace, pod.name), decide, f"give the pool of {node} {wanted:g} cores"
            )
        except GnomonError as error:
            _LOG.warning("%s", error)
            return False
        return True


def _asks(pod: CoordinatorPod, cores: float) -> bool:
    """Whether its pool asks for so many."""
    return abs(pod.pool_cores - cores) < SAME_CORES
