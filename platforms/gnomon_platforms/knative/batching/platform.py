"""Revisions' pods behind the seam `Platform`: an instance is a slot in a ready pod, the right to have one batch under way there.

    pod ready ▶ its slots, each with a channel through its queue-proxy ▶ unready, or ending ▶ answers what it has ▶ gone
    an answer of its Body ▶ whom that works with ▶ `pair_changed`, of each of its slots

Nothing is created or destroyed here: how many pods there are is the autoscaler class's to say, to which the gateway tells what
waits (`gnomon_platforms.knative.autoscaler.metrics`). So this is a platform whose instances outlive us (`gnomon_core.interfaces`)
and that another process leads. A slot that is lost while its pod is ready, because a connection failed or a batch took too
long, is opened again after a second.

How a slot comes to its channel, and its pod's process to its cores.

its Revision's token ▶ POST /gnomon/resize: a thread for each core ▶ the slot takes batches ▶ whom its Body works with
no token, or one that was refused ▶ asked for again ▶ there is another ▶ the slot is opened anew
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from gnomon_core.background import Background
from gnomon_core.clock import Clock, WallClock
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState, Node
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.interfaces import Capabilities, InstanceRequest, PlatformListener, Usage
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.signature import ModelSignature
from gnomon_platforms.common import FOREIGN_KEEP_ALIVE_S, open_session
from gnomon_platforms.knative.autoscaler.objects import RevisionPod, revision_pod
from gnomon_platforms.knative.batching.channel import (
    KEPT_S,
    PodChannel,
    PodName,
    PodSlot,
    Tokens,
    Waiting,
    address_of,
    cores_of,
    due,
)
from gnomon_platforms.knative.batching.revisions import RevisionFacts, RevisionStore
from gnomon_platforms.knative.resources import REVISION_LABEL
from gnomon_platforms.kubernetes.channel import FRAME_TYPE, tell_cores
from gnomon_platforms.kubernetes.client import Api
from gnomon_platforms.kubernetes.informer import Change, Informer, Source
from gnomon_platforms.kubernetes.resources import PODS
from gnomon_platforms.nodes.models import ServedModels
from gnomon_platforms.provider.channel import Around, Route

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
        """The token by which the Revision's pods take batches; empty if they take none, or the token cannot be read."""
        return await self._tokens.of(facts.key.namespace, facts.token_key) if facts.takes_batches else ""

    async def _tell_cores(self, facts: RevisionFacts, pod: RevisionPod, token: str) -> None:
        """Set the threads of a pod's process to the pod's cores, which the process cannot see itself."""
        if token and int(pod.effective_cores or pod.cores):
            headers = {"Authorization": f"Bearer {token}", "Content-Type": FRAME_TYPE}
            await tell_cores(self._session, address_of(pod), headers, cores_of(pod, facts))

    async def _renew(self, slot: PodSlot, channel: PodChannel, token: str) -> None:
        """Reopen a slot that sends no batches once there is another token: the first was unreadable, or refused by the pod.

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
    """Do nothing when a pod is lost: its slot reports the loss."""
    del why


AGAIN_S = 1.0
ANSWERS_S = 1.0
"""How long what was on its way from a pod that has gone is waited for."""
GONE = "its pod has gone"


class RevisionPlatform:
    """See `gnomon_core.interfaces.Platform` and `gnomon_core.interfaces.PersistentPlatform`.

    `models` are those that Revisions may name, None where nobody said so; `chance` draws the pauses between attempts.
    """

    name = "knative"
    capabilities = Capabilities(place=False, size=False, victim=False, resize=False, pair=False)

    def __init__(
        self,
        api: Api,
        store: RevisionStore,
        namespace: str | None,
        *,
        models: ServedModels | None = None,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.listener: PlatformListener | None = None
        self._store, self._models = store, models
        self._clock = clock or WallClock()
        self._chance = chance or random.SystemRandom()
        self._tokens = Tokens(api, self._clock)
        source = Source(PODS, namespace, labels=REVISION_LABEL)
        self._pods: Informer[RevisionPod] = Informer(api, source, revision_pod, index=(REVISION_LABEL,))
        self._slots: dict[str, PodSlot] = {}
        self._of_pod: dict[PodName, list[PodSlot]] = {}
        self._of_function: dict[str, dict[str, PodSlot]] = {}
        self._adopted: set[FunctionKey] = set()
        self._waiting = Waiting(self._look_again)
        self._numbers = itertools.count(1)
        self._background = Background()
        self._begin = self._background.begin
        self._session: aiohttp.ClientSession | None = None
        self._reaching: Reaching | None = None

    async def start(self, listener: PlatformListener) -> None:
        """Start the pod informer.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        self.listener = listener
        self._session = open_session(FOREIGN_KEEP_ALIVE_S, decompress=False)
        self._reaching = Reaching(self._session, self._tokens, self._chance, self._serves, self._works_with)
        await self._pods.start()
        self._pods.listen(self._pod_changed)

    async def stop(self) -> None:
        """End every slot. The pods serve on."""
        self._adopted.clear()
        await self._pods.stop()
        for slot in list(self._slots.values()):
            slot.end("stopped")
        await self._background.end()
        if self._session is not None:
            await self._session.close()

    @property
    def silent_s(self) -> float:
        """Seconds since the API server's last answer or event."""
        return self._pods.silent_s

    def adopt(self, spec: FunctionSpec, version: int) -> tuple[Instance, ...]:
        """Open slots in the Revision's present and future pods."""
        del version
        self._adopted.add(spec.key)
        for pod in self._pods.labelled(REVISION_LABEL, spec.key.name):
            if pod.namespace == spec.key.namespace:
                self._match(pod)
        return self.instances(str(spec.key))

    def scaling_conflict(self, function: str) -> GnomonError | None:
        """None: nobody here counts pods."""

    def check(self, spec: FunctionSpec) -> None:
        """Knative has taken it, so it can be run."""

    def revision(self, spec: FunctionSpec) -> str:
        return spec.image

    async def prepare(self, spec: FunctionSpec) -> None:
        """Do nothing: Knative creates a Revision's pods."""

    def signature(self, spec: FunctionSpec) -> ModelSignature | None:
        """None: a Revision takes HTTP requests as they are."""

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        """The profile of the Revision's model, by which batches are sized, with and without Shadows."""
        return None if self._models is None else self._models.profile(spec)

    def nodes(self) -> tuple[Node, ...]:
        """None that we could place anything on."""
        return ()

    def instances(self, function: str) -> tuple[Instance, ...]:
        return tuple(slot.instance for slot in self._of_function.get(function, {}).values())

    async def create(self, request: InstanceRequest) -> Instance:
        """Refused: the autoscaler class says how many pods there are."""
        raise GnomonError(503, "no_capacity", f"How many pods {request.spec.key} has is its class's to say.", "Wait for it.")

    async def destroy(self, instance_id: str) -> None:
        """End a slot. Its pod stays, and gets another slot if it is ready."""
        slot = self._slots.get(instance_id)
        if slot is not None:
            # As everywhere else it is told from the loop, after this has returned.
            asyncio.get_running_loop().call_soon(slot.end, "let go")

    async def resize(self, instance_id: str, cores: int) -> None:
        """Do nothing: the autoscaler class decides a pod's size."""

    async def create_shadow(self, body_id: str, pair: Pair) -> Instance:
        """Refused: the autoscaler class asks for them."""
        del pair
        raise GnomonError(409, "no_such_body", f"{body_id} is a Revision's pod.", "Its class decides on Shadows.")

    async def promote_shadow(self, shadow_id: str) -> Instance:
        """Refused: none is known here."""
        raise GnomonError(409, "no_such_shadow", f"No Shadow {shadow_id} is known here.", "Decide again.")

    async def change_shadow(self, shadow_id: str, pair: Pair) -> None:
        """None is known here."""

    def usage(self, function: str) -> Usage:
        """Return zeros: the cluster measures the usage of pods."""
        del function
        return Usage(0.0, 0)

    def _pod_changed(self, change: Change[RevisionPod]) -> None:
        if change.new is not None:
            self._match(change.new)
        else:
            if change.old is not None:
                self._waiting.forget(change.old)
            for slot in list(self._of_pod.get(change.name, ())):
                slot.retire(GONE)
                # Its last answer may be on the way. Where its node died there is none, and no connection that breaks off.
                asyncio.get_running_loop().call_later(ANSWERS_S, slot.end, GONE)

    def _match(self, pod: RevisionPod) -> None:
        """Open or retire a pod's slots: it has none unless it is ready, and of a Revision that is served here."""
        key = FunctionKey(pod.revision, pod.namespace)
        facts = self._store.of(key) if key in self._adopted else None
        there = self._of_pod.get((pod.namespace, pod.name), [])
        places = due(facts, pod)
        if places and not there and self._waiting.waits(pod):
            return
        for slot in there[places:]:
            slot.retire("its pod is not ready" if not places else "its pod has fewer slots")
        changed = [slot for slot in there[:places] if slot.other_cores(pod)]
        if facts is not None and changed:
            assert self._reaching is not None
            self._begin(self._reaching.resize(facts, pod, changed))
        for _ in range(places - len(there)):
            assert facts is not None
            self._open(facts, pod)

    def _open(self, facts: RevisionFacts, pod: RevisionPod) -> None:
        function = str(facts.key)
        instance = Instance(
            id=f"{pod.name}-{next(self._numbers)}",
            function=function,
            version=1,
            node=pod.node,
            cores=cores_of(pod, facts),
            memory_bytes=0,
            state=InstanceState.STARTING,
            started_s=self._clock.now_s(),
        )
        assert self.listener is not None
        slot = PodSlot(instance, facts, pod, self.listener, self.ended)
        self._slots[instance.id] = slot
        self._of_pod.setdefault((pod.namespace, pod.name), []).append(slot)
        self._of_function.setdefault(function, {})[instance.id] = slot
        assert self._reaching is not None
        self._begin(self._reaching.reach(slot))

    def _works_with(self, pod: RevisionPod, shadows: Mapping[str, Pair]) -> None:
        """A pod's Body has said whom it works with."""
        for slot in tuple(self._of_pod.get((pod.namespace, pod.name), ())):
            slot.works_with(shadows)

    def _serves(self, pod: RevisionPod) -> bool:
        """True if the cluster says that a pod is ready: its kubelet asks it, and we need not."""
        now = self._pods.get(pod.namespace, pod.name)
        return now is not None and now.ready and not now.ending

    def ended(self, slot: PodSlot) -> None:
        """A slot has ended; its pod gets another where it is due one."""
        name = (slot.pod.namespace, slot.pod.name)
        self._slots.pop(slot.instance.id)
        self._of_function[slot.instance.function].pop(slot.instance.id)
        there = self._of_pod[name]
        there.remove(slot)
        if not there:
            del self._of_pod[name]
        if self._store.of(slot.facts.key) is None:
            self._adopted.discard(slot.facts.key)
        elif self._adopted:
            asyncio.get_running_loop().call_later(AGAIN_S, self._look_again, name)

    def _look_again(self, name: PodName) -> None:
        pod = self._pods.get(*name)
        if pod is not None and self._adopted:
            self._match(pod)
