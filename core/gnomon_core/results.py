"""Results that no function computed: why a member, or every member, of a batch has no other answer.

    error_member(error)            one member's answer, a `Refusal`
    same_for_all(batch, member)    a RESULT that answers each member of a batch alike
    error_result(batch, error)     both: whatever stopped the batch is each member's answer
    stale_result(batch, newest)    the same for a batch of a gateway that no longer owns the function's queue

They are made wherever a batch may end: in an instance, in a function on Lambda, on the way there.
"""

from __future__ import annotations

from gnomon_core.errors import INTERNAL_HEADER, GnomonError
from gnomon_core.wire import Frame, Kind, Member


class Refusal(Member):
    """An answer that the platform gives in the function's place, on the way to it: the gateway marks it as its own errors.

    It does not travel. What is read off the wire is a plain member: no instance is believed to speak for the platform.
    """

    __slots__ = ()


def error_member(error: GnomonError) -> Refusal:
    """An error as a member's answer, with its headers but for the gateway's own, which is added where the answer leaves."""
    lines = [f"{name}: {value}" for name, value in error.headers().items() if name != INTERNAL_HEADER]
    return Refusal(error.status, 1, "\n".join(lines).encode("latin-1"), error.body())


def same_for_all(batch: Frame, member: Member, head: bytes = b"") -> Frame:
    """The result of a batch whose members are all answered like this."""
    return Frame(Kind.RESULT, batch.batch_id, batch.epoch, head=head, members=[member] * len(batch.members))


def error_result(batch: Frame, error: GnomonError, head: bytes = b"") -> Frame:
    """The result of a batch of which every member gets this error."""
    return same_for_all(batch, error_member(error), head)


def stale_result(batch: Frame, newest: int) -> Frame:
    """409 `stale_epoch` for each member: none was run, as the gateway knows by the newest epoch, which the result bears."""
    text = f"This batch is from epoch {batch.epoch}; the function's queue has moved on to {newest}."
    result = error_result(batch, GnomonError(409, "stale_epoch", text, "Try again."))
    result.epoch = newest
    return result
