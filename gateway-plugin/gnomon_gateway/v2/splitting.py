"""An infer request of more samples than a batch holds: requests of at most `gnomon/max-batch` samples, whose answers are joined.

    5 samples, max-batch 2 ─▶ 2 │ 2 │ 1 ─▶ one answer of 5 samples, or the first failure of any part

The parts are requests like all others: they are admitted, batched with those of other clients and executed on any instance. The
first failure is the response; the other parts are then withdrawn, because their results would not be used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus

from gnomon_core.errors import GnomonError
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_core.wire import Frame, Member
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.queueing.queue import Request, Responder
from gnomon_gateway.v2.messages import Infer

MOST_SAMPLES, FEW_SAMPLES, MOST_BYTES = 256, 8, 8 << 20
"""Limits of one request that is larger than a batch: this many samples, or as many as fit into this many bytes, but a few in any
case. The limits bound the cost of parsing a request."""

MakeRequest = Callable[[int, bytes | memoryview, Responder], Request]
"""The request with so many samples and this body, answered to this responder."""


def most_samples(signature: ModelSignature, max_batch: int) -> int:
    """The samples that one request may have where a batch has at most `max_batch`."""
    sample_bytes = max(1, sum(spec.sample_bytes for spec in signature.inputs))
    return max(max_batch, min(MOST_SAMPLES, max(FEW_SAMPLES, MOST_BYTES // sample_bytes)))


def submit(
    runtime: FunctionRuntime, signature: ModelSignature, infer: Infer, make: MakeRequest, responder: Responder
) -> list[Request]:
    """Submit an infer request in as many parts as needed; returns the parts. `responder` gets one answer."""
    max_batch = runtime.settings.max_batch
    if infer.samples <= max_batch:
        requests = [make(infer.samples, infer.body, responder)]
    else:
        requests = Split(runtime, signature.outputs, responder).requests_for(infer, signature.inputs, max_batch, make)
    for request in requests:
        runtime.submit(request)
    return requests


class Split:
    """Collects the answers to the parts of one request for its responder."""

    def __init__(self, runtime: FunctionRuntime, outputs: Sequence[TensorSpec], responder: Responder) -> None:
        self._runtime = runtime
        self._outputs = outputs
        self._responder: Responder | None = responder
        self._requests: list[Request] = []
        self._members: dict[int, Member] = {}

    def requests_for(self, infer: Infer, inputs: Sequence[TensorSpec], max_batch: int, make: MakeRequest) -> list[Request]:
        """The parts, in order."""
        bodies = split([spec.sample_bytes for spec in inputs], memoryview(infer.body), infer.samples, max_batch)
        self._requests = [make(samples, body, _Part(self, index)) for index, (samples, body) in enumerate(bodies)]
        return list(self._requests)

    def answered(self, index: int, member: Member) -> None:
        """Take the model's answer to a part. The responder gets the first failure, or all parts joined."""
        if self._responder is None:
            return
        if member.code != HTTPStatus.OK:
            self._end().answer(member, b"")
            return
        self._members[index] = member._replace(body=bytes(member.body))
        if len(self._members) < len(self._requests):
            return
        sizes = [request.size for request in self._requests]
        bodies = [self._members[part].body for part in range(len(sizes))]
        try:
            body = join([spec.sample_bytes for spec in self._outputs], bodies, sizes)
        except ValueError as error:
            self._end().refuse(GnomonError(502, "invalid_result", f"A part of the request was answered by {error}."))
            return
        self._end().answer(Member(HTTPStatus.OK, sum(sizes), member.meta, body), b"")

    def refused(self, error: GnomonError) -> None:
        """Refuse the whole request, because a part was refused."""
        if self._responder is not None:
            self._end().refuse(error)

    def broken(self) -> None:
        if self._responder is not None:
            self._end().broken()

    def _end(self) -> Responder:
        """Withdraw the remaining parts, and return the responder of the whole request."""
        responder, self._responder = self._responder, None
        assert responder is not None
        for request in self._requests:
            if request.responder is not None and request.is_open:
                self._runtime.left(request)
            request.responder = None  # already answered in this turn of the loop: drop the answer that is about to come
        self._members.clear()
        return responder


class _Part:
    """The responder of one part."""

    __slots__ = ("_index", "_whole")

    def __init__(self, whole: Split, index: int) -> None:
        self._whole = whole
        self._index = index

    def answer(self, member: Member, head: bytes) -> None:
        del head
        self._whole.answered(self._index, member)

    def refuse(self, error: GnomonError) -> None:
        self._whole.refused(error)

    def stream(self, frame: Frame) -> None:
        """Do nothing: models do not stream, and the request did not allow it."""

    def broken(self) -> None:
        self._whole.broken()


def split(sample_bytes: Sequence[int], body: memoryview, samples: int, max_batch: int) -> list[tuple[int, bytes | memoryview]]:
    """The parts of a body: how many samples each has, and its tensors' bytes one after the other.

    `body` is the bytes of the tensors one after the other, each of `samples` samples of its `sample_bytes`.
    """
    tensors: list[tuple[int, memoryview]] = []
    offset = 0
    for size in sample_bytes:
        tensors.append((size, body[offset : offset + samples * size]))
        offset += samples * size
    parts: list[tuple[int, bytes | memoryview]] = []
    for first in range(0, samples, max_batch):
        last = min(samples, first + max_batch)
        rows = [data[first * size : last * size] for size, data in tensors]
        parts.append((last - first, rows[0] if len(rows) == 1 else b"".join(rows)))
    return parts


def join(sample_bytes: Sequence[int], bodies: Sequence[bytes | memoryview], samples: Sequence[int]) -> bytes:
    """The inverse of `split`: one body with the tensors of all parts.

    Raises:
        ValueError: a part's body has another length than its samples take.

    """
    columns: list[list[memoryview]] = [[] for _ in sample_bytes]
    for body, count in zip(bodies, samples, strict=True):
        data, offset = memoryview(body), 0
        if len(data) != count * sum(sample_bytes):
            raise ValueError(f"{len(data)} bytes for {count} samples")
        for column, size in zip(columns, sample_bytes, strict=True):
            column.append(data[offset : offset + count * size])
            offset += count * size
    return b"".join([rows for column in columns for rows in column])
