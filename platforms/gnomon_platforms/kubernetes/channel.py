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
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from gnomon_core.wire import Frame, FrameReader, Kind, WireError, encode
from gnomon_platforms.common import joined

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

Done = Callable[[Frame | None], None]
Stream = Callable[[Frame], None]
Outcome: TypeAlias = tuple[Frame | None, str]
"""The result of a batch; or None, and what came instead of it: nothing where a stream broke off and its pod is well."""
_STREAM = (Kind.STREAM_START, Kind.STREAM_DATA, Kind.STREAM_END)


class Heard:
    """When a node was heard of last, by an answer of any pod on it."""

    __slots__ = ("at_s",)

    def __init__(self) -> None:
        self.at_s = float("-inf")


def _body(frame: Frame) -> bytes | io.BytesIO:
    """A frame as a request's body. A large one is written piece by piece: aiohttp warns of bytes that it would write at once."""
    data = encode(frame)
    return data if len(data) <= AT_ONCE_BYTES else io.BytesIO(data)


@dataclass(slots=True, eq=False)
class _InFlight:
    """A batch under way: its task, whether nobody waits for it any more, and what watches it once it is late."""

    task: asyncio.Task[Outcome]
    cancelled: bool = False
    late: asyncio.TimerHandle | None = None
    asking: asyncio.Task[None] | None = None


