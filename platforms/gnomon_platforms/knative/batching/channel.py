"""The batch channel to a Revision's pod, through its queue-proxy: as to a function behind a provider, but for where it ends.

    POST http://POD:8012/gnomon/batch    a batch as one, where the pod has a token for it
    … http://POD:8012/PATH               its requests one after the other, as they came, else

queue-proxy counts a batch as one request; it is what keeps a pod until its requests are answered. A pod that is no longer ready
takes nothing more: what is under way is answered first, and what was to be sent waits for another.

A Body says with each answer which Shadows its next batch will be computed with: nobody else tells the gateway.

A slot: the right to have one batch under way in a pod of a Revision. It has the cores that its pod has.

    opened ▶ its process is told its cores ▶ takes batches ▶ the pod has others: told again ▶ retired ▶ gone

A pod whose node is about to give it other cores is not sent its first batch before it has them, or a while has passed. With its
answers a Body says whom it works with: from the next batch on the slot counts with its Shadows.

`Tokens`: the tokens by which pods take batches, keys of the Secret `gnomon-batch-token` of their namespace. A Revision names its
key, so each service can have its own token, which other services' pods do not accept. A token is read when a pod becomes ready,
and cached for half a minute: a burst of new pods reads it once, and a changed token is known soon. A transient error is not
cached: the next pod reads again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from gnomon_core.addresses import http_url
from gnomon_core.clock import Clock
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.interfaces import PlatformListener
from gnomon_core.pairs import Pair, shadows_of
from gnomon_core.wire import Frame
from gnomon_platforms.common import RemoteInstance
from gnomon_platforms.knative.autoscaler.objects import RevisionPod
from gnomon_platforms.knative.batching.revisions import BATCH_SECRET, RevisionFacts
from gnomon_platforms.knative.resources import QUEUE_PORT
from gnomon_platforms.kubernetes.client import Api, Refused, Unreachable
from gnomon_platforms.kubernetes.resources import SECRETS
from gnomon_platforms.provider.channel import Around, ProviderChannel, Route

_LOG = logging.getLogger("gnomon.knative")


class PodChannel(ProviderChannel):
    """See `gnomon_core.interfaces.BatchChannel`. `on_shadows` gets those that its Body names, before its answer is handed on."""

    keeps_host = True
    believes_marks = False

    def __init__(
        self,
        route: Route,
        around: Around,
        token: str,
        on_lost: Callable[[str], None],
        on_shadows: Callable[[Mapping[str, Pair]], None],
    ) -> None:
        super().__init__(route, around, token, on_lost)
        self._on_shadows = on_shadows

    def _answered(self, result: Frame) -> None:
        self._on_shadows(shadows_of(result))


WAITING_S = 10.0
"""For so long a ready pod is sent nothing while its node is about to give it other cores."""
PodName = tuple[str, str]


class PodSlot(RemoteInstance[PodChannel]):
    """An instance: a slot in this pod."""

    def __init__(
        self,
        instance: Instance,
        facts: RevisionFacts,
        pod: RevisionPod,
        listener: PlatformListener,
        ended: Callable[[PodSlot], None],
    ) -> None:
        super().__init__(instance, listener, ended)
        self.facts, self.pod = facts, pod
        self._cores = instance.cores

    def retire(self, reason: str) -> None:
        """Take nothing more, and end when what is under way has been answered."""
        if self.channel is None:
            self.end(reason)
        else:
            self.channel.drain(reason)

    def other_cores(self, pod: RevisionPod) -> bool:
        """True if its pod has other cores than it was seen with last."""
        before, self._cores = self._cores, cores_of(pod, self.facts)
        return before != self._cores

    def resized(self) -> None:
        """The pod's process knows of its cores: batches are sized by them from now on."""
        self.instance = replace(self.instance, cores=self._cores)
        if self.channel is not None and self.instance.state is InstanceState.READY:
            self._listener.instance_ready(self.instance, self.channel)

    def works_with(self, shadows: Mapping[str, Pair]) -> None:
        """Set the Shadows with which the pod's Body will compute the next batch."""
        if not self.gone and list(shadows.items()) != list(self.instance.shadows.items()):
            self.instance = self.instance.working_with(shadows)
            self._listener.pair_changed(self.instance)


