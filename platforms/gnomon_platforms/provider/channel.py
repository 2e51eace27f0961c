"""The batch channel to a function behind a foreign provider.

    requests   one after the other, each to /function/NAME/… as it came; how functions that know nothing of us are reached
    a batch    one POST to /function/NAME/gnomon/batch, to a Body that has the token; where it is refused, requests from then on

Requests end with the batch's deadline. A request that broke off may have run, and is given back as lost with its slot. One
without a connection has not run: the provider is unreachable, and the batch waits. Where a function without a
replica cannot be woken, its requests are answered why.

One HTTP exchange with a function through the provider, and when it is tried again.

    429 with X-OpenFaaS-Internal   the replica has as many as it takes: nothing ran; wait a little, another one may be free
    503 with X-OpenFaaS-Internal   no replica: nothing ran; wake the function and try again
    no connection                  nothing was sent: the provider is away
    anything else                  the function's answer, or what its failing looks like

That header says that an answer is the platform's and not the function's: OpenFaaS's own queue worker goes by it. A provider picks
a replica by chance, so with as many requests under way as all replicas take together, some meet a busy one: with five replicas of
one place each, and four requests under way, the fifth does four times in five. It costs pauses of milliseconds here.

One instance here: a slot, the right to have one batch under way at the provider.

    create ▶ the function has a replica, woken where it had none ▶ ready ▶ batch after batch ▶ destroyed, or the provider was lost

An idle slot costs nothing; only the number of slots is bounded.
"""

from __future__ import annotations

import asyncio
import io
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from gnomon_core.errors import INTERNAL_HEADER, GnomonError
from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.interfaces import PlatformListener
from gnomon_core.wire import (
    Frame,
    FrameReader,
    Kind,
    Member,
    Refusal,
    WireError,
    encode,
    error_member,
    same_for_all,
    stale_result,
)
from gnomon_platforms.channel import Batch, ExchangeChannel, Outcome
from gnomon_platforms.common import RemoteInstance

if TYPE_CHECKING:
    import aiohttp


FIRST_PAUSE_S = 0.01
LONGEST_PAUSES_S: Mapping[int, float] = {HTTPStatus.TOO_MANY_REQUESTS: 0.05, HTTPStatus.SERVICE_UNAVAILABLE: 0.5}
"""Longest back-off in seconds by the status of a refusal. A replica idles meanwhile, hence 20 attempts a second at most."""
_NO_DEFAULTS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


LARGE_BYTES = 2**20
"""Size in bytes from which a body is sent in parts: in one piece it would block the event loop."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to send: the path and query below the function's name, undecoded."""

    method: str
    target: str
    headers: Mapping[str, str] | list[tuple[str, str]]
    body: bytes | memoryview


