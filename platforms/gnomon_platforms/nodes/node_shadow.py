"""The record of a Shadow on a node, the rows that nodes report of Shadows, and the requests that are sent.

    requested here ─▶ STARTING, known to its node since the answer     found in a node's state ─▶ adopted, known since that state
    a function ─ repository and profiles, read in a thread ─▶ `FunctionModel` ─▶ the JSON of a request

A node reports a Shadow by a row: what was requested, and what the Shadow computes for its Body by now. A Shadow on another node
than its Body has two rows: that of its own node, `afar`, about the process, and that of the Body's node, `elsewhere`, about the
pair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gnomon_core.blocks import Layers
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.functions import FunctionSpec
from gnomon_core.interfaces import PlatformListener
from gnomon_core.pairs import Pair, predicted_ms
from gnomon_core.profiles import ModelProfile
from gnomon_platforms.common import shadow_bytes
from gnomon_platforms.kubernetes.nodes import NodeCapacity
from gnomon_platforms.kubernetes.objects.placing import Placing
from gnomon_platforms.nodes.models import ServedModels

State = Mapping[str, Any]
"""The whole state of a node, as its coordinator sends it."""
Row = Mapping[str, Any]
"""The entry of one Shadow in a node's state."""
Version = tuple[str, int]
"""Incarnation of a coordinator, and the number of its state."""
ALIVE = ("starting", "ready")


@dataclass(frozen=True, slots=True)
class BodyPod:
    """A Body that serves, and its pod."""

    instance: Instance
    spec: FunctionSpec
    uid: str
    node: str


class Bodies(Protocol):
    """The Bodies that have pods."""

    def of_instance(self, body_id: str) -> BodyPod | None:
        """Return a Body by its instance; None if the instance has ended, or has no pod on a node."""
        ...

    def of_pod(self, uid: str) -> BodyPod | None:
        """Return a Body by its pod; None as above."""
        ...

    def placing(self, body: BodyPod) -> Placing:
        """Return the node constraints of a Body's pod.

        Raises:
            GnomonError: 400 `invalid_constraint`.

        """
        ...

    def set_pairs(self, body_id: str, shadows: Mapping[str, Pair]) -> None:
        """Set the Shadows that work for a Body's instance now."""
        ...


@dataclass(frozen=True, slots=True)
class ShadowContext:
    """The context that the platform provides to the Shadows of its Bodies.

    `epoch` is the leader's fencing token. `adopting_s` is for how many more seconds Bodies of an earlier process may be found.
    `models` are the models of all functions.
    """

    bodies: Bodies
    capacity: NodeCapacity
    listener: PlatformListener
    now_s: Callable[[], float]
    epoch: Callable[[], int]
    adopting_s: Callable[[], float]
    models: ServedModels

    def node_of(self, body: BodyPod, pair: Pair) -> str:
        """Choose the node of a Shadow: the Body's, or the one that the pair names if the Body's pod may run there.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        if pair.node is None or pair.node == body.node:
            return body.node
        return self.capacity.place_shadow(self.bodies.placing(body), pair.shadow_cores, pair.node)


@dataclass(slots=True)
class NodeShadow:
    """The record of a Shadow. `pair` is what the Shadow computes for its Body now, `end_reason` why it is being ended.

    `body_node` is set for a remote Shadow only: one on another node than its Body. `loaded_blocks` are those of its creation.
    """

    instance: Instance
    known_since: Version | None = None
    """The first state of its node that contains it; None until the node has answered."""
    pair: Pair | None = None
    end_reason: str = ""
    body_node: str | None = None
    loaded_blocks: tuple[int, ...] = ()
    introduced: bool = False
    """Whether the Body's node has been asked to connect the Body to this remote Shadow."""
    paired_since: Version | None = None
    """The first state of the Body's node that contains this remote Shadow."""
    end_requested: bool = False
    """Whether the node of this remote Shadow has been asked to end it, its Body working without it."""
    unconfirmed: bool = False
    """Whether the last change got no answer: the node's next state then says which pair is in force."""

    def loaded(self, pair: Pair) -> Pair:
        """Return the pair with the blocks that this Shadow keeps in memory: for a remote one, always those of its creation.

        Raises:
            GnomonError: 409 `no_such_blocks` where a remote Shadow lacks some of these blocks.

        """
        if self.body_node is None:
            return pair
        if not set(pair.blocks) <= set(self.loaded_blocks):
            raise no_such_blocks(self.instance.id, self.loaded_blocks)
        return replace(pair, blocks=self.loaded_blocks)


def requested_shadow(shadow_id: str, body: BodyPod, pair: Pair, memory_bytes: int, now_s: float) -> NodeShadow:
    """Record a Shadow that is about to be requested for this Body."""
    instance = Instance(
        id=shadow_id,
        function=body.instance.function,
        version=body.instance.version,
        node=pair.node or body.node,
        cores=pair.shadow_cores,
        memory_bytes=memory_bytes,
        state=InstanceState.STARTING,
        started_s=now_s,
        kind=InstanceKind.SHADOW,
        partner=body.instance.id,
        pair=pair,
    )
    return NodeShadow(instance, body_node=None if pair.node is None else body.node, loaded_blocks=pair.blocks)


