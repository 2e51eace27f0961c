"""A streamed answer for somebody who asked for none: its parts joined into one result."""

from __future__ import annotations

from collections.abc import Sequence

from gnomon_core.wire import Frame, Kind, Member


def joined(parts: Sequence[Frame]) -> Frame:
    """The result that these parts are, from the first on: the beginning with all of the body, or the failure that ended it."""
    first, last = parts[0], parts[-1]
    if last.kind is Kind.STREAM_END and last.members:
        answer = last.members[0]
    else:
        start = first.members[0] if first.members else Member(200, 1, b"", b"")
        body = b"".join(bytes(member.body) for part in parts if part.kind is Kind.STREAM_DATA for member in part.members)
        answer = start._replace(body=body)
    return Frame(Kind.RESULT, first.batch_id, first.epoch, members=(answer,))
