"""The batch channel to a pod: a batch is a POST to the instance's port; the response body holds the result's frames.

    run ▶ POST /gnomon/batch ─┬─ 200 ▶ frames ▶ done(RESULT), or done(None) where a stream says that it broke off
                              └─ no connection, refused, broken off, silent ▶ done(None), and the channel has ended

An HTTP request cannot be recalled: a cancelled one runs to its end, and its answer is dropped. Only a stream is ended early, at
its next part: its connection is closed, which the pod notices. Until that part the pod computes, and is not free.

The connection is kept for the next batch. If the pod has closed it meanwhile, the batch is sent on a new one, because the pod
has read nothing of it.

A batch that exceeds its requests' deadline does not prove that the instance is broken: the node may be overloaded. From then on
the channel sends a health check every two seconds in parallel: other threads of the pod answer while one computes. If the pod is
frozen or its node has died, there is no answer, and the channel ends. If it answers, the channel waits as long as the sender of
the batch does: the gateway ends an instance after twice its requests' deadline, and after ten seconds at least.

The kubelet probes each pod every two seconds and reports the result in the pod's status. The channel trusts the status as long as
any pod of the node was heard from within half a minute: after a node's failure the status keeps its last value. A tenth of the
pod's own silence is added, because the kubelet alone may fail: so the pods of a node are checked in turn, each within five
minutes. Checking a thousand pods every three seconds took a fifth of a core; on 200 nodes, this checks eleven a second.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gnomon_core.wire import Frame, FrameReader, Kind, WireError, encode
from gnomon_platforms.channel import Batch, ExchangeChannel, Outcome

if TYPE_CHECKING:
    import aiohttp

BATCH_PATH, HEALTH_PATH, RESIZE_PATH = "/gnomon/batch", "/_/health", "/gnomon/resize"
FRAME_TYPE = "application/octet-stream"
CANARY_S = 30.0
"""The longest silence before a health check; each pod has its own value between three quarters of it and all of it."""
OWN_SHARE = 10.0
"""A pod's own silence may be this many times as long as its node's."""
GRACE_S = 2.0
"""The time after a batch's deadline until the first health check, and between health checks."""
ANSWER_S = 5.0
"""The timeout of a health check after a batch's deadline."""
GOLDEN = 0.6180339887
"""The fractional parts of its multiples are spread evenly between 0 and 1 (golden ratio): health checks do not coincide."""
_NUMBERS = itertools.count()
OK, NO_CONTENT = 200, 204
AT_ONCE_BYTES = 1 << 20
RESIZE_TIMEOUT_S = 30.0
"""Seconds that a pod may take to answer a resize: it answers after the batch that it computes."""

_SILENT = "it did not answer in time"

_LOG = logging.getLogger("gnomon.openfaas")


class NodeContact:
    """The time of the last answer of any pod on a node."""

    __slots__ = ("__weakref__", "at_s")

    def __init__(self) -> None:
        self.at_s = float("-inf")


def _body(frame: Frame) -> bytes | io.BytesIO:
    """A frame as a request's body; a large one as a file object: aiohttp warns if it has to write many bytes at once."""
    data = encode(frame)
    return data if len(data) <= AT_ONCE_BYTES else io.BytesIO(data)


