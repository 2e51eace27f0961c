"""Requests that left the queue together."""

from __future__ import annotations

from gnomon_core.pairs import Pair
from gnomon_gateway.queueing.request import LaneKey, Request


class Batch:
    """Requests that execute together on one instance.

    `live` counts the members that still wait for their answer; `deadline_s` is the earliest of their deadlines;
    `expected_end_s` is when its result is predicted to come; `pair` is what the instance did with its Shadow when the batch was
    sent, and `instance_size` its size then. A batch that has ended lets go of its requests, which know it: what knows each other
    is not freed before the garbage collector comes.
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
        """Its result has come, or never will."""
        self.requests = ()
