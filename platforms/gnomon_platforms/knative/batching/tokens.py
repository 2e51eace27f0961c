"""The tokens by which pods take batches: each namespace has its own, in its Secret `gnomon-batch-token`.

So a function of one namespace cannot send batches to another's. A token is read when a pod gets ready and kept for half a minute:
a burst of new pods asks once, and a token that was changed is known soon. That nobody told it is not kept: the next pod asks
again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging

from gnomon_core.clock import Clock
from gnomon_platforms.knative.batching.revisions import BATCH_SECRET
from gnomon_platforms.kubernetes.api import Api, Refused, Unreachable
from gnomon_platforms.kubernetes.resources import SECRETS

KEPT_S = 30.0
"""How long a token is taken for the one that there is, and how soon a slot without a good one asks for another."""

_LOG = logging.getLogger("gnomon.knative")


class Tokens:
    """The tokens of all namespaces."""

    def __init__(self, api: Api, clock: Clock) -> None:
        self._api, self._clock = api, clock
        self._known: dict[str, tuple[float, str]] = {}
        self._asking: dict[str, asyncio.Task[str]] = {}

    async def of(self, namespace: str) -> str:
        """A namespace's token; empty where there is none or it cannot be read, which the log says."""
        known = self._known.get(namespace)
        if known is not None and self._clock.now_s() - known[0] < KEPT_S:
            return known[1]
        task = self._asking.get(namespace)
        if task is None:
            task = self._asking[namespace] = asyncio.get_running_loop().create_task(self._ask(namespace))
            task.add_done_callback(lambda _: self._asking.pop(namespace, None))
        return await asyncio.shield(task)

    async def _ask(self, namespace: str) -> str:
        path = SECRETS.path(namespace, BATCH_SECRET)
        token, passing = "", False
        try:
            document = await asyncio.to_thread(self._api.call, "GET", path)
            token = base64.b64decode((document.get("data") or {}).get(BATCH_SECRET) or "").decode().strip()
        except (Refused, Unreachable, binascii.Error, UnicodeDecodeError) as error:
            passing = isinstance(error, Unreachable) or (isinstance(error, Refused) and not error.missing)
            _LOG.warning(
                "%s: the Secret %s cannot be read, so its pods get requests one by one: %s", namespace, BATCH_SECRET, error
            )
        else:
            if not token:
                _LOG.warning("%s: the Secret %s has no key %s: requests go one by one", namespace, BATCH_SECRET, BATCH_SECRET)
        if not passing:
            self._known[namespace] = self._clock.now_s(), token
        return token