def adopted_shadow(row: Row, body: BodyPod, state: State, now_s: float) -> NodeShadow:
    """Record a Shadow of an earlier leader from its row, as if it had been requested now."""
    # A coordinator of an earlier version reports only what the Shadow does, not what was requested.
    requested = row.get("wished", row)
    node = str(state["node"]) if row.get("afar") else None
    pair = Pair(int(row["cores"]), tuple(requested["blocks"]), tuple(requested["split"]), node)
    memory_bytes = int(row.get("memory_bytes") or row.get("resident_bytes", 0))
    shadow = requested_shadow(str(row["id"]), body, pair, memory_bytes, now_s)
    shadow.known_since = version_of(state)
    return shadow


def pair_of(row: Row, node: str | None = None) -> Pair | None:
    """Return what a Shadow computes for its Body, on `node` if it is remote; None while the Body works without it."""
    return Pair(int(row["cores"]), tuple(row["blocks"]), tuple(row["split"]), node) if row["paired"] else None


def version_of(state: State) -> Version:
    """Return incarnation and number of a node's state."""
    return str(state["incarnation"]), int(state["version"])


def should_contain(state: State, since: Version | None) -> bool:
    """True if a Shadow known since that version must be in this state, unless its coordinator was restarted."""
    if since is None:
        return False
    incarnation, version = since
    return bool(state["incarnation"] != incarnation or state["version"] >= version)


@dataclass(frozen=True, slots=True)
class FunctionModel:
    """The model of a function as read from the repository at one moment."""

    spec: FunctionSpec
    layers: Layers
    profile: ModelProfile | None

    def memory_bytes(self, pair: Pair) -> int:
        """Return the memory that a Shadow with these blocks takes on its node."""
        return shadow_bytes(self.layers, pair, self.profile, self.spec.settings.weight_mode)


class ShadowRequests:
    """Builds the JSON of requests. Every method raises GnomonError 409 `no_such_body` for a Body that can have no Shadow.

    A repository may be remote and a profile is a large file, so `model` and `files` read them in a thread. Callers await both
    before they claim resources of a node.
    """

    def __init__(self, context: ShadowContext) -> None:
        self._context = context

    async def model(self, spec: FunctionSpec) -> FunctionModel:
        """Read the function's model."""
        return await asyncio.to_thread(self._model, spec)

    async def files(self, spec: FunctionSpec) -> Mapping[str, str]:
        """Return where a pool finds the files of that model."""
        return await asyncio.to_thread(self._context.models.files, spec)

    def _model(self, spec: FunctionSpec) -> FunctionModel:
        layers = self._context.models.blocks_of(spec)
        if layers is None:
            raise no_such_body("Its function serves no model with layer blocks.")
        return FunctionModel(spec, layers, self._context.models.profile(spec))

    def creation(self, shadow: NodeShadow, model: FunctionModel, files: Mapping[str, str]) -> dict[str, Any]:
        """Return the request that creates a Shadow."""
        body, pair, settings = self._body(shadow), shadow.instance.pair, model.spec.settings
        assert pair is not None
        about = {"pod_uid": body.uid, "function": body.instance.function, "weight_mode": settings.weight_mode}
        max_batch = max(settings.max_batch, len(pair.split))
        return {**about, **files, "max_batch": max_batch, **self.change(model, pair, shadow.instance.memory_bytes)}

    async def introduction(self, shadow: NodeShadow) -> dict[str, Any]:
        """Return the creation request for the Body's node, from what the repository has now."""
        spec = self._body(shadow).spec
        return self.creation(shadow, await self.model(spec), await self.files(spec))

    def change(self, model: FunctionModel, pair: Pair, memory_bytes: int) -> dict[str, Any]:
        """Return the request that changes what a Shadow computes for its Body."""
        task = {"cores": pair.shadow_cores, "blocks": list(pair.blocks), "split": list(pair.split), "memory_bytes": memory_bytes}
        return {"epoch": self._context.epoch(), **task, "expected_ms": predicted_ms(model.profile, pair)}

    def _body(self, shadow: NodeShadow) -> BodyPod:
        body = self._context.bodies.of_instance(shadow.instance.partner or "")
        if body is None:
            raise no_such_body("The Body has ended.")
        return body


def no_such_body(why: str) -> GnomonError:
    """409: no Shadow can be made for the Body."""
    return GnomonError(
        409, "no_such_body", f"The Body cannot have this Shadow. {why}", "Decide again from the present instances."
    )


def no_such_node(node: str | None, body_node: str) -> GnomonError:
    """404: no connected coordinator makes Shadows for remote Bodies there."""
    return GnomonError(
        404, "no_such_node", f"Node {node} makes no Shadows for Bodies on {body_node}.", "Name another node, or none."
    )


def no_capacity(node: str, pair: Pair) -> GnomonError:
    """503: the cores of the node are claimed by others."""
    return GnomonError(
        503, "no_capacity", f"Node {node} has fewer than {pair.shadow_cores} free cores for a Shadow.", "Request fewer."
    )


def no_such_blocks(shadow_id: str, loaded_blocks: tuple[int, ...]) -> GnomonError:
    """409: the blocks of a remote Shadow are fixed at its creation."""
    text = f"{shadow_id} is on another node than its Body and holds blocks {loaded_blocks}, no others."
    return GnomonError(409, "no_such_blocks", text, "Use some of these blocks, or create another Shadow.")
