"""The state machine of every batch channel. A transport adds how one batch travels; see docs/decisions/0057.

    CONNECTING ─ the instance answers ─▶ READY ⇄ busy: batches are in flight
        │                                  │
        │                                  ├─ drain ─▶ DRAINING: takes no batch ─ the last one in flight has its end ─▶ CLOSED
        └───── the instance is lost, or the owner closes the channel ────────────────────────────────────────────────▶ CLOSED

Each batch that `run` accepts ends exactly once: with its result, or with None when the instance was lost or the channel closed.
A batch for a closed channel ends with None; one for a channel that drains ends with NOT_TAKEN, because those in flight are not
lost. The owner may be notified of the channel's end before `done` is called: `unread` has the batches that were not received.

An instance that refuses a connection has not received that batch, but may still answer those on its other connections, as an
instance does that is told to end. That batch ends with NOT_TAKEN, and the channel drains for `REFUSED_S` at most.

There are two kinds of transport. One connection carries the frames of every batch (`local`), or each batch is an exchange of its
own, carried by a task (HTTP, a provider, Lambda). Fencing by epoch is the instance's task; only a function that knows nothing of
batches needs its channel to refuse a stale epoch (`provider`).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import TypeAlias

from gnomon_core.wire import NOT_TAKEN, Frame, Kind, Member, WireError

Done: TypeAlias = Callable[[Frame | None], None]
Stream: TypeAlias = Callable[[Frame], None]
REFUSED_S = 5.0
"""How long an instance that takes no connection any more may answer what is in flight."""
_STREAM_KINDS = (Kind.STREAM_START, Kind.STREAM_DATA, Kind.STREAM_END)
_LOG = logging.getLogger("gnomon.channel")


class State(Enum):
    """The state of a channel. A READY channel is busy while a batch is in flight."""

    CONNECTING = auto()
    READY = auto()
    DRAINING = auto()
    CLOSED = auto()


@dataclass(slots=True, eq=False)
class Batch:
    """A batch in flight: its number of members, its callbacks, and the parts of the answer so far.

    The frame that was sent is not kept: it holds the buffers of its requests.
    """

    id: int
    epoch: int
    members: int
    done: Done
    stream: Stream | None
    cancelled: bool = False
    """Whether the batch was cancelled: no client waits for the answer."""
    sent: bool = False
    """Whether the instance may have received a part of the batch."""
    trouble: str = ""
    """The reason why the channel gave the batch up; empty while it has not."""
    result: Frame | None = None
    parts: list[Frame] = field(default_factory=list)

    def take(self, part: Frame) -> bool:
        """Take a frame of the answer. Returns whether it is complete, with its `result`, or None for a stream that broke off.

        Raises:
            WireError: the frame does not answer this batch.

        """
        kind = part.kind
        if kind is Kind.RESULT:
            if part.batch_id != self.id or len(part.members) != self.members:
                raise WireError("a result that answers no batch")
            self.result = part
            return True
        if kind not in _STREAM_KINDS or part.batch_id != self.id:
            raise WireError(f"a {kind.name} frame that answers no batch")
        ended = kind is Kind.STREAM_END
        if self.stream is None:
            self.parts.append(part)
            self.result = joined(self.parts) if ended else None
        else:
            self.stream(part)
            # A STREAM_END with a member means that the answer broke off.
            self.result = self._empty() if ended and not part.members else None
        return ended

    def cancelled_result(self) -> Frame:
        """The result of a stream that is cancelled after its first part."""
        return self._empty() if self.stream is not None else joined(self.parts)

    def _empty(self) -> Frame:
        return Frame(Kind.RESULT, self.id, self.epoch)


class Channel(ABC):
    """A `BatchChannel` (`gnomon_core.interfaces`). `on_lost` gets the reason for its end, once; not if its owner closed it."""

    def __init__(self, on_lost: Callable[[str], None], *, concurrency: int = 1, state: State = State.READY) -> None:
        self.unread: set[int] = set()
        """The ids of the batches without an answer that the instance has certainly not received."""
        self.concurrency = concurrency
        """The most batches that may be in flight at once."""
        self._state = state
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._in_flight: dict[int, Batch] = {}
        self._used_s = self._loop.time()
        self._drain_reason = ""

    @property
    def closed(self) -> bool:
        return self._state is State.CLOSED

    @property
    def busy(self) -> bool:
        """True if a batch is in flight."""
        return bool(self._in_flight)

    @property
    def idle_s(self) -> float:
        """Seconds since a batch was in flight, or since the instance was ready."""
        return 0.0 if self._in_flight else self._loop.time() - self._used_s

    def run(self, frame: Frame, done: Done, stream: Stream | None = None) -> None:
        """Send a batch."""
        if self._state is State.CLOSED:
            self.unread.add(frame.batch_id)
            self._loop.call_soon(done, None)
            return
        if self._state is State.DRAINING:
            self.unread.add(frame.batch_id)  # the channel may end before `done` is called
            self._loop.call_soon(self._refuse, frame.batch_id, done)
            return
        if len(self._in_flight) >= self.concurrency or frame.batch_id in self._in_flight:
            raise RuntimeError("as many batches are in flight on this channel as its instance executes")
        batch = self._in_flight[frame.batch_id] = Batch(frame.batch_id, frame.epoch, len(frame.members), done, stream)
        self._transmit(batch, frame)

    def _refuse(self, batch_id: int, done: Done) -> None:
        """End a batch that was not taken."""
        self.unread.discard(batch_id)
        done(NOT_TAKEN)

    def cancel(self, batch_id: int) -> None:
        """Cancel a batch: no client waits for it. The batch still ends with `done`."""
        batch = self._in_flight.get(batch_id)
        if batch is not None:
            batch.cancelled = True
            self._cancel(batch)

    def drain(self, reason: str) -> None:
        """Take no further batch, and end when those in flight have been answered."""
        if self._state is State.CLOSED:
            return
        self._state = State.DRAINING
        self._drain_reason = self._drain_reason or reason
        if not self._in_flight:
            self._lose(self._drain_reason)

    def close(self) -> None:
        """End the channel without telling its owner. Every batch in flight is lost."""
        self._on_lost = _ignore
        if self._state is not State.CLOSED:
            self._state = State.CLOSED
            self._release()

    def report_to(self, on_lost: Callable[[str], None]) -> None:
        """Set a new owner, which gets the reason when the channel ends."""
        self._on_lost = on_lost

    # What a transport adds

    @abstractmethod
    def _transmit(self, batch: Batch, frame: Frame) -> None:
        """Send the frame. The transport calls `_finish` when the batch has its answer, or none."""

    def _cancel(self, batch: Batch) -> None:  # noqa: B027 - many transports have no way to say it
        """Notify the instance, if the transport can, that a batch was cancelled."""

    @abstractmethod
    def _release(self) -> None:
        """Free the connection. Every batch in flight ends with `done(None)`."""

    # What a transport calls

    def _connected(self) -> None:
        """Handle the instance's first answer."""
        if self._state is State.CONNECTING:
            self._state = State.READY
            self._used_s = self._loop.time()

    def _finish(self, batch: Batch, result: Frame | None, trouble: str = "") -> None:
        """The end of a batch; a second one is ignored. With `trouble`, the instance is lost and the channel ends too."""
        if self._in_flight.pop(batch.id, None) is None:
            return
        self._used_s = self._loop.time()
        try:
            batch.done(result)
        finally:
            drained = self._state is State.DRAINING and not self._in_flight
            if trouble or drained:
                self._lose(trouble or self._drain_reason)

    def _lose(self, reason: str) -> None:
        """End the channel, give back what is in flight, and tell the owner, once."""
        if self._state is State.CLOSED:
            return
        self._state = State.CLOSED
        self._release()
        # Break the reference cycle with the owner, so that an ended instance is freed without the garbage collector.
        on_lost, self._on_lost = self._on_lost, _ignore
        on_lost(reason)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an exchange. With `trouble`, the instance is lost; `unread`: the instance certainly received nothing."""

    result: Frame | None = None
    trouble: str = ""
    unread: bool = False


class ExchangeChannel(Channel):
    """A channel whose batches are exchanges of their own, each carried by a task.

    `timeout_s` bounds batches that have no deadline; `peer` names the other end in the log.
    """

    def __init__(
        self,
        on_lost: Callable[[str], None],
        timeout_s: float,
        peer: str,
        *,
        concurrency: int = 1,
        state: State = State.READY,
    ) -> None:
        super().__init__(on_lost, concurrency=concurrency, state=state)
        self._timeout_s, self._peer = timeout_s, peer
        self._tasks: dict[int, asyncio.Task[Outcome]] = {}

    @abstractmethod
    async def _exchange(self, batch: Batch, frame: Frame) -> Outcome:
        """Send a batch and wait for its answer."""

    def _aborted(self, batch: Batch) -> Outcome:
        """The outcome of a batch whose task was cancelled."""
        return Outcome(None, batch.trouble, unread=not batch.sent)

    def _failed(self, batch: Batch, trouble: str) -> Outcome:
        """The outcome of a batch whose exchange raised an unforeseen exception."""
        del batch
        return Outcome(None, trouble)

    def _allowed_s(self, frame: Frame) -> float:
        """The time until the deadline of a batch."""
        return frame.budget_s or self._timeout_s

    def _abort(self, batch: Batch, trouble: str = "") -> None:
        """Break an exchange off."""
        task = self._tasks.get(batch.id)
        if task is not None:
            batch.trouble = batch.trouble or trouble
            task.cancel()

    def _transmit(self, batch: Batch, frame: Frame) -> None:
        task = self._tasks[batch.id] = self._loop.create_task(self._carry(batch, frame))
        # `done` is not called in the task itself: a task that is cancelled before its first step executes nothing.
        task.add_done_callback(partial(self._carried, batch))

    def _release(self) -> None:
        # The tasks end only after the owner was notified.
        self.unread.update(batch.id for batch in self._in_flight.values() if not batch.sent)
        for task in self._tasks.values():
            task.cancel()

    async def _carry(self, batch: Batch, frame: Frame) -> Outcome:
        batch.sent = True
        return await self._exchange(batch, frame)

    def _carried(self, batch: Batch, task: asyncio.Task[Outcome]) -> None:
        del self._tasks[batch.id]
        if task.cancelled():
            outcome = self._aborted(batch)
        elif (error := task.exception()) is not None:
            _LOG.error("Internal error while sending a batch to %s", self._peer, exc_info=error)
            outcome = self._failed(batch, f"{type(error).__name__}: {error}")
        else:
            outcome = task.result()
        if outcome.unread and outcome.trouble and len(self._in_flight) > 1 and not self.closed:
            self._drain_refusing(batch, outcome.trouble)
            return
        if outcome.unread:
            self.unread.add(batch.id)
        self._finish(batch, outcome.result, outcome.trouble)

    def _drain_refusing(self, batch: Batch, trouble: str) -> None:
        """Put a batch back that found no connection, and let the instance answer the others."""
        if self._state is not State.DRAINING:
            self.drain(trouble)
            self._loop.call_later(REFUSED_S, self._lose, trouble)
        self._finish(batch, NOT_TAKEN)


def joined(parts: Sequence[Frame]) -> Frame:
    """Join a streamed answer for a caller without `stream`: the first part with the whole body, or the failure that ended it."""
    first, last = parts[0], parts[-1]
    if last.kind is Kind.STREAM_END and last.members:
        answer = last.members[0]
    else:
        start = first.members[0] if first.members else Member(200, 1, b"", b"")
        body = b"".join(bytes(member.body) for part in parts if part.kind is Kind.STREAM_DATA for member in part.members)
        answer = start._replace(body=body)
    return Frame(Kind.RESULT, first.batch_id, first.epoch, members=(answer,))


def _ignore(_: object) -> None:
    """Replacement callback: the owner is notified of the end once only."""
