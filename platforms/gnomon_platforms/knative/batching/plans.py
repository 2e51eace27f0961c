"""The plans of Revisions' buffers, as the autoscaler class has written them into PodAutoscalers, by an informer.

    a PodAutoscaler's status ▶ what it says of the buffer ▶ within what the Revision itself says ▶ how its batches are made

A PodAutoscaler has the name of its Revision. Each is news of its own, so a plan may be known before its Revision is, or be there
still when that has another policy already: `in_force` is asked again whenever either has changed.

Example: `batch` has written batches of 16 within 0.4 s, and `gnomon/max-batch` is 8 by now: batches of 8 within 0.4 s. With
`gnomon/autoscaler: kpa` by now: no plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnomon_core.functions import FunctionKey
from gnomon_core.scaling import SetBufferPlan
from gnomon_platforms.knative.batching.revisions import RevisionFacts
from gnomon_platforms.knative.buffer_status import BufferStatus, buffer_of
from gnomon_platforms.knative.resources import POD_AUTOSCALERS
from gnomon_platforms.kubernetes.api import Api
from gnomon_platforms.kubernetes.cache import Change
from gnomon_platforms.kubernetes.informer import Informer
from gnomon_platforms.kubernetes.watching import Source


def in_force(said: BufferStatus | None, facts: RevisionFacts | None) -> SetBufferPlan | None:
    """The plan that a Revision's batches are made by; None for what its own settings say.

    It is that of the policy which the Revision names, where its class is ours and it asks for batches. Bounds beyond its own are
    cut: one sample where its pods take no batches, and no wait beyond its deadline.
    """
    if said is None or facts is None or not facts.buffered or said.policy != facts.spec.settings.autoscaler:
        return None
    own = facts.spec.settings
    return SetBufferPlan(min(said.plan.max_batch, own.max_batch), min(said.plan.max_wait_s, own.deadline_s))


class BufferPlans:
    """What PodAutoscalers say of buffers. `namespace` None looks at all."""

    def __init__(self, api: Api, namespace: str | None) -> None:
        self._informer: Informer[BufferStatus | None] = Informer(api, Source(POD_AUTOSCALERS, namespace), _kept)

    async def start(self, changed: Callable[[FunctionKey], None]) -> None:
        """See what all of them say, and call `changed`, on the event loop, whenever one says another thing.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        await self._informer.start()

        def told(change: Change[BufferStatus | None]) -> None:
            # Most of what is written there is about pods.
            if change.old != change.new:
                namespace, name = change.name
                changed(FunctionKey(name, namespace))

        self._informer.listen(told)

    async def stop(self) -> None:
        """Look no longer."""
        await self._informer.stop()

    @property
    def silent_s(self) -> float:
        """How long nothing was heard of the API server."""
        return self._informer.silent_s

    def of(self, key: FunctionKey) -> BufferStatus | None:
        """What is said of a Revision's buffer now."""
        return self._informer.get(key.namespace, key.name)


def _kept(document: dict[str, Any]) -> BufferStatus | None:
    return buffer_of(document.get("status") or {})
