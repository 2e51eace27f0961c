"""The cluster as one gateway process observes it: informers, free capacity, conflicting autoscalers, and the writer.

    Deployments, pods of functions ─▶ reconcilers and platform
    nodes, all users' pods         ─▶ `NodeCapacity`: free capacity per node
    HPAs, KEDA's ScaledObjects     ─▶ `ConflictingAutoscalers`: functions that others scale are not touched

All functions share it. While another process leads, it is read only; `leads` says so.

The Events on a function's Deployment, which `kubectl describe deployment` shows, have these reasons:

    ForeignAutoscaler  another autoscaler targets the Deployment (`kubernetes.conflicting_autoscalers`)
    BodiesAlone        no node can make Shadows now
    NoCapacity         no node has enough free capacity for a pod: it is Pending
    FailedCreate       Kubernetes creates no pod: a quota, a LimitRange, a webhook
    StartFailed        an instance did not become ready, with the reason
    ScaleReverted      a user has set the number of replicas, which the scaling policy decides
    ResizePending      a node has deferred a pod's resize, or the node or the API server has refused it
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from gnomon_core.background import Background
from gnomon_core.clock import Clock, WallClock
from gnomon_core.functions import FunctionKey
from gnomon_platforms.common import open_session
from gnomon_platforms.kubernetes.channel import NodeContact
from gnomon_platforms.kubernetes.client import Api, Fence
from gnomon_platforms.kubernetes.conflicting_autoscalers import ConflictingAutoscalers
from gnomon_platforms.kubernetes.events import EventRecorder
from gnomon_platforms.kubernetes.informer import Informer, Source
from gnomon_platforms.kubernetes.nodes import Load, NodeCapacity, NodeFacts, node_facts, pod_load
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction, deployed_function
from gnomon_platforms.kubernetes.objects.names import FUNCTION_LABEL, MANAGED_LABEL
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions
from gnomon_platforms.kubernetes.objects.pods import PodFacts, pod_facts
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, NODES, PODS, resizes_pods
from gnomon_platforms.kubernetes.writes import Writer
from gnomon_platforms.nodes.coordinators import NodeOptions, load_besides_shadows
from gnomon_platforms.nodes.models import ServedModels

if TYPE_CHECKING:
    import aiohttp

SCALE_REVERTED = "ScaleReverted"
NO_CAPACITY, FAILED_CREATE, START_FAILED, RESIZE_PENDING = "NoCapacity", "FailedCreate", "StartFailed", "ResizePending"

ADOPTING_S = 60.0
START_TIMEOUT_S = 300.0
ROOM_TIMEOUT_S = 60.0
CAUGHT_UP_S = 10.0


@dataclass(frozen=True, slots=True)
class OpenFaasOptions:
    """The operator's options.

    `namespace` None means every namespace. `start_timeout_s` is how long a pod may take to become ready once it has a node.
    `room_timeout_s` is how long an update's pods may be without room before an old pod makes room for one: less than a cluster
    autoscaler needs to add a node would end pods needlessly. With `stored`, a function store creates the Deployments: a missing
    one was removed, and an instance that was requested just before does not create it again.
    """

    namespace: str | None = None
    pods: PodOptions = field(default_factory=PodOptions)
    start_timeout_s: float = START_TIMEOUT_S
    room_timeout_s: float = ROOM_TIMEOUT_S
    adopting_s: float = ADOPTING_S
    stored: bool = False
    models: ServedModels | None = None
    """The models that functions may name; without them policies have no profiles."""
    nodes: NodeOptions | None = None
    """The nodes' coordinators; without them, or without models, no Body has a Shadow."""