class Route:
    """The route to one function: `address` is the provider's /function/NAME. `wake` returns when it has a replica."""

    def __init__(
        self, session: aiohttp.ClientSession, address: str, wake: Callable[[], Awaitable[None]], rng: random.Random
    ) -> None:
        self.address = address
        self._session, self._wake, self._rng = session, wake, rng

    @asynccontextmanager
    async def answered(self, ask: Ask) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer of a function that has run, or the last refusal if the caller's timeout comes first.

        The caller bounds the time.
        """
        import yarl  # noqa: PLC0415 - comes with aiohttp, which only who has instances elsewhere needs

        url = yarl.URL(self.address + ask.target, encoded=True)
        pause_s = FIRST_PAUSE_S
        while True:
            async with self._session.request(
                ask.method,
                url,
                data=_payload(ask.body),
                headers=ask.headers,
                allow_redirects=False,
                skip_auto_headers=_NO_DEFAULTS,
            ) as answer:
                longest_s = LONGEST_PAUSES_S.get(answer.status)
                if longest_s is None or INTERNAL_HEADER not in answer.headers:
                    yield answer
                    return
                await answer.read()
            if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
                await self._wake()
            await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.5))
            pause_s = min(longest_s, 2 * pause_s)


def _payload(body: bytes | memoryview) -> bytes | io.BytesIO | None:
    if not body:
        return None
    return io.BytesIO(body) if len(body) >= LARGE_BYTES else bytes(body)


BATCH_PATH = "/gnomon/batch"
GRACE_S = 1.0
NO_BATCHES = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)
CLIENT_LEFT = 499
_NOT_SENT = frozenset({"host", "content-length", "connection", "transfer-encoding"})
_NOT_KEPT = _NOT_SENT - {"host"}
_LOG = logging.getLogger("gnomon.provider")


class _BatchesRefusedError(Exception):
    """The function refuses batches or does not know their route: none of the requests has run."""


@dataclass(frozen=True, slots=True)
class ChannelContext:
    """Dependencies of a platform's channels: `reachable` is whether functions are; `on_unreachable` is called when one was not.

    `timeout_s` bounds batches that have no deadline; `peer` names the other end in messages.
    """

    reachable: Callable[[], bool]
    on_unreachable: Callable[[str], None]
    timeout_s: float
    peer: str = "provider"


class ProviderChannel(ExchangeChannel):
    """Implements `gnomon_core.interfaces.BatchChannel`. With a `token`, batches are sent as such. `on_lost` gets why, once."""

    keeps_host = False
    """Whether requests carry the client's Host header to the other end."""
    believes_marks = True
    """Whether an answer with `X-OpenFaaS-Internal` counts as the platform's own, which stands between us and the function."""

    def __init__(self, route: Route, context: ChannelContext, token: str, on_lost: Callable[[str], None]) -> None:
        super().__init__(on_lost, context.timeout_s, route.address)
        self._route, self._context, self._token = route, context, token
        self._epoch = 0
        self._answers: list[Member] = []
        """The answers to the requests of the batch in flight so far, where each request is sent by itself."""

    @property
    def batches(self) -> bool:
        """True if a batch travels as one."""
        return bool(self._token)

    async def probe(self, timeout_s: float) -> bool:
        """True if the provider answers; asking the function itself would be a call of it."""
        del timeout_s
        return not self.closed and self._context.reachable()

    def _cancel(self, batch: Batch) -> None:
        """Abort the requests that have no answer yet."""
        self._abort(batch)

    def _aborted(self, batch: Batch) -> Outcome:
        lost = self.closed
        return Outcome(None if lost else self._filled(batch, _client_left()), unread=not batch.sent)

    def _failed(self, batch: Batch, trouble: str) -> Outcome:
        return self._broke_off(batch, trouble, unread=False)

    async def _exchange(self, batch: Batch, frame: Frame) -> Outcome:
        import aiohttp  # noqa: PLC0415 - only who has instances elsewhere needs it

        self._answers = []
        try:
            async with asyncio.timeout(self._allowed_s(frame) + GRACE_S) as limit:
                return Outcome(await self._result(batch, frame, limit))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            cause = error.os_error.strerror or error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            trouble = f"the {self._context.peer} cannot be reached: {cause}"
            self._context.on_unreachable(trouble)
            return self._broke_off(batch, trouble, unread=True)
        except TimeoutError:
            return Outcome(self._filled(batch, _timed_out(self._context.peer)))
        except GnomonError as error:  # there is no replica, and none could be woken
            return Outcome(self._filled(batch, error))
        except (OSError, WireError, aiohttp.ClientError) as error:
            return self._broke_off(batch, f"its answer broke off: {type(error).__name__}: {error}", unread=False)

    def _broke_off(self, batch: Batch, trouble: str, *, unread: bool) -> Outcome:
        """The outcome after a failure: answers so far are kept, only the remaining members are lost."""
        if not self._answers:
            return Outcome(None, trouble, unread)
        return Outcome(self._filled(batch, _broken(self._context.peer, trouble)))

    def _filled(self, batch: Batch, error: GnomonError) -> Frame:
        """The result, with this error for each missing member."""
        missing = [error_member(error)] * (batch.members - len(self._answers))
        return Frame(Kind.RESULT, batch.id, batch.epoch, members=[*self._answers, *missing])

    async def _result(self, batch: Batch, frame: Frame, limit: asyncio.Timeout) -> Frame | None:
        if frame.epoch < self._epoch:
            return stale_result(frame, self._epoch)
        self._epoch = frame.epoch
        if self._token and batch.stream is None:
            try:
                return await self._as_batch(batch, frame)
            except _BatchesRefusedError as refused:
                _LOG.warning("%s refuses batches and gets single requests: %s", self._route.address, refused)
                self._token = ""
        for member in frame.members:
            async with self._route.answered(_ask(member, keeps_host=self.keeps_host)) as answer:
                if batch.stream is not None:
                    await self._stream(batch, answer, limit)
                    return batch.result
                self._answers.append(self._member(answer, await answer.read()))
        return Frame(Kind.RESULT, frame.batch_id, frame.epoch, members=self._answers)

    async def _as_batch(self, batch: Batch, frame: Frame) -> Frame | None:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/octet-stream"}
        async with self._route.answered(Ask("POST", BATCH_PATH, headers, encode(frame))) as answer:
            data = await answer.read()
            if answer.status in NO_BATCHES:
                msg = f"{answer.status} {' '.join(data[:200].decode('utf-8', 'replace').split())}"
                raise _BatchesRefusedError(msg)
            if answer.status != HTTPStatus.OK:
                # What a function answers is inside frames: this came from its way, or from the server around it.
                return same_for_all(frame, Refusal(answer.status, 1, _meta(answer), data))
        try:
            parts = list(FrameReader().feed(data))
        except WireError as error:
            raise _BatchesRefusedError(str(error)) from None
        result = _result_of(batch, parts)
        self._answered(result)
        return result

    async def _stream(self, batch: Batch, answer: aiohttp.ClientResponse, limit: asyncio.Timeout) -> None:
        """Forward a streamed answer as it arrives. The timeout was for its beginning only."""
        limit.reschedule(None)
        batch.take(_part(Kind.STREAM_START, batch, self._member(answer, b"")))
        async for data in answer.content.iter_any():
            batch.take(_part(Kind.STREAM_DATA, batch, Member(0, 1, b"", data)))
        batch.take(Frame(Kind.STREAM_END, batch.id, batch.epoch))

    def _member(self, answer: aiohttp.ClientResponse, body: bytes) -> Member:
        """The result member of an answer: the function's own, or an error of the platform at the other end."""
        marked = self.believes_marks and answer.status >= HTTPStatus.BAD_REQUEST and INTERNAL_HEADER in answer.headers
        return (Refusal if marked else Member)(answer.status, 1, _meta(answer), body)

    def _answered(self, result: Frame) -> None:
        """Hook: the other end has answered a batch with this result, which has not been delivered yet."""


