"""Shadows for the Bodies of Revisions, from their nodes' coordinators, and the data by which policies decide on Shadows.

    models ▶ the profile of a Revision's model
    nodes, all pods ▶ free capacity per node
    coordinators ▶ which Bodies may have a Shadow, and the states of requested Shadows

The scheduler chooses the nodes of Knative's pods, and policies see its choice. Free capacity counts pods' requests and Shadows.
Requests to nodes are the same as for functions of OpenFaaS (`gnomon_platforms.nodes`). A Shadow outlives the leader that has
requested it: the next leader adopts it.
"""

from __future__ import annotations

import logging
import secrets as chance_of_secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gnomon_core.clock import Clock
from gnomon_core.coordination import NODES_NAMESPACE
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, Node
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_core.interfaces import BatchChannel
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.settings import Settings
from gnomon_platforms.kubernetes.client import Api
from gnomon_platforms.kubernetes.informer import Informer, Source
from gnomon_platforms.kubernetes.nodes import Load, NodeCapacity, NodeFacts, node_facts
from gnomon_platforms.kubernetes.resources import NODES, PODS
from gnomon_platforms.kubernetes.writes import Writer
from gnomon_platforms.nodes.coordinators import NodeCoordinators, NodeOptions, load_besides_shadows
from gnomon_platforms.nodes.models import ServedModels
from gnomon_platforms.nodes.node_shadow import Bodies, ShadowContext

if TYPE_CHECKING:
    import aiohttp


ADOPTING_S = 60.0
"""Seconds after a start in which a Shadow of an earlier leader is kept, because its Body may still be found."""
_NO_BODY = "no_such_body"

_LOG = logging.getLogger("gnomon.knative")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The operator's options: the models that Revisions may name, and the nodes' coordinators, None for no Shadows."""

    models: ServedModels
    nodes: NodeOptions | None = None


class RevisionShadows:
    """The Shadows of all Revisions. `epoch` is the leader's."""

    def __init__(self, api: Api, writer: Writer, options: ModelOptions, clock: Clock, epoch: Callable[[], int]) -> None:
        self._models, self._clock, self._epoch = options.models, clock, epoch
        self._capacity = NodeCapacity()
        namespace = NODES_NAMESPACE if options.nodes is None else options.nodes.namespace
        self._nodes: Informer[NodeFacts] = Informer(api, Source(NODES), node_facts)
        self._loads: Informer[Load] = Informer(api, Source(PODS, fields="spec.nodeName!="), load_besides_shadows(namespace))
        self._coordinators = None if options.nodes is None else NodeCoordinators(api, writer, options.nodes)
        self._until_s = 0.0

    async def start(self, bodies: Bodies, poke: Callable[[str], None], session: aiohttp.ClientSession) -> None:
        """Track nodes' free capacity, and connect to their coordinators; `poke` is called with the Revision that has changed.

        The informers must have been started.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        self._nodes.listen(self._capacity.node_changed)
        self._loads.listen(self._capacity.load_changed)
        self._until_s = self._clock.now_s() + ADOPTING_S
        if self._coordinators is None:
            return
        context = ShadowContext(
            bodies=bodies,
            capacity=self._capacity,
            listener=_Listener(poke),
            now_s=self._clock.now_s,
            epoch=self._epoch,
            adopting_s=lambda: self._until_s - self._clock.now_s(),
            models=self._models,
        )
        await self._coordinators.start(context, session)

    async def stop(self) -> None:
        """Disconnect from coordinators. Shadows keep working for their Bodies."""
        if self._coordinators is not None:
            await self._coordinators.stop()

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        """Informers of nodes and of their pods, started and stopped together with the class's other informers."""
        return self._nodes, self._loads

    @property
    def has_coordinators(self) -> bool:
        """True if the coordinators of nodes are reached: a token for them is configured."""
        return self._coordinators is not None

    def nodes(self, *, pairs: bool) -> tuple[Node, ...]:
        """The nodes with their free capacity; without `pairs`, as for a Revision whose pods cannot have Shadows."""
        found = self._capacity.nodes()
        return found if pairs else tuple(replace(node, pairs=False) for node in found)

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        """The profile of the Revision's model."""
        return self._models.profile(spec)

    def instances(self, function: str) -> tuple[Instance, ...]:
        """The Shadows of a Revision's Bodies."""
        return () if self._coordinators is None else tuple(self._coordinators.instances(function))

    async def create(self, body_id: str, pair: Pair) -> None:
        """Create a Shadow; does nothing if its Body has gone since the decision.

        Raises:
            GnomonError: 503 `no_capacity`, `no_pool`, `node_unreachable`, or what the node refuses.

        """
        if self._coordinators is None or self._coordinators.shadows is None:
            return
        try:
            await self._coordinators.shadows.create(body_id, pair, f"{body_id}-s{chance_of_secrets.token_hex(3)}")
        except GnomonError as refused:
            if refused.code != _NO_BODY:
                raise
            _LOG.info("no Shadow is created for Body %s: %s", body_id, refused)

    async def change(self, shadow_id: str, pair: Pair) -> None:
        """Change a Shadow's cores, blocks or split.

        Raises:
            GnomonError: 503 `no_capacity`, `node_unreachable`, or what the node refuses.

        """
        if self._coordinators is not None and self._coordinators.shadows is not None:
            await self._coordinators.shadows.change(shadow_id, pair)

    def destroy(self, shadow_id: str) -> None:
        """End a Shadow."""
        if self._coordinators is not None and self._coordinators.shadows is not None:
            self._coordinators.shadows.destroy(shadow_id)

    def promote(self, shadow_id: str) -> None:
        """Refuse: on Knative a pod is a Body or belongs to no Revision.

        Raises:
            GnomonError: 409 `no_such_shadow`.

        """
        if self._coordinators is not None and self._coordinators.shadows is not None:
            raise GnomonError(409, "no_such_shadow", f"{shadow_id} cannot become a Body on Knative.", "Create a Body.")

    def body_gone(self, body_id: str) -> None:
        """End the Shadows of an instance that has lost its pod."""
        if self._coordinators is not None and self._coordinators.shadows is not None:
            self._coordinators.shadows.body_gone(body_id)

    def body_found(self, node: str) -> None:
        """Adopt the Shadow that an earlier leader may have left for an instance with a pod on this node."""
        if self._coordinators is not None:
            self._coordinators.body_found(node)


class _Listener:
    """The `PlatformListener` of Shadows: each change triggers a decision of the policy loop."""

    def __init__(self, poke: Callable[[str], None]) -> None:
        self._poke = poke

    def instance_ready(self, instance: Instance, channel: BatchChannel) -> None:
        """Ignore: pods report when Bodies are ready."""

    def instance_gone(self, instance_id: str, reason: str) -> None:
        _LOG.info("Shadow %s has ended: %s", instance_id, reason)

    def pair_changed(self, body: Instance) -> None:
        self._poke(body.function)

    def shadow_found(self, shadow: Instance) -> None:
        self._poke(shadow.function)

    def log_line(self, function: FunctionKey, instance_id: str, text: str) -> None:
        _LOG.info("function %s, instance %s: %s", function, instance_id, text)


def spec_of(key: FunctionKey, settings: Settings) -> FunctionSpec:
    """A Revision as a function specification, as far as its model's files depend on it."""
    return replace(read_deployment({"service": key.name, "namespace": key.namespace, "image": "none"}), settings=settings)
