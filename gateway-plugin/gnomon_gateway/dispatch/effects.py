"""What a dispatcher wants done.

Effects come in the order in which they are to be carried out: batches first, so that instances work while answers are written.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from gnomon_core.errors import GnomonError
from gnomon_gateway.queueing.batch import Batch
from gnomon_gateway.queueing.request import Request


class Send(NamedTuple):
    """Give the batch to its instance."""

    batch: Batch


class Answer(NamedTuple):
    """The request's one answer: an error of ours, or, where `error` is None, member number `member` of its batch's result."""

    request: Request
    error: GnomonError | None
    member: int = 0


class Cancel(NamedTuple):
    """Nobody waits for this batch any more."""

    instance_id: str
    batch_id: int


class Drained(NamedTuple):
    """The instance has nothing in flight and will get nothing more."""

    instance_id: str


Effect: TypeAlias = Send | Answer | Cancel | Drained
Effects: TypeAlias = list[Effect]