def address_of(pod: RevisionPod) -> str:
    """A pod's queue-proxy."""
    return http_url(pod.ip, QUEUE_PORT)


class Waiting:
    """Pods that wait for their cores, each for a while: its node may never come to it. `again` is called when that is over."""

    def __init__(self, again: Callable[[PodName], None]) -> None:
        self._again = again
        self._long_enough: dict[str, bool] = {}
        """By pod."""

    def waits(self, pod: RevisionPod) -> bool:
        """True if a pod that has no slots is to have none yet."""
        if not pod.resizing or pod.ending:
            self._long_enough.pop(pod.uid, None)
            return False
        if pod.uid not in self._long_enough:
            self._long_enough[pod.uid] = False
            asyncio.get_running_loop().call_later(WAITING_S, self._end, pod)
        return not self._long_enough[pod.uid]

    def forget(self, pod: RevisionPod) -> None:
        """Forget a removed pod."""
        self._long_enough.pop(pod.uid, None)

    def _end(self, pod: RevisionPod) -> None:
        if pod.uid in self._long_enough:
            self._long_enough[pod.uid] = True
            self._again((pod.namespace, pod.name))


def due(facts: RevisionFacts | None, pod: RevisionPod) -> int:
    """The number of slots of a pod: 0 unless the pod is ready and its Revision is served by this gateway."""
    return facts.places if facts is not None and pod.ready and not pod.ending and pod.ip else 0


def cores_of(pod: RevisionPod, facts: RevisionFacts) -> int:
    """The whole cores that a pod has now; those that its Revision says where the pod says none, or less than one."""
    return int(pod.effective_cores or pod.cores) or facts.spec.settings.cores


KEPT_S = 30.0
"""How long a token is taken for the one that there is, and how soon a slot without a good one asks for another."""

_Place = tuple[str, str]
"""A namespace, and a key of its Secret."""


class Tokens:
    """The batch tokens of all namespaces, with a cache."""

    def __init__(self, api: Api, clock: Clock) -> None:
        self._api, self._clock = api, clock
        self._known: dict[_Place, tuple[float, str]] = {}
        self._asking: dict[_Place, asyncio.Task[str]] = {}

    async def of(self, namespace: str, key: str) -> str:
        """The token at this key of a namespace's Secret; empty where there is none or it cannot be read, which the log says."""
        place = namespace, key
        known = self._known.get(place)
        if known is not None and self._clock.now_s() - known[0] < KEPT_S:
            return known[1]
        task = self._asking.get(place)
        if task is None:
            task = self._asking[place] = asyncio.get_running_loop().create_task(self._ask(*place))
            task.add_done_callback(lambda _: self._asking.pop(place, None))
        return await asyncio.shield(task)

    async def _ask(self, namespace: str, key: str) -> str:
        path = SECRETS.path(namespace, BATCH_SECRET)
        token, passing = "", False
        try:
            document = await asyncio.to_thread(self._api.call, "GET", path)
            token = base64.b64decode((document.get("data") or {}).get(key) or "").decode().strip()
        except (Refused, Unreachable, binascii.Error, UnicodeDecodeError) as error:
            passing = isinstance(error, Unreachable) or (isinstance(error, Refused) and not error.missing)
            _LOG.warning(
                "%s: the Secret %s cannot be read, so pods get no batches: %s",
                namespace,
                BATCH_SECRET,
                error,
            )
        else:
            if not token:
                _LOG.warning(
                    "%s: the Secret %s has no key %s, so pods get no batches",
                    namespace,
                    BATCH_SECRET,
                    key,
                )
        if not passing:
            now_s = self._clock.now_s()
            # Services come and go: those that nobody has asked for lately are forgotten.
            self._known = {place: one for place, one in self._known.items() if now_s - one[0] < KEPT_S}
            self._known[namespace, key] = now_s, token
        return token
