"""What nodes' coordinators are asked for, as JSON, and what that takes of a node: from functions, their models and profiles.

    a function ─ repository and profiles, read beside the event loop ▶ `FunctionModel` ▶ a wish

A repository may be far away and a profile is a large file, so whoever wishes for something waits for both first, and claims
nothing before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnomon_core.blocks import Layers
from gnomon_core.functions import FunctionSpec
from gnomon_core.pairs import Pair, predicted_ms
from gnomon_core.profiles import ModelProfile
from gnomon_platforms.common import shadow_bytes
from gnomon_platforms.nodes.home import BodyPod, Home, no_such_body
from gnomon_platforms.nodes.shadows import NodeShadow


@dataclass(frozen=True, slots=True)
class FunctionModel:
    """A function's model, as the repository had it when it was asked."""

    spec: FunctionSpec
    layers: Layers
    profile: ModelProfile | None

    def memory_bytes(self, pair: Pair) -> int:
        """What a Shadow with these blocks takes of its node."""
        return shadow_bytes(self.layers, pair, self.profile, self.spec.settings.weight_mode)


class Wishes:
    """Those of a platform. All of them raise GnomonError 409 `no_such_body` for a Body that can have no Shadow."""

    def __init__(self, home: Home) -> None:
        self._home = home

    async def model(self, spec: FunctionSpec) -> FunctionModel:
        """The function's model."""
        return await asyncio.to_thread(self._model, spec)

    async def files(self, spec: FunctionSpec) -> Mapping[str, str]:
        """Where a pool finds that model's files."""
        return await asyncio.to_thread(self._home.models.files, spec)

    def _model(self, spec: FunctionSpec) -> FunctionModel:
        layers = self._home.models.blocks_of(spec)
        if layers is None:
            raise no_such_body("It serves no model of the repository that was captured with layer blocks.")
        return FunctionModel(spec, layers, self._home.models.profile(spec))

    def whole(self, shadow: NodeShadow, model: FunctionModel, files: Mapping[str, str]) -> dict[str, Any]:
        """A Shadow, of which the node knows nothing yet."""
        body, pair, settings = self._body(shadow), shadow.instance.pair, model.spec.settings
        assert pair is not None
        about = {"pod_uid": body.uid, "function": body.instance.function, "weight_mode": settings.weight_mode}
        max_batch = max(settings.max_batch, len(pair.split))
        return {**about, **files, "max_batch": max_batch, **self.task(model, pair, shadow.instance.memory_bytes)}

    async def again(self, shadow: NodeShadow) -> dict[str, Any]:
        """The same, from what the repository has now."""
        spec = self._body(shadow).spec
        return self.whole(shadow, await self.model(spec), await self.files(spec))

    def _body(self, shadow: NodeShadow) -> BodyPod:
        body = self._home.bodies.of_instance(shadow.instance.partner or "")
        if body is None:
            raise no_such_body("It has gone.")
        return body

    def task(self, model: FunctionModel, pair: Pair, memory_bytes: int) -> dict[str, Any]:
        """What one does for its Body."""
        what = {"cores": pair.shadow_cores, "blocks": list(pair.blocks), "split": list(pair.split), "memory_bytes": memory_bytes}
        return {"epoch": self._home.epoch(), **what, "expected_ms": predicted_ms(model.profile, pair)}
