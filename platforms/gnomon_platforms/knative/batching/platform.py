"""The pods of Revisions as a `Platform`: an instance is a slot in a ready pod, the right to have one batch in flight there.

    pod ready ▶ its slots, each with a channel through its queue-proxy ▶ unready or terminating ▶ drained ▶ gone
    an answer of the pod's Body ▶ its Shadows ▶ `pair_changed` of each of the pod's slots

This platform creates and destroys no pods: the autoscaler class scales Revisions, by the number of waiting requests that the
gateway exposes (`gnomon_platforms.knative.autoscaler.metrics`). So instances outlive this process, and another process leads
(`gnomon_core.interfaces.PersistentPlatform`). A slot that is lost while its pod is ready, by a failed connection or a batch that
exceeded its time, is reopened after a second.

`SlotConnector` opens the channel of a slot:

    the Revision's token ▶ POST /gnomon/resize: one thread per core ▶ the slot takes batches ▶ the Body's Shadows
    no token, or a refused one ▶ read again periodically ▶ another token ▶ the slot is reopened
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
    CACHE_S,
    PendingResizes,
    PodChannel,
    PodName,
    PodSlot,
    Tokens,
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
from gnomon_platforms.provider.channel import ChannelContext, Route

if TYPE_CHECKING:
    import aiohttp


class SlotConnector:
    """Opens the channels of slots. `serves` returns whether a pod is ready; `works_with` gets the Shadows that a Body reports."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        tokens: Tokens,
        rng: random.Random,
        serves: Callable[[RevisionPod], bool],
        works_with: Callable[[RevisionPod, Mapping[str, Pair]], None],
    ) -> None:
        self._session, self._tokens, self._rng = session, tokens, rng
        self._serves, self._works_with = serves, works_with

    async def connect(self, slot: PodSlot) -> None:
        """Open a slot's channel; if its pod takes batches, return when the slot is gone or was reopened with another token."""
        pod, facts = slot.pod, slot.facts
        token = await self._token(facts)
        route = Route(self._session, address_of(pod), _already_awake, self._rng)
        context = ChannelContext(lambda: self._serves(pod), _ignore_loss, facts.spec.settings.deadline_s, peer="pod")
        channel = PodChannel(route, context, token, slot.end, lambda shadows: self._works_with(pod, shadows))
        # Before the first batch, so that it already runs with one thread for each core of a resized pod.
        await self._tell_cores(facts, pod, token)
        slot.ready(channel)
        if facts.takes_batches:
            await self._renew(slot, channel, token)

    async def resize(self, facts: RevisionFacts, pod: RevisionPod, slots: Iterable[PodSlot]) -> None:
        """Handle a resize of a serving pod."""
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
        """Reopen a slot that may send no batches once there is another token: the first was unreadable, or refused by the pod.

        A pod reads its token at its start, so a refused token stays refused until the pod ends.
        """
        while not slot.gone:
            await asyncio.sleep(CACHE_S)
            if not channel.batches and await self._token(slot.facts) not in ("", token):
                slot.retire("there is another token for its batches")
                return


async def _already_awake() -> None:
    """Do nothing: a ready pod need not be woken."""


def _ignore_loss(why: str) -> None:
    """Do nothing when a pod is lost: its slot reports the loss."""
    del why


REOPEN_S = 1.0
LAST_ANSWER_S = 1.0
"""Seconds that the last answer of a removed pod is awaited."""
GONE = "its pod has gone"


