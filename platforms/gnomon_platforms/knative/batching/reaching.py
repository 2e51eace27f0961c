"""How a slot comes to its channel, and its pod's process to its cores.

its Revision's token ▶ POST /gnomon/resize: a thread for each core ▶ the slot takes batches ▶ whom its Body works with
no token, or one that was refused ▶ asked for again ▶ there is another ▶ the slot is opened anew
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from gnomon_core.pairs import Pair
from gnomon_platforms.knative.batching.channel import PodChannel
from gnomon_platforms.knative.batching.revisions import RevisionFacts
from gnomon_platforms.knative.batching.slots import PodSlot, address_of, cores_of
from gnomon_platforms.knative.batching.tokens import KEPT_S, Tokens
from gnomon_platforms.knative.scaling.objects import RevisionPod
from gnomon_platforms.kubernetes.channel import FRAME_TYPE, tell_cores
from gnomon_platforms.provider.channel import Around
from gnomon_platforms.provider.exchange import Route

if TYPE_CHECKING:
    import aiohttp


class Reaching:
    """`serves` is whether a pod is ready now; `works_with` is told whom its Body works with, each time that it says so."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        tokens: Tokens,
        chance: random.Random,
        serves: Callable[[RevisionPod], bool],
        works_with: Callable[[RevisionPod, Mapping[str, Pair]], None],
    ) -> None:
        self._session, self._tokens, self._chance = session, tokens, chance
        self._serves, self._works_with = serves, works_with

    async def reach(self, slot: PodSlot) -> None:
        """Give a slot its channel; where its pod takes batches, go on until it is gone, or another token is there for it."""
        pod, facts = slot.pod, slot.facts
        token = await self._token(facts)
        route = Route(self._session, address_of(pod), _there, self._chance)
        around = Around(lambda: self._serves(pod), _untold, facts.spec.settings.deadline_s, who="pod")
        channel = PodChannel(route, around, token, slot.end, lambda shadows: self._works_with(pod, shadows))
        await self._tell_cores(facts, pod, token)
        slot.ready(channel)
        if facts.takes_batches:
            await self._renew(slot, channel, token)

    async def resize(self, facts: RevisionFacts, pod: RevisionPod, slots: Iterable[PodSlot]) -> None:
        """A pod that serves has other cores."""
        await self._tell_cores(facts, pod, await self._token(facts))
        for slot in slots:
            slot.resized()

    async def _token(self, facts: RevisionFacts) -> str:
        """By which its pods take batches; empty where they take none, or it cannot be read."""
        return await self._tokens.of(facts.key.namespace, facts.token_key) if facts.takes_batches else ""

    async def _tell_cores(self, facts: RevisionFacts, pod: RevisionPod, token: str) -> None:
        """Let a pod's process have as many threads as its pod has cores; it cannot see them."""
        if token and int(pod.effective_cores or pod.cores):
            headers = {"Authorization": f"Bearer {token}", "Content-Type": FRAME_TYPE}
            await tell_cores(self._session, address_of(pod), headers, cores_of(pod, facts))

    async def _renew(self, slot: PodSlot, channel: PodChannel, token: str) -> None:
        """Let a slot that sends no batches, for its token could not be read or was refused, be opened anew with another one.

        A pod reads its token when it starts: one that was refused by it is refused for as long as it lives.
        """
        while not slot.gone:
            await asyncio.sleep(KEPT_S)
            if not channel.batches and await self._token(slot.facts) not in ("", token):
                slot.retire("there is another token for its batches")
                return


async def _there() -> None:
    """A pod that is ready need not be woken."""


def _untold(why: str) -> None:
    """Nobody else depends on this pod: that it was lost is told of its slot."""
    del why