class HttpChannel:
    """One pod's channel. See `gnomon_core.interfaces.BatchChannel`.

    `concurrency` is how many batches may be under way at once: the pod may execute fewer, and lets the others wait there.
    `timeout_s` is what batches without a deadline may take. `on_lost` gets why the channel has ended; once. `well` is what the
    cluster says of the pod; without it the pod is asked itself each time. `node` is shared with the channels to pods beside it.
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
        self.unread = False
        self._concurrency = concurrency
        self._session, self._address, self._timeout_s = session, address, timeout_s
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": FRAME_TYPE}
        self._on_lost = on_lost
        self._in_flight: dict[int, _InFlight] = {}
        self._last_id = 0
        self._retiring: str | None = None
        self._closed = False
        self._well = well
        self._canary_s = CANARY_S * (0.75 + 0.25 * (next(_NUMBERS) * GOLDEN % 1.0))
        self._node = node or Heard()
        self._heard()

    @property
    def busy(self) -> bool:
        """Whether a batch is in flight."""
        return bool(self._in_flight)

    def run(self, frame: Frame, done: Done, stream: Stream | None = None) -> None:
        """Send a batch."""
        if len(self._in_flight) >= self._concurrency or frame.batch_id in self._in_flight:
            raise RuntimeError("as many batches are in flight on this channel as it takes")
        if self._closed or self._retiring is not None:
            self.unread = True
            asyncio.get_running_loop().call_soon(done, None)
            return
        loop = asyncio.get_running_loop()
        self._last_id, self.unread = frame.batch_id, True  # until it is being sent
        task = loop.create_task(self._exchange(frame, stream))
        # Not in the task: one that is cancelled before its first step runs nothing of itself.
        task.add_done_callback(partial(self._carried, frame.batch_id, done))
        sent = self._in_flight[frame.batch_id] = _InFlight(task)
        sent.late = loop.call_later((frame.budget_s or self._timeout_s) + GRACE_S, self._overran, sent)

    def cancel(self, batch_id: int) -> None:
        """Nobody waits for this batch any more: a stream is left with its next part, anything else runs to its end."""
        sent = self._in_flight.get(batch_id)
        if sent is not None:
            sent.cancelled = True

    def known_well(self) -> bool:
        """Whether the pod need not be asked: the cluster says that it is well, and it was heard not long ago."""
        if self._closed or self._well is None or not self._well():
            return False
        now_s = asyncio.get_running_loop().time()
        return now_s - self._node.at_s + (now_s - self._heard_s) / OWN_SHARE < self._canary_s

    async def probe(self, timeout_s: float) -> bool:
        """Whether the pod is well, by what it says, or by what the cluster says of it."""
        if self.known_well():
            return True
        if self._closed or (self._well is not None and not self._well()):
            return False
        return await self._asked(timeout_s) == OK and not self._closed

    async def resize(self, cores: int) -> None:
        """Let the pod's process use so many threads from its next batch on. One that cannot be told goes on with those it has."""
        await tell_cores(self._session, self._address, self._headers, cores)

    def retire(self, reason: str) -> None:
        """Take no further batch, and end when those in flight have been answered."""
        self._retiring = reason
        if not self._in_flight:
            self._end(reason)

    def close(self) -> None:
        """End it without a word. A batch in flight is lost."""
        self._closed = True
        for sent in self._in_flight.values():
            sent.task.cancel()

    @property
    def _broken(self) -> type[Exception]:
        import aiohttp  # noqa: PLC0415 - only who has instances elsewhere needs it

        return aiohttp.ClientError

    def _carried(self, batch_id: int, done: Done, task: asyncio.Task[Outcome]) -> None:
        """The exchange is over, however it has ended: whoever waits for the batch hears of it."""
        sent = self._in_flight.pop(batch_id)
        for watch in (sent.late, sent.asking):
            if watch is not None:
                watch.cancel()
        result, trouble = self._outcome(batch_id, task)
        try:
            done(result)
        finally:
            if trouble or (self._retiring is not None and not self._in_flight):
                self._end(trouble or self._retiring or "")

    def _outcome(self, batch_id: int, task: asyncio.Task[Outcome]) -> Outcome:
        if task.cancelled():
            return None, "closed" if self._closed else _SILENT
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, TimeoutError) and not self._never_connected(error):
            return None, _SILENT
        if isinstance(error, (OSError, WireError, self._broken)):
            if batch_id == self._last_id:
                self.unread = self._never_connected(error)
        else:
            # A fault of ours, or of a library's, which nobody has foreseen.
            _LOG.error("a batch to %s could not be carried", self._address, exc_info=error)
        return None, f"{type(error).__name__}: {error}"

    def _overran(self, sent: _InFlight) -> None:
        sent.asking = asyncio.get_running_loop().create_task(self._ask_beside(sent.task))

    async def _ask_beside(self, task: asyncio.Task[Outcome]) -> None:
        """End the exchange as soon as the pod does not answer beside it, whatever it answers: then it is frozen, or has gone."""
        try:
            while await self._asked(ANSWER_S):  # noqa: ASYNC110 - no event says it: it is asked over the network
                await asyncio.sleep(GRACE_S)
        finally:
            task.cancel()

    async def _asked(self, timeout_s: float) -> int:
        """What the pod itself answers to whether it is well; 0 where it does not in time."""
        try:
            async with asyncio.timeout(timeout_s), self._session.get(self._address + HEALTH_PATH) as answer:
                self._heard()
                return answer.status
        except (OSError, TimeoutError, self._broken):
            return 0

    def _heard(self) -> None:
        self._heard_s = self._node.at_s = asyncio.get_running_loop().time()

    async def _exchange(self, frame: Frame, stream: Stream | None) -> Outcome:
        if frame.batch_id == self._last_id:
            self.unread = False
        async with self._session.post(self._address + BATCH_PATH, data=_body(frame), headers=self._headers) as answer:
            if answer.status != OK:
                return None, f"it answered {answer.status}: {(await answer.text())[:200]}"
            reader, parts = FrameReader(), list[Frame]()
            take = parts.append if stream is None else stream
            async for data in answer.content.iter_any():
                for part in reader.feed(data):
                    self._heard()
                    if part.kind is Kind.RESULT:
                        return _answering(frame, part), ""
                    take(_part_of(frame, part))
                    if part.kind is Kind.STREAM_END or self._in_flight[frame.batch_id].cancelled:
                        # An answer that is not over ends with its connection, which is closed where this is left.
                        return (_ended(frame, part) if stream is not None else joined(parts)), ""
        return None, "its answer broke off"

    @staticmethod
    def _never_connected(error: BaseException) -> bool:
        import aiohttp  # noqa: PLC0415 - only who has instances elsewhere needs it

        return isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))

    def _end(self, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self._on_lost(reason)


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


def _answering(batch: Frame, result: Frame) -> Frame:
    if result.batch_id != batch.batch_id or len(result.members) != len(batch.members):
        raise WireError("a result that answers no batch")
    return result


def _part_of(batch: Frame, part: Frame) -> Frame:
    if part.kind not in _STREAM or part.batch_id != batch.batch_id:
        raise WireError(f"a {part.kind.name} frame that answers no batch")
    return part


def _ended(batch: Frame, last: Frame) -> Frame | None:
    """The result of a stream that was told part by part. An end with a member says that the answer broke off."""
    return None if last.kind is Kind.STREAM_END and last.members else Frame(Kind.RESULT, batch.batch_id, batch.epoch)
