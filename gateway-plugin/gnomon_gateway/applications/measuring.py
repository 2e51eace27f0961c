"""Measurement of a variant on its platform: load time, and the latency of each batch size.

    first request ─▶ an instance starts and answers: load_s          then each batch size, some times in a row: its median

The requests pass the member's own queue, as those of clients do, so that what is measured is what queries will get. Their tensors
are zeros: the latency of a dense network does not depend on the values.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from http import HTTPStatus
from statistics import median

from gnomon_core.applications import MeasuredVariant
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance
from gnomon_core.signature import ModelSignature
from gnomon_core.wire import Frame, Member
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.queueing.queue import Request

REPEATS = 5
LIMIT_S = 120.0
"""The longest wait for one answer: a first instance loads libraries and weights."""


async def measure(runtime: FunctionRuntime, signature: ModelSignature, sizes: Sequence[int]) -> MeasuredVariant:
    """Measure a member.

    Raises:
        GnomonError: it cannot start, or does not answer.

    """
    begin_s = time.monotonic()
    await _ask(runtime, signature, 1)
    load_s = time.monotonic() - begin_s
    latency_s = {size: median([await _ask(runtime, signature, size) for _ in range(REPEATS)]) for size in sizes}
    return MeasuredVariant(isotonic_regression(latency_s), load_s)


def isotonic_regression(latency_s: dict[int, float]) -> dict[int, float]:
    """The latencies, with none below that of a smaller batch, which noise can make it."""
    longest_s, found = 0.0, {}
    for size, seconds in sorted(latency_s.items()):
        longest_s = max(longest_s, seconds)
        found[size] = longest_s
    return found


def memory_of(instances: Sequence[Instance]) -> int:
    """Bytes of the largest instance."""
    return max((instance.memory_bytes for instance in instances), default=0)


async def _ask(runtime: FunctionRuntime, signature: ModelSignature, samples: int) -> float:
    """Seconds until a batch of zeros is answered."""
    waiting, begin_s = _Waiting(), time.monotonic()
    body = bytes(samples * sum(spec.sample_bytes for spec in signature.inputs))
    runtime.submit(
        Request(runtime.tensor_lane, begin_s, begin_s + LIMIT_S, size=samples, body=body, responder=waiting, replay_safe=True)
    )
    await waiting.answered
    return time.monotonic() - begin_s


class _Waiting:
    """The responder of one batch."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answer(self, member: Member, head: bytes) -> None:
        del head
        if member.code == HTTPStatus.OK:
            self._end(None)
        else:
            text = bytes(member.body)[:200].decode("utf-8", "replace")
            self._end(GnomonError(502, "measurement_failed", f"The model answered {member.code} to zeros: {text}"))

    def refuse(self, error: GnomonError) -> None:
        self._end(error)

    def stream(self, frame: Frame) -> None:
        """Do nothing: models do not stream."""

    def broken(self) -> None:
        self._end(GnomonError(502, "measurement_failed", "The answer to zeros broke off."))

    def _end(self, error: GnomonError | None) -> None:
        if self.answered.done():
            return
        if error is None:
            self.answered.set_result(None)
        else:
            self.answered.set_exception(error)