class ObservedCluster:
    """The cluster. `conflicts_changed` is called with a function that another autoscaler has begun or ceased to scale."""

    def __init__(
        self,
        api: Api,
        options: OpenFaasOptions,
        conflicts_changed: Callable[[FunctionKey], None],
        *,
        leads: bool,
        fence: Fence | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.options, self.leads = options, leads
        self.clock: Clock = clock or WallClock()
        self.rng = rng or random.SystemRandom()
        self.writer = Writer(api, self.clock, self.rng, fence)
        self.background = Background()
        ours = Source(DEPLOYMENTS, options.namespace, labels=MANAGED_LABEL)
        self.deployments: Informer[DeployedFunction | None] = Informer(api, ours, deployed_function)
        our_pods = replace(ours, resource=PODS)
        self.pods: Informer[PodFacts] = Informer(api, our_pods, pod_facts, index=(FUNCTION_LABEL,))
        read_load = pod_load if options.nodes is None else load_besides_shadows(options.nodes.namespace)
        self._loads: Informer[Load] = Informer(api, Source(PODS, fields="spec.nodeName!="), read_load)
        self._nodes: Informer[NodeFacts] = Informer(api, Source(NODES), node_facts)
        self.capacity = NodeCapacity()
        self.conflicts = ConflictingAutoscalers(api, options.namespace, conflicts_changed, self.clock)
        self._node_contacts: WeakValueDictionary[str, NodeContact] = WeakValueDictionary()
        """The contact of each node, as long as a channel to a pod there uses it: nodes come and go."""
        self.resizes = True
        """Whether the cluster can resize pods in place."""
        self._api = api
        self._events = EventRecorder(self.writer, self.clock, self.background, self._deployment_uid)
        self._session: aiohttp.ClientSession | None = None
        self._adopting_until_s = 0.0

    async def start(self) -> None:
        """Start the informers.

        Raises:
            GnomonError: 503 `kubernetes_…`, with a hint.

        """
        await asyncio.gather(*(informer.start() for informer in self._informers), self.conflicts.start())
        self.resizes = await asyncio.to_thread(resizes_pods, self._api)
        self._session = open_session()
        self.begin_adopting()
        self._nodes.listen(self.capacity.node_changed)
        self._loads.listen(self.capacity.load_changed)

    async def resync(self) -> None:
        """Return when the caches have everything that was stored before this call.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        await asyncio.gather(*(informer.resync() for informer in self._informers))

    async def stop(self) -> None:
        """Stop the informers and close all connections."""
        await self.background.settled()
        await asyncio.gather(*(informer.stop() for informer in self._informers), self.conflicts.stop())
        if self._session is not None:
            await self._session.close()
        self.writer.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        """The HTTP session to pods and coordinators."""
        assert self._session is not None, "the cluster is observed from `start` on"
        return self._session

    def deployed(self, key: FunctionKey) -> DeployedFunction | None:
        """A function's Deployment; None without one."""
        return self.deployments.get(key.namespace, key.name)

    def pods_of(self, key: FunctionKey) -> Iterable[PodFacts]:
        """A function's pods."""
        return (pod for pod in self.pods.labelled(FUNCTION_LABEL, key.name) if pod.namespace == key.namespace)

    def begin_adopting(self) -> None:
        """Adopt pods and Shadows of an earlier process, for `options.adopting_s` seconds from now."""
        self._adopting_until_s = self.clock.now_s() + self.options.adopting_s

    def adopting_s(self) -> float:
        """The seconds for which pods and Shadows of an earlier process may still be adopted."""
        return self._adopting_until_s - self.clock.now_s()

    def node_contact(self, node: str) -> NodeContact:
        """The time of the last answer of any pod on this node. Channels to pods of one node share it."""
        return self._node_contacts.setdefault(node, NodeContact())

    def left_alone(self, key: FunctionKey) -> bool:
        """True if another autoscaler scales a function. A removed function's Deployment is cleaned up all the same."""
        deployed = self.deployed(key)
        return self.conflicts.of(key) is not None and (deployed is None or not deployed.removed)

    async def caught_up(self, key: FunctionKey, generation: int) -> None:
        """Return when the informer has this generation of a function's Deployment, or after a while."""

        def caught_up() -> bool:
            found = self.deployed(key)
            return found is not None and found.generation >= generation

        with contextlib.suppress(TimeoutError):
            await self.deployments.until(caught_up, CAUGHT_UP_S)

    def warn(self, key: FunctionKey, reason: str, text: str, case: str = "") -> None:
        """Record a Warning Event on the function's Deployment, in the background."""
        self._events.warn(key, reason, text, case)

    async def _deployment_uid(self, key: FunctionKey) -> str | None:
        """The uid of a function's Deployment, which may have been created just now; None while another process leads."""
        await self.caught_up(key, 0)
        deployed = self.deployed(key) if self.leads else None
        return None if deployed is None else deployed.uid

    @property
    def _informers(self) -> tuple[Informer[Any], ...]:
        return self.deployments, self.pods, self._loads, self._nodes
