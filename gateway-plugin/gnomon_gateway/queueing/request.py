"""A request and its batch: received → admitted → dispatched → answered.

`ANSWERED` is the only terminal state, reached once by the first of these events: the function's answer, a refusal, the deadline,
or the client's disconnect. The code that makes the transition sends the answer, unless the client has disconnected; later results
are counted and dropped.

This module and those behind it are independent of HTTP. The batch channel carries `meta` and `body`, and a `Responder` takes the
answer. The simulator's requests have none of them.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gnomon_core.errors import GnomonError
from gnomon_core.pairs import Pair
from gnomon_core.wire import Frame, Member

RECEIVED, ADMITTED, DISPATCHED, ANSWERED = range(4)
"""The states. Plain integers, because each request crosses all of them on the hot path."""


class LaneKey(NamedTuple):
    """The properties that requests must share to be in one batch.

    `variant` is the key of the latency model, `head` the batch frame's head (the tensors' names, types and shapes). `solo` lanes
    send batches of one request: an answer that streams, or one that was in a batch whose instance died.
    """

    kind: str
    variant: str
    head: bytes = b""
    solo: bool = False


class Responder(Protocol):
    """The receiver of a response. Exactly one of `answer`, `refuse`, or `stream` … up to STREAM_END or `broken` is called.

    Called on the event loop; returns at once and raises nothing.
    """

    def answer(self, member: Member, head: bytes) -> None:
        """The function's answer: its status, header lines and body; `head` is the RESULT frame's."""
        ...

    def refuse(self, error: GnomonError) -> None:
        """Answer with an error of the platform."""
        ...

    def stream(self, frame: Frame) -> None:
        """Send one frame of a streamed response."""
        ...

    def broken(self) -> None:
        """The stream ended in the middle: the instance is gone."""
        ...


class Client(Protocol):
    """The client of a request, on a connection."""

    def has_left(self) -> bool:
        """Whether the client has closed the connection, even if the event loop has not reported it yet."""
        ...

    def lost(self) -> None:
        """Report the closed connection now, which withdraws the request."""
        ...


class Request:
    """A request and its state. Times are on the gateway's clock.

    `size` is its number of samples, `body_bytes` its share of the queue's bytes. `replay_safe` says that the request is
    idempotent (a model's inference; a handler with `gnomon/retry`), so that it may be retried once if its instance dies or its
    batch fails; `retried` says that it was. The code that ends a request clears `responder`: the two refer to each other, and
    only the garbage collector would free such a cycle.
    """

    __slots__ = (
        "arrived_s",
        "batch",
        "body",
        "body_bytes",
        "client",
        "deadline_s",
        "id",
        "lane",
        "meta",
        "replay_safe",
        "responder",
        "retried",
        "size",
        "state",
        "streaming",
    )

    def __init__(
        self,
        lane: LaneKey,
        arrived_s: float,
        deadline_s: float,
        *,
        size: int = 1,
        meta: bytes = b"",
        body: bytes | memoryview = b"",
        responder: Responder | None = None,
        client: Client | None = None,
        replay_safe: bool = False,
        streaming: bool = False,
    ) -> None:
        self.id = 0
        self.lane = lane
        self.arrived_s = arrived_s
        self.deadline_s = deadline_s
        self.size = size
        self.meta = meta
        self.body = body
        self.body_bytes = len(meta) + len(body)
        self.responder = responder
        self.client = client
        self.replay_safe = replay_safe
        self.streaming = streaming
        self.state = RECEIVED
        self.batch: Batch | None = None
        self.retried = False

    @property
    def is_open(self) -> bool:
        """Whether the request has no answer yet."""
        return self.state != ANSWERED


class Batch:
    """Requests that execute together on one instance.

    `live` counts the members that have no answer yet; `deadline_s` is the earliest of their deadlines; `expected_end_s` is the
    predicted time of the result; `pair` and `instance_size` are the instance's Shadows and size when the batch was sent. A batch
    that has ended drops its requests: they refer to each other, and only the garbage collector would free such a cycle.
    """

    __slots__ = (
        "deadline_s", "expected_end_s", "id", "instance_id", "instance_size", "lane", "live", "pair", "requests", "sent_s",
        "size", "streamed",
    )  # fmt: skip

    instance_size: int
    pair: Pair | None

    def __init__(self, batch_id: int, instance_id: str, lane: LaneKey, requests: tuple[Request, ...], sent_s: float) -> None:
        self.id = batch_id
        self.instance_id = instance_id
        self.lane = lane
        self.requests = requests
        self.sent_s = sent_s
        self.live = len(requests)
        if self.live == 1:
            self.size, self.deadline_s = requests[0].size, requests[0].deadline_s
        else:
            self.size = sum([request.size for request in requests])
            self.deadline_s = min([request.deadline_s for request in requests])
        self.streamed = False
        self.expected_end_s = sent_s

    def end(self) -> None:
        """The batch has its result, or its instance has ended: release the requests."""
        self.requests = ()
