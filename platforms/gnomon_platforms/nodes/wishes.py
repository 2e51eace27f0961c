"""What nodes' coordinators are asked for, as JSON, and what that takes of a node: from functions, their models and profiles."""

from __future__ import annotations

from typing import Any

from gnomon_core.blocks import Layers
from gnomon_core.functions import FunctionSpec
from gnomon_core.pairs import Pair
from gnomon_platforms.local.pairs import predicted_ms, shadow_bytes
from gnomon_platforms.nodes.home import Home, no_such_body
from gnomon_platforms.nodes.shadows import NodeShadow


class Wishes:
    """Those of a platform. All of them raise GnomonError 409 `no_such_body` for a Body that can have no Shadow."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def blocks(self, spec: FunctionSpec) -> Layers:
        """The layer blocks of the function's model."""
        layers = self._home.models.blocks_of(spec)
        if layers is None:
            raise no_such_body("It serves no model of the repository that was captured with layer blocks.")
        return layers

    def memory_bytes(self, spec: FunctionSpec, pair: Pair) -> int:
        """What a Shadow with these blocks takes of its node."""
        return shadow_bytes(self.blocks(spec), pair, self._home.models.profile(spec), spec.settings.weight_mode)

    def whole(self, shadow: NodeShadow) -> dict[str, Any]:
        """A Shadow, of which the node knows nothing yet."""
        body, pair = self._home.bodies.of_instance(shadow.instance.partner or ""), shadow.instance.pair
        if body is None or pair is None:
            raise no_such_body("It has gone.")
        settings = body.spec.settings
        about = {"pod_uid": body.uid, "function": body.instance.function, "weight_mode": settings.weight_mode}
        max_batch = max(settings.max_batch, len(pair.split))
        task = self.task(body.spec, pair, shadow.instance.memory_bytes)
        return about | self._home.models.files(body.spec) | {"max_batch": max_batch} | task

    def task(self, spec: FunctionSpec, pair: Pair, memory_bytes: int) -> dict[str, Any]:
        """What one does for its Body."""
        what = {"cores": pair.shadow_cores, "blocks": list(pair.blocks), "split": list(pair.split), "memory_bytes": memory_bytes}
        return {"epoch": self._home.epoch(), **what, "expected_ms": predicted_ms(self._home.models.profile(spec), pair)}
