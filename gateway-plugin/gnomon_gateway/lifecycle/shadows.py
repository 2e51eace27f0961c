"""The Shadows of functions: made, changed and ended as decided, and what their Bodies' dispatcher is told of them.

    CreateShadow ─▶ platform … pair_changed(Body) ─▶ dispatcher: larger batches from the next one on
    PromoteShadow ─▶ platform … pair_changed(Body alone) ─▶ dispatcher … instance_ready(a Body)
    DestroyShadow ─▶ platform … pair_changed(Body without it) ─▶ dispatcher … instance_gone(Shadow)
    an earlier leader's ─▶ shadow_found … as one that was made here

A Shadow has no batches of its own, so nothing is drained: it is the Body that stops asking. One that ends by itself costs its
Body nothing but speed, and says nothing about whether the function starts. A Body that ends takes its Shadows along.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind
from gnomon_core.functions import FunctionKey
from gnomon_core.pairs import Pair, together
from gnomon_core.scaling import ChangeShadow, CreateShadow, PromoteShadow
from gnomon_core.seams import Platform
from gnomon_gateway.lifecycle.deployed import Deployed

_LOG = logging.getLogger("gnomon.functions")
ShadowAction: TypeAlias = CreateShadow | ChangeShadow | PromoteShadow
"""What is decided of Shadows and has to be begun at once."""
_NO_BODY = "no_such_body"
_NO_SHADOW = "no_such_shadow"


class Shadows:
    """What is done with them. `log` keeps a line for the function's users."""

    def __init__(self, platform: Platform, log: Callable[[FunctionKey, str, str], None]) -> None:
        self._platform = platform
        self._log = log
        self._partners: dict[str, dict[str, Pair]] = {}
        """Each Body with the Shadows that its dispatcher counts on."""

    async def apply(self, deployed: Deployed, action: ShadowAction) -> Instance | None:
        """Begin what was decided; the Shadow that is new by it.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        match action:
            case CreateShadow(body_id, pair):
                return await self.create(deployed, body_id, pair)
            case ChangeShadow(shadow_id, pair):
                await self._platform.change_shadow(shadow_id, pair)
            case PromoteShadow(shadow_id):
                await self.promote(deployed, shadow_id)
        return None

    async def create(self, deployed: Deployed, body_id: str, pair: Pair) -> Instance | None:
        """Begin a Shadow; None where its Body has gone since that was decided.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        if body_id in deployed.draining:
            return None
        try:
            shadow = await self._platform.create_shadow(body_id, pair)
        except GnomonError as refused:
            if refused.code != _NO_BODY:
                raise
            _LOG.info("%s: %s", deployed.name, refused)
            return None
        if all(shadow.id != there.id for there in self._platform.instances(deployed.name)):
            return None  # it has ended while it was being begun
        deployed.shadows[shadow.id] = body_id
        return shadow

    def take_over(self, deployed: Deployed, instances: Sequence[Instance]) -> None:
        """Whatever an earlier leader has said of these: from now on Bodies have the Shadows that the platform knows."""
        for body in (one for one in instances if one.kind is InstanceKind.BODY):
            self.pair_changed(deployed, body)

    def found(self, deployed: Deployed, shadow: Instance) -> bool:
        """An earlier leader has left one, for a Body of this function; False where that is about to end."""
        body_id = shadow.partner or ""
        if body_id in deployed.draining:
            return False
        deployed.shadows[shadow.id] = body_id
        return True

    async def promote(self, deployed: Deployed, shadow_id: str) -> bool:
        """Let one become a Body; False where it has gone since that was decided. Its Body does not take it along any more.

        Raises:
            GnomonError: 503 `no_capacity`.

        """
        if shadow_id not in deployed.shadows or shadow_id in deployed.draining:
            return False
        try:
            await self._platform.promote_shadow(shadow_id)
        except GnomonError as refused:
            if refused.code != _NO_SHADOW:
                raise
            _LOG.info("%s: %s", deployed.name, refused)
            return False
        deployed.shadows.pop(shadow_id, None)
        return True

    async def end(self, deployed: Deployed, shadow_id: str) -> None:
        """End a pair: the Body goes on alone."""
        if shadow_id in deployed.shadows:
            deployed.draining.add(shadow_id)
            await self._platform.destroy(shadow_id)

    async def end_those_of(self, deployed: Deployed, body_id: str) -> None:
        """The Body is about to be stopped, or has gone."""
        self._partners.pop(body_id, None)
        for shadow_id in [shadow for shadow, body in deployed.shadows.items() if body == body_id]:
            await self.end(deployed, shadow_id)

    def pair_changed(self, deployed: Deployed, body: Instance) -> None:
        """From its next batch on the Body works as it says."""
        self._partners[body.id] = body.shadows
        deployed.runtime.pair_changed(body.id, together(tuple(body.shadows.values())))

    def table(self) -> dict[str, list[Pair]]:
        """Each Body that has Shadows, and what they do, for the replicas that make its batches."""
        return {body: list(shadows.values()) for body, shadows in self._partners.items() if shadows}

    def gone(self, deployed: Deployed, shadow_id: str, reason: str) -> None:
        """A Shadow has ended, asked for or not."""
        body_id = deployed.shadows.pop(shadow_id)
        left = self._partners.get(body_id, {})
        if left.pop(shadow_id, None) is not None:
            # The Body has not said yet that it is without it; it will find out with its next batch.
            deployed.runtime.pair_changed(body_id, together(tuple(left.values())))
        if shadow_id in deployed.draining:
            deployed.draining.discard(shadow_id)
            return
        self._log(deployed.spec.key, shadow_id, f"gnomon: Shadow {shadow_id} of {body_id} has ended: {reason}")
        _LOG.warning("%s: Shadow %s of %s has ended: %s", deployed.name, shadow_id, body_id, reason)
