"""Quarantine of inputs that failed in a batch and then alone: for some minutes they are executed in batches of their own.

An input is identified by a digest of its lane, method, path, query and body; other headers differ from call to call. Nothing is
refused because of an earlier failure, which may have been a coincidence, such as an instance that was killed twice. An input
leaves the quarantine when it succeeds, and after `KEPT_S`.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from gnomon_gateway.queueing.request import Request

KEPT_S = 300.0
MOST = 1024
"""The most inputs in quarantine; beyond, the oldest is released."""
_REQUEST_LINES = 3


class Quarantine:
    """The quarantined inputs of one function. Costs nothing while there are none."""

    __slots__ = ("_until_s",)

    def __init__(self) -> None:
        self._until_s: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until_s)

    def add(self, request: Request, now_s: float) -> None:
        """The request has failed in a batch of its own."""
        digest = _digest(request)
        self._until_s[digest] = now_s + KEPT_S
        self._until_s.move_to_end(digest)
        if len(self._until_s) > MOST:
            self._until_s.popitem(last=False)

    def release(self, request: Request) -> None:
        """The request has succeeded."""
        if self._until_s:
            self._until_s.pop(_digest(request), None)

    def isolate(self, request: Request, now_s: float) -> None:
        """Give an arriving request a batch of its own if an equal input is in quarantine. The request is not retried then."""
        if not self._until_s or not request.replay_safe or request.lane.solo:
            return
        digest = _digest(request)
        until_s = self._until_s.get(digest)
        if until_s is None:
            return
        if now_s >= until_s:
            del self._until_s[digest]
            return
        request.lane = request.lane._replace(solo=True)
        request.retried = True


def _digest(request: Request) -> bytes:
    lane = request.lane
    known = hashlib.blake2b(f"{lane.kind}\n{lane.variant}\n".encode() + lane.head, digest_size=16)
    known.update(b"\n".join(request.meta.split(b"\n", _REQUEST_LINES)[:_REQUEST_LINES]))
    known.update(request.body)
    return known.digest()
