"""Filling a batch from the oldest requests of a lane."""

from __future__ import annotations

from collections.abc import Iterable

from gnomon_core.scheduling import Waiting


def fill(requests: Iterable[Waiting], max_batch: int) -> tuple[Waiting, ...]:
    """The oldest requests that fit into `max_batch` samples together.

    Order is kept: a small request does not overtake a large one. The first always goes, so that a request which became larger
    than the largest batch while it waited (an operator lowered the bound) is not stuck for ever.
    """
    taken: list[Waiting] = []
    samples = 0
    for request in requests:
        samples += request.size
        if taken and samples > max_batch:
            break
        taken.append(request)
        if samples >= max_batch:
            break
    return tuple(taken)