class RevisionPlatform:
    """The `PersistentPlatform` (`gnomon_core.interfaces`) of slots in the pods of Revisions.

    `models` are those that Revisions may name, None if none are configured; `rng` draws the jitter of back-off.
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
        rng: random.Random | None = None,
    ) -> None:
        self.listener: PlatformListener | None = None
        self._store, self._models = store, models
        self._clock = clock or WallClock()
        self._rng = rng or random.SystemRandom()
        self._tokens = Tokens(api, self._clock)
        source = Source(PODS, namespace, labels=REVISION_LABEL)
        self._pods: Informer[RevisionPod] = Informer(api, source, revision_pod, index=(REVISION_LABEL,))
        self._slots: dict[str, PodSlot] = {}
        self._of_pod: dict[PodName, list[PodSlot]] = {}
        self._of_function: dict[str, dict[str, PodSlot]] = {}
        self._adopted: set[FunctionKey] = set()
        self._pending_resizes = PendingResizes(self._match_again)
        self._numbers = itertools.count(1)
        self._background = Background()
        self._begin = self._background.begin
        self._session: aiohttp.ClientSession | None = None
        self._connector: SlotConnector | None = None

    async def start(self, listener: PlatformListener) -> None:
        """Start the pod informer.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        self.listener = listener
        self._session = open_session(FOREIGN_KEEP_ALIVE_S, decompress=False)
        self._connector = SlotConnector(self._session, self._tokens, self._rng, self._serves, self._works_with)
        await self._pods.start()
        self._pods.listen(self._pod_changed)

    async def stop(self) -> None:
        """End every slot. The pods keep running."""
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
        """None: this platform does not scale pods."""

    def check(self, spec: FunctionSpec) -> None:
        """Accept every Revision: Knative has validated it."""

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
        """No nodes: this platform places no pods."""
        return ()

    def instances(self, function: str) -> tuple[Instance, ...]:
        return tuple(slot.instance for slot in self._of_function.get(function, {}).values())

    async def create(self, request: InstanceRequest) -> Instance:
        """Refuse: the autoscaler class decides the number of pods."""
        raise GnomonError(
            503, "no_capacity", f"The gateway cannot create pods of {request.spec.key}.", "Its autoscaler class creates them."
        )

    async def destroy(self, instance_id: str) -> None:
        """End a slot. Its pod stays, and gets another slot if it is ready."""
        slot = self._slots.get(instance_id)
        if slot is not None:
            # As on every platform, the listener is called from the loop, after this has returned.
            asyncio.get_running_loop().call_soon(slot.end, "let go")

    async def resize(self, instance_id: str, cores: int) -> None:
        """Do nothing: the autoscaler class decides a pod's size."""

    async def create_shadow(self, body_id: str, pair: Pair) -> Instance:
        """Refuse: the autoscaler class creates Shadows."""
        del pair
        raise GnomonError(
            409, "no_such_body", f"The gateway cannot create Shadows for {body_id}.", "Its autoscaler class creates them."
        )

    async def promote_shadow(self, shadow_id: str) -> Instance:
        """Refuse: the gateway knows no Shadow of a Revision."""
        raise GnomonError(409, "no_such_shadow", f"There is no Shadow {shadow_id}.", "Decide again.")

    async def change_shadow(self, shadow_id: str, pair: Pair) -> None:
        """Do nothing: this platform knows no Shadow by id."""

    def usage(self, function: str) -> Usage:
        """Return zeros: the cluster measures the usage of pods."""
        del function
        return Usage(0.0, 0)

    def _pod_changed(self, change: Change[RevisionPod]) -> None:
        if change.new is not None:
            self._match(change.new)
        else:
            if change.old is not None:
                self._pending_resizes.forget(change.old)
            for slot in list(self._of_pod.get(change.name, ())):
                slot.retire(GONE)
                # A last answer may still arrive. A dead node sends neither an answer nor a reset, so the wait is bounded.
                asyncio.get_running_loop().call_later(LAST_ANSWER_S, slot.end, GONE)

    def _match(self, pod: RevisionPod) -> None:
        """Open or retire a pod's slots: only a ready pod of a Revision that this gateway serves has any."""
        key = FunctionKey(pod.revision, pod.namespace)
        facts = self._store.of(key) if key in self._adopted else None
        slots = self._of_pod.get((pod.namespace, pod.name), [])
        places = due(facts, pod)
        if places and not slots and self._pending_resizes.is_pending(pod):
            return
        for slot in slots[places:]:
            slot.retire("its pod is not ready" if not places else "its pod has fewer slots")
        changed = [slot for slot in slots[:places] if slot.cores_changed(pod)]
        if facts is not None and changed:
            assert self._connector is not None
            self._begin(self._connector.resize(facts, pod, changed))
        for _ in range(places - len(slots)):
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
        assert self._connector is not None
        self._begin(self._connector.connect(slot))

    def _works_with(self, pod: RevisionPod, shadows: Mapping[str, Pair]) -> None:
        """Set the Shadows that a pod's Body has reported."""
        for slot in tuple(self._of_pod.get((pod.namespace, pod.name), ())):
            slot.works_with(shadows)

    def _serves(self, pod: RevisionPod) -> bool:
        """True if the pod's status is ready. The kubelet probes it, so no health check of ours is needed."""
        now = self._pods.get(pod.namespace, pod.name)
        return now is not None and now.ready and not now.ending

    def ended(self, slot: PodSlot) -> None:
        """Remove an ended slot; reopen it after a pause if its pod should have one."""
        name = (slot.pod.namespace, slot.pod.name)
        self._slots.pop(slot.instance.id)
        self._of_function[slot.instance.function].pop(slot.instance.id)
        slots = self._of_pod[name]
        slots.remove(slot)
        if not slots:
            del self._of_pod[name]
        if self._store.of(slot.facts.key) is None:
            self._adopted.discard(slot.facts.key)
        elif self._adopted:
            asyncio.get_running_loop().call_later(REOPEN_S, self._match_again, name)

    def _match_again(self, name: PodName) -> None:
        pod = self._pods.get(*name)
        if pod is not None and self._adopted:
            self._match(pod)
