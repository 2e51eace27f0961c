"""The batch channel to a Revision's pod, through its queue-proxy. The protocol is that of a function behind a provider.

    POST http://POD:8012/gnomon/batch    a whole batch, if the pod has a batch token
    … http://POD:8012/PATH               otherwise: the batch's requests one after the other, unchanged

queue-proxy counts a batch as one request, and keeps a terminating pod until its requests are answered. A pod that is no longer
ready drains: batches in flight are answered, queued ones go to another pod.

A Body reports with each answer the Shadows of its next batch. The gateway has no other source for that.

A slot (`PodSlot`) is the right to have one batch in flight in a pod of a Revision. It has the cores of its pod.

    opened ▶ the pod's process gets its number of threads ▶ serves batches ▶ a resized pod: new number of threads ▶ drained ▶ gone

A pod with a resize in progress gets its first batch after the resize, or after a timeout.

`Tokens` caches batch tokens: keys of the Secret `gnomon-batch-token` of a namespace. A Revision names its key, so each service
can have its own token, which other services' pods refuse. A token is read when a pod becomes ready and cached for half a minute:
a burst of new pods reads it once, and a changed token is noticed soon. A transient error is not cached: the next pod reads again.
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
from gnomon_platforms.provider.channel import ChannelContext, ProviderChannel, Route

_LOG = logging.getLogger("gnomon.knative")


class PodChannel(ProviderChannel):
    """The `BatchChannel` to a Revision's pod. `on_shadows` gets the Shadows of an answer before its delivery."""

    keeps_host = True
    believes_marks = False

    def __init__(
        self,
        route: Route,
        context: ChannelContext,
        token: str,
        on_lost: Callable[[str], None],
        on_shadows: Callable[[Mapping[str, Pair]], None],
    ) -> None:
        super().__init__(route, context, token, on_lost)
        self._on_shadows = on_shadows

    def _answered(self, result: Frame) -> None:
        self._on_shadows(shadows_of(result))


MAX_RESIZE_WAIT_S = 10.0
"""The longest time for which a ready pod gets no batch because a resize is in progress."""
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
        """Drain: take no new batch, and end when the batches in flight are answered."""
        if self.channel is None:
            self.end(reason)
        else:
            self.channel.drain(reason)

    def cores_changed(self, pod: RevisionPod) -> bool:
        """True if the pod's cores differ from those at the last call."""
        before, self._cores = self._cores, cores_of(pod, self.facts)
        return before != self._cores

    def resized(self) -> None:
        """Record that the pod's process uses its new cores: batches are sized by them from now on."""
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


class PendingResizes:
    """Pods that wait for a resize, with a timeout: the node may never execute it. `expired` is called after the timeout."""

    def __init__(self, expired: Callable[[PodName], None]) -> None:
        self._expired = expired
        self._timed_out: dict[str, bool] = {}
        """Whether the timeout of each pod has passed, by the pod's uid."""

    def is_pending(self, pod: RevisionPod) -> bool:
        """True if a pod without slots should get none yet."""
        if not pod.resizing or pod.ending:
            self._timed_out.pop(pod.uid, None)
            return False
        if pod.uid not in self._timed_out:
            self._timed_out[pod.uid] = False
            asyncio.get_running_loop().call_later(MAX_RESIZE_WAIT_S, self._end, pod)
        return not self._timed_out[pod.uid]

    def forget(self, pod: RevisionPod) -> None:
        """Forget a removed pod."""
        self._timed_out.pop(pod.uid, None)

    def _end(self, pod: RevisionPod) -> None:
        if pod.uid in self._timed_out:
            self._timed_out[pod.uid] = True
            self._expired((pod.namespace, pod.name))


def due(facts: RevisionFacts | None, pod: RevisionPod) -> int:
    """The number of slots of a pod: 0 unless the pod is ready and its Revision is served by this gateway."""
    return facts.places if facts is not None and pod.ready and not pod.ending and pod.ip else 0


def cores_of(pod: RevisionPod, facts: RevisionFacts) -> int:
    """The pod's present whole cores; those of its Revision's settings if the pod reports none, or less than one."""
    return int(pod.effective_cores or pod.cores) or facts.spec.settings.cores


CACHE_S = 30.0
"""Lifetime of a cached token, and the period in which a slot without a valid token reads it again."""

_SecretKey = tuple[str, str]
"""A namespace, and a key of its Secret."""


class Tokens:
    """The batch tokens of all namespaces, with a cache."""

    def __init__(self, api: Api, clock: Clock) -> None:
        self._api, self._clock = api, clock
        self._cache: dict[_SecretKey, tuple[float, str]] = {}
        self._reads: dict[_SecretKey, asyncio.Task[str]] = {}

    async def of(self, namespace: str, key: str) -> str:
        """The token at this key of a namespace's Secret; empty if it is missing or unreadable, which is logged."""
        secret_key = namespace, key
        cached = self._cache.get(secret_key)
        if cached is not None and self._clock.now_s() - cached[0] < CACHE_S:
            return cached[1]
        task = self._reads.get(secret_key)
        if task is None:
            task = self._reads[secret_key] = asyncio.get_running_loop().create_task(self._read(*secret_key))
            task.add_done_callback(lambda _: self._reads.pop(secret_key, None))
        return await asyncio.shield(task)

    async def _read(self, namespace: str, key: str) -> str:
        path = SECRETS.path(namespace, BATCH_SECRET)
        token, transient = "", False
        try:
            document = await asyncio.to_thread(self._api.call, "GET", path)
            token = base64.b64decode((document.get("data") or {}).get(key) or "").decode().strip()
        except (Refused, Unreachable, binascii.Error, UnicodeDecodeError) as error:
            transient = isinstance(error, Unreachable) or (isinstance(error, Refused) and not error.missing)
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
        if not transient:
            now_s = self._clock.now_s()
            # Drop expired entries: keys of removed services would accumulate otherwise.
            self._cache = {secret_key: entry for secret_key, entry in self._cache.items() if now_s - entry[0] < CACHE_S}
            self._cache[namespace, key] = now_s, token
        return token
