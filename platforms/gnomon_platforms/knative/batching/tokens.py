"""The tokens by which pods take batches: keys of the Secret `gnomon-batch-token` of their namespace.

A Revision names its key, so each service can have its own token, which other services' pods do not accept. A token is read when a
pod becomes ready, and cached for half a minute: a burst of new pods reads it once, and a changed token is known soon. A transient
error is not cached: the next pod reads again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging

from gnomon_core.clock import Clock
from gnomon_platforms.knative.batching.revisions import BATCH_SECRET
from gnomon_platforms.kubernetes.client import Api, Refused, Unreachable
from gnomon_platforms.kubernetes.resources import SECRETS

KEPT_S = 30.0
"""How long a token is taken for the one that there is, and how soon a slot without a good one asks for another."""

_LOG = logging.getLogger("gnomon.knative")

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
                "%s: the Secret %s cannot be read, so its pods get requests one by one: %s", namespace, BATCH_SECRET, error
            )
        else:
            if not token:
                _LOG.warning("%s: the Secret %s has no key %s: requests go one by one", namespace, BATCH_SECRET, key)
        if not passing:
            now_s = self._clock.now_s()
            # Services come and go: those that nobody has asked for lately are forgotten.
            self._known = {place: one for place, one in self._known.items() if now_s - one[0] < KEPT_S}
            self._known[namespace, key] = now_s, token
        return token
