"""The kinds of requests that a function takes, made once, so that the hot path compares by identity."""

from __future__ import annotations

import json
from typing import NamedTuple

from gnomon_core.signature import ModelSignature
from gnomon_gateway.queueing.request import LaneKey


class Lanes(NamedTuple):
    """HTTP requests in batches, those whose answer streams, and samples of a model's signature."""

    event: LaneKey
    stream: LaneKey
    tensor: LaneKey

    @property
    def variants(self) -> tuple[str, ...]:
        """The keys of their latencies."""
        return self.tensor.variant, self.event.variant


def lanes(variant: str, signature: ModelSignature | None) -> Lanes:
    """The lanes of a function; `variant` is its key in the latency model."""
    # An image and a tensor take different work: they are predicted apart.
    events = f"{variant}/events" if signature is not None else variant
    inputs = signature.inputs if signature is not None else ()
    head = {"kind": "tensors", "inputs": [spec.to_json() for spec in inputs]}
    return Lanes(
        LaneKey("events", events), LaneKey("stream", events, solo=True), LaneKey("tensors", variant, json.dumps(head).encode())
    )
