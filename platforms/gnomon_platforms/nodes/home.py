"""What Shadows on a cluster's nodes share with the platform's pods: Bodies, room; and why there may be none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionSpec
from gnomon_core.interfaces import PlatformListener
from gnomon_core.pairs import Pair
from gnomon_platforms.kubernetes.nodes import Given
from gnomon_platforms.kubernetes.objects.placing import Placing
from gnomon_platforms.nodes.models import ServedModels


@dataclass(frozen=True, slots=True)
class BodyPod:
    """A Body that serves, and the pod in which it does."""

    instance: Instance
    spec: FunctionSpec
    uid: str
    node: str


class Bodies(Protocol):
    """The Bodies that have pods."""

    def of_instance(self, body_id: str) -> BodyPod | None:
        """A Body by its instance; None for one that is ended, or has no pod on a node."""
        ...

    def of_pod(self, uid: str) -> BodyPod | None:
        """The same by its pod."""
        ...

    def placing(self, body: BodyPod) -> Placing:
        """What its pod says of nodes.

        Raises:
            GnomonError: 400 `invalid_constraint`.

        """
        ...

    def works_with(self, body_id: str, shadows: Mapping[str, Pair]) -> None:
        """A Body's Shadows are these now."""
        ...


class Claims(Protocol):
    """Who has which room on the nodes, and where Shadows can be made."""

    def free_cores(self, node: str) -> float:
        """The cores that a node has left."""
        ...

    def place_shadow(self, placing: Placing, cores: int, named: str) -> str:
        """The node for a Shadow elsewhere than its Body, whose pod says this of nodes: the one that is named, or another.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        ...

    def give(self, instance_id: str, given: Given) -> None: ...

    def take_back(self, instance_id: str) -> None: ...

    def pool_ready(self, node: str, *, ready: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Home:
    """What Shadows share with the platform's pods.

    `epoch` is the leader's. `adopting_s` is for how long from now on Bodies of an earlier process may still be found.
    `models` are those of all functions.
    """

    bodies: Bodies
    claims: Claims
    listener: PlatformListener
    now_s: Callable[[], float]
    epoch: Callable[[], int]
    adopting_s: Callable[[], float]
    models: ServedModels

    def node_of(self, body: BodyPod, pair: Pair) -> str:
        """The node of a Shadow of this Body: its own, or where the pair names another, that one, if the Body's pod may be there.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        if pair.node is None or pair.node == body.node:
            return body.node
        return self.claims.place_shadow(self.bodies.placing(body), pair.shadow_cores, pair.node)


def no_such_body(why: str) -> GnomonError:
    """409: no Shadow can be made for the Body."""
    return GnomonError(
        409, "no_such_body", f"The Body cannot have this Shadow. {why}", "Decide again from the present instances."
    )


def no_such_node(node: str | None, body_node: str) -> GnomonError:
    """404: no coordinator that is reached there makes Shadows."""
    return GnomonError(404, "no_such_node", f"No Shadow of a Body on {body_node} can be on {node}.", "Name another, or none.")


def no_capacity(node: str, pair: Pair) -> GnomonError:
    """503: the node's cores are claimed by others."""
    return GnomonError(503, "no_capacity", f"Node {node} has no {pair.shadow_cores} cores for a Shadow.", "Ask for fewer.")


def no_such_blocks(shadow_id: str, holds: tuple[int, ...]) -> GnomonError:
    """409: what a Shadow on another node than its Body's holds does not change."""
    text = f"{shadow_id} is on another node than its Body and holds blocks {holds}, no others."
    return GnomonError(409, "no_such_blocks", text, "Use of these as many as you like, or ask for another Shadow.")
