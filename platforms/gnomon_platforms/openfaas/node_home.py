"""What Shadows on a cluster's nodes share with the platform's pods, and why there may be none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionSpec
from gnomon_core.pairs import Pair
from gnomon_core.seams import ModelRepository, PlatformListener
from gnomon_platforms.kubernetes.nodes import Given
from gnomon_platforms.local.profiles import ProfileFiles


@dataclass(frozen=True, slots=True)
class BodyPod:
    """A Body that serves, and the pod in which it does."""

    instance: Instance
    spec: FunctionSpec
    uid: str
    node: str


class Claims(Protocol):
    """Who has which room on the nodes."""

    def give(self, instance_id: str, given: Given) -> None: ...

    def take_back(self, instance_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Home:
    """What Shadows share with the platform's pods.

    `body` finds a Body by its instance, `told` is called with a Body whose Shadows are others now. `free_cores` is a node's room.
    `epoch` is the leader's. `repository` and `models` are the model repository and its folder, `profiles` what was measured.
    """

    body: Callable[[str], BodyPod | None]
    told: Callable[[str, Mapping[str, Pair]], None]
    free_cores: Callable[[str], float]
    claims: Claims
    listener: PlatformListener
    now_s: Callable[[], float]
    epoch: Callable[[], int]
    repository: ModelRepository
    models: Path
    profiles: ProfileFiles


def no_such_body(why: str) -> GnomonError:
    """409: no Shadow can be made for the Body."""
    return GnomonError(
        409, "no_such_body", f"The Body cannot have this Shadow. {why}", "Decide again from the present instances."
    )


def no_capacity(node: str, pair: Pair) -> GnomonError:
    """503: the node's cores are claimed by others."""
    return GnomonError(503, "no_capacity", f"Node {node} has no {pair.shadow_cores} cores for a Shadow.", "Ask for fewer.")