class HttpChannel(ExchangeChannel):
    """The batch channel to one pod. See `gnomon_core.interfaces.BatchChannel`.

    `concurrency` is how many batches may be in flight at once: the pod may execute fewer and queue the others.
    `is_healthy` returns whether the pod's status is healthy; without it each `probe` is a health check of the pod.
    `node` is shared with the channels to the other pods of the node.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        address: str,
        token: str,
        timeout_s: float,
        on_lost: Callable[[str], None],
        *,
        is_healthy: Callable[[], bool] | None = None,
        node: NodeContact | None = None,
        concurrency: int = 1,
    ) -> None:
        super().__init__(on_lost, timeout_s, address, concurrency=concurrency)
        self._session, self._address = session, address
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": FRAME_TYPE}
        self._health_checks: dict[int, asyncio.Task[None]] = {}
        """The health checks of batches that exceed their requests' deadline, by the batch's id."""
        self._is_healthy = is_healthy
        self._canary_s = CANARY_S * (0.75 + 0.25 * (next(_NUMBERS) * GOLDEN % 1.0))
        self._node = node or NodeContact()
        self._record_contact()

    def is_known_healthy(self) -> bool:
        """True if no health check is needed: the pod's status is healthy, and the pod or its node was heard from recently."""
        if self.closed or self._is_healthy is None or not self._is_healthy():
            return False
        now_s = self._loop.time()
        return now_s - self._node.at_s + (now_s - self._last_contact_s) / OWN_SHARE < self._canary_s

    async def probe(self, timeout_s: float) -> bool:
        """True if the pod is healthy, by its status in the cluster or by a health check."""
        if self.is_known_healthy():
            return True
        if self.closed or (self._is_healthy is not None and not self._is_healthy()):
            return False
        return await self._health_check(timeout_s) == OK and not self.closed

    async def resize(self, cores: int) -> None:
        """Set the threads of the pod's process, from its next batch on. If that fails, the process keeps its threads."""
        await tell_cores(self._session, self._address, self._headers, cores)

    @property
    def _broken(self) -> type[Exception]:
        import aiohttp  # noqa: PLC0415 - only who has instances elsewhere needs it

        return aiohttp.ClientError

    async def _exchange(self, batch: Batch, frame: Frame) -> Outcome:
        overrun = self._loop.call_later(self._allowed_s(frame) + GRACE_S, self._overran, batch)
        try:
            return await self._post(batch, frame)
        except (OSError, WireError, self._broken) as error:
            unread = self._never_connected(error)
            silent = isinstance(error, TimeoutError) and not unread
            return Outcome(None, _SILENT if silent else f"{type(error).__name__}: {error}", unread=unread)
        finally:
            overrun.cancel()
            checks = self._health_checks.pop(batch.id, None)
            if checks is not None:
                checks.cancel()

    def _overran(self, batch: Batch) -> None:
        self._health_checks[batch.id] = self._loop.create_task(self._check_health(batch))

    async def _check_health(self, batch: Batch) -> None:
        """Send health checks until one has no answer, whatever its status; then end the exchange: the pod is frozen or gone."""
        try:
            while await self._health_check(ANSWER_S):  # noqa: ASYNC110 - no event: polled over the network
                await asyncio.sleep(GRACE_S)
        finally:
            self._abort(batch, _SILENT)

    async def _health_check(self, timeout_s: float) -> int:
        """The status of the pod's answer to a health check; 0 without an answer in time."""
        try:
            async with asyncio.timeout(timeout_s), self._session.get(self._address + HEALTH_PATH) as answer:
                self._record_contact()
                return answer.status
        except (OSError, TimeoutError, self._broken):
            return 0

    def _record_contact(self) -> None:
        self._last_contact_s = self._node.at_s = self._loop.time()

    async def _post(self, batch: Batch, frame: Frame) -> Outcome:
        async with self._session.post(self._address + BATCH_PATH, data=_body(frame), headers=self._headers) as answer:
            if answer.status != OK:
                return Outcome(None, f"it answered {answer.status}: {(await answer.text())[:200]}")
            reader = FrameReader()
            async for data in answer.content.iter_any():
                for part in reader.feed(data):
                    self._record_contact()
                    if batch.take(part):
                        return Outcome(batch.result)
                    if batch.cancelled:
                        # Leaving the `async with` closes the connection of an unfinished answer, which cancels it in the pod.
                        return Outcome(batch.cancelled_result())
        return Outcome(None, "its answer broke off")

    @staticmethod
    def _never_connected(error: BaseException) -> bool:
        import aiohttp  # noqa: PLC0415 - only who has instances elsewhere needs it

        return isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))


async def tell_cores(session: aiohttp.ClientSession, address: str, headers: Mapping[str, str], cores: int) -> None:
    """Set the number of threads of the process in the pod at this address, from its next batch on; a failure is logged."""
    import aiohttp  # noqa: PLC0415 - only who has instances elsewhere needs it

    data = encode(Frame(Kind.RESIZE, head=json.dumps({"cores": cores}).encode()))
    trouble = ""
    try:
        async with (
            asyncio.timeout(RESIZE_TIMEOUT_S),
            session.post(address + RESIZE_PATH, data=data, headers=headers) as answer,
        ):
            if answer.status != NO_CONTENT:
                trouble = f"it answered {answer.status}"
    except (OSError, TimeoutError, aiohttp.ClientError) as error:
        trouble = f"{type(error).__name__}: {error}"
    if trouble:
        _LOG.warning("the pod at %s could not be set to %d cores: %s", address, cores, trouble)