def _result_of(batch: Batch, parts: Sequence[Frame]) -> Frame:
    """The answer of a function that takes batches: a result, or the parts of a stream, joined.

    Raises:
        _BatchesRefusedError: it is neither, and nothing has run.
        WireError: it is neither, and something may have.

    """
    if not parts or parts[-1].kind not in (Kind.RESULT, Kind.STREAM_END):
        raise _BatchesRefusedError("its answer is no result of a batch")
    for part in parts:
        batch.take(part)
    if batch.result is None or len(batch.result.members) != batch.members:
        raise WireError("a result that answers no batch")
    return batch.result


def _part(kind: Kind, batch: Batch, member: Member) -> Frame:
    return Frame(kind, batch.id, batch.epoch, members=[member])


def _ask(member: Member, *, keeps_host: bool) -> Ask:
    not_sent = _NOT_KEPT if keeps_host else _NOT_SENT
    method, path, query, *lines = member.meta.decode("latin-1").split("\n")
    headers = [(name, value) for name, colon, value in (line.partition(": ") for line in lines) if colon]
    kept = [(name, value) for name, value in headers if name.lower() not in not_sent]
    return Ask(method, path + (f"?{query}" if query else ""), kept, member.body)


def _meta(answer: aiohttp.ClientResponse) -> bytes:
    lines = [f"{name}: {value}" for name, value in answer.headers.items() if name.lower() not in _NOT_KEPT]
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def _timed_out(peer: str) -> GnomonError:
    return GnomonError(
        504,
        "deadline_exceeded",
        f"The {peer} did not answer within the request's deadline.",
        "Allow it more (gnomon/deadline-ms).",
    )


def _client_left() -> GnomonError:
    return GnomonError(CLIENT_LEFT, "cancelled", "The client has disconnected.")


def _broken(peer: str, trouble: str) -> GnomonError:
    return GnomonError(
        502, f"{peer}_broke_off", f"The request may have run: {trouble}.", "Send it again only if that does no harm."
    )


class Slot(RemoteInstance[ProviderChannel]):
    """An instance of this function."""

    def __init__(self, instance: Instance, spec: FunctionSpec, listener: PlatformListener, ended: Callable[[Slot], None]) -> None:
        super().__init__(instance, listener, ended)
        self.spec = spec

    @property
    def key(self) -> FunctionKey:
        return self.spec.key
