"""The batch channel to a pod: a batch is a POST to the one port that an instance has, and its answer the frames that come back.

    run ▶ POST /gnomon/batch ─┬─ 200 ▶ frames ▶ done(RESULT), or done(None) where a stream says that it broke off
                              └─ no connection, refused, broken off, silent ▶ done(None), and the channel has ended

An HTTP request cannot be taken back: one that is cancelled runs to its end, and its answer is dropped where nobody waits for
it. Only a stream is left, with its next part: its connection is closed, by which the pod knows. Until that part the pod computes,
and is not free.

A connection is kept for the next batch; where the pod closed it meanwhile, the batch is sent by a new one, because nothing of it
was read.

A batch that takes longer than its requests allow says nothing of its instance, which may be one of many on two cores. From then
on the pod is asked beside it, every two seconds, whether it is well: others of its threads answer while one computes. One that is
frozen, or whose node has died, does not, and its channel ends. One that answers is waited for as long as whoever sent the batch
allows: the gateway ends an instance that has taken twice as long as its requests allow, and ten seconds at least.

Whether a pod is well, its kubelet asks it every two seconds, and its status says what was found. That is believed as long as
something was heard of its node within half a minute, from whichever pod: what was said last stays in the status where a node has
died. A tenth of a pod's own silence counts as well, because a kubelet may die alone: so the pods of a node are asked in turn, and
each within five minutes. A thousand pods that were asked every three seconds took a fifth of a core; on 200 nodes, eleven are
asked each second.
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
"""The longest silence after which a pod is asked; for each pod another time between three quarters of it and all of it."""
OWN_SHARE = 10.0
"""A pod's own silence may be so many times as long as its node's."""
GRACE_S = 2.0
"""A batch may take so much longer than its requests allow until its pod is asked, and so long again after each answer."""
ANSWER_S = 5.0
"""How long that answer may take."""
GOLDEN = 0.6180339887
"""Its multiples without their whole parts lie evenly between 0 and 1, however many there are."""
_NUMBERS = itertools.count()
OK, NO_CONTENT = 200, 204
AT_ONCE_BYTES = 1 << 20
RESIZE_TIMEOUT_S = 30.0
"""It waits for the batch that is being computed."""

_SILENT = "it did not answer in time"

_LOG = logging.getLogger("gnomon.openfaas")


class Heard:
    """When a node was heard of last, by an answer of any pod on it."""

    __slots__ = ("at_s",)

    def __init__(self) -> None:
        self.at_s = float("-inf")


def _body(frame: Frame) -> bytes | io.BytesIO:
    """A frame as a request's body. A large one is written piece by piece: aiohttp warns of bytes that it would write at once."""
    data = encode(frame)
    return data if len(data) <= AT_ONCE_BYTES else io.BytesIO(data)


class HttpChannel(ExchangeChannel):
    """One pod's channel. See `gnomon_core.interfaces.BatchChannel`.

    `concurrency` is how many batches may be under way at once: the pod may execute fewer, and lets the others wait there.
    `well` is what the cluster says of the pod; without it the pod is asked itself each time. `node` is shared with the channels
    to the other pods of the node.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        address: str,
        token: str,
        timeout_s: float,
        on_lost: Callable[[str], None],
        *,
        well: Callable[[], bool] | None = None,
        node: Heard | None = None,
        concurrency: int = 1,
    ) -> None:
        super().__init__(on_lost, timeout_s, address, concurrency=concurrency)
        self._session, self._address = session, address
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": FRAME_TYPE}
        self._health_checks: dict[int, asyncio.Task[None]] = {}
        """By batch that takes longer than its requests allow."""
        self._well = well
        self._canary_s = CANARY_S * (0.75 + 0.25 * (next(_NUMBERS) * GOLDEN % 1.0))
        self._node = node or Heard()
        self._heard()

    def known_well(self) -> bool:
        """Whether the pod need not be asked: the cluster says that it is well, and it was heard not long ago."""
        if self.closed or self._well is None or not self._well():
            return False
        now_s = self._loop.time()
        return now_s - self._node.at_s + (now_s - self._heard_s) / OWN_SHARE < self._canary_s

    async def probe(self, timeout_s: float) -> bool:
        """Whether the pod is well, by what it says, or by what the cluster says of it."""
        if self.known_well():
            return True
        if self.closed or (self._well is not None and not self._well()):
            return False
        return await self._asked(timeout_s) == OK and not self.closed

    async def resize(self, cores: int) -> None:
        """Let the pod's process use so many threads from its next batch on. One that cannot be told goes on with those it has."""
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
        """End the exchange as soon as the pod does not answer beside it, whatever it answers: then it is frozen, or has gone."""
        try:
            while await self._asked(ANSWER_S):  # noqa: ASYNC110 - no event says it: it is asked over the network
                await asyncio.sleep(GRACE_S)
        finally:
            self._abort(batch, _SILENT)

    async def _asked(self, timeout_s: float) -> int:
        """What the pod itself answers to whether it is well; 0 where it does not in time."""
        try:
            async with asyncio.timeout(timeout_s), self._session.get(self._address + HEALTH_PATH) as answer:
                self._heard()
                return answer.status
        except (OSError, TimeoutError, self._broken):
            return 0

    def _heard(self) -> None:
        self._heard_s = self._node.at_s = self._loop.time()

    async def _post(self, batch: Batch, frame: Frame) -> Outcome:
        async with self._session.post(self._address + BATCH_PATH, data=_body(frame), headers=self._headers) as answer:
            if answer.status != OK:
                return Outcome(None, f"it answered {answer.status}: {(await answer.text())[:200]}")
            reader = FrameReader()
            async for data in answer.content.iter_any():
                for part in reader.feed(data):
                    self._heard()
                    if batch.take(part):
                        return Outcome(batch.result)
                    if batch.cancelled:
                        # An answer that is not over ends with its connection, which is closed where this is left.
                        return Outcome(batch.left())
        return Outcome(None, "its answer broke off")

    @staticmethod
    def _never_connected(error: BaseException) -> bool:
        import aiohttp  # noqa: PLC0415 - only who has instances elsewhere needs it

        return isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))


async def tell_cores(session: aiohttp.ClientSession, address: str, headers: Mapping[str, str], cores: int) -> None:
    """Let the process of the pod at this address use so many threads from its next batch on, or say in the log why not."""
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
        _LOG.warning("%s was not told to use %d cores: %s", address, cores, trouble)
