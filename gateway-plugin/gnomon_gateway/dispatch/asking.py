"""Asking a scheduling policy, and not believing it: policies come from outside too."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gnomon_core.scheduling import FleetView, ScheduleAction
from gnomon_core.seams import LatencyModel, SchedulingPolicy
from gnomon_gateway.dispatch.workers import Worker
from gnomon_gateway.queueing.queue import Lane
from gnomon_gateway.queueing.request import Request

_LOG = logging.getLogger(__name__)


def ask(
    policy: SchedulingPolicy, lane: Lane, fleet: FleetView, latency: LatencyModel, now_s: float
) -> Sequence[ScheduleAction] | None:
    """What the policy wants for this lane; None if it raised."""
    try:
        return policy.next(lane, fleet, latency, now_s)
    except Exception:  # noqa: BLE001 - whatever it is, requests must not wait for its author
        _LOG.exception("scheduling policy %s failed", policy.name)
        return None


def may_take(worker: Worker, lane: Lane, requests: tuple[Request, ...]) -> bool:
    """Whether the instance is idle and these are different waiting requests of the lane that it can take together."""
    if not worker.room:
        return False
    if len(requests) == 1:
        return requests[0] in lane
    limit = 1 if lane.solo else worker.slot.max_batch
    ids = {request.id for request in requests if request in lane}
    return bool(requests) and len(ids) == len(requests) and sum([request.size for request in requests]) <= limit
