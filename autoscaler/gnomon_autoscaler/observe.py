"""A function's present state and its history become what a policy sees.

While a new version is rolled out, instances of the old one are being replaced by whoever deployed it: they are not shown, so that
no policy counts them twice and none of them is chosen as a victim.
"""

from __future__ import annotations

from gnomon_core.fleet import Instance
from gnomon_core.scaling import FunctionLoad, History, Observation


def newest(instances: tuple[Instance, ...]) -> tuple[Instance, ...]:
    """The instances of the newest version that is there."""
    if len(instances) <= 1:
        return instances
    version = max((instance.version for instance in instances), default=0)
    return tuple(instance for instance in instances if instance.version == version)


def observe(now_s: float, function: str, load: FunctionLoad, history: History, requested: int | None) -> Observation:
    """One function at one moment."""
    counters = load.counters
    return Observation(
        now_s=now_s,
        function=function,
        settings=load.settings,
        instances=newest(load.instances),
        nodes=load.nodes,
        queued=counters.queued,
        executing=counters.executing,
        oldest_wait_s=counters.oldest_wait_s,
        last_request_s=counters.last_request_s,
        history=history,
        latency_s=load.latency_s,
        requested=requested,
        profile=load.profile,
        latency_spread=load.latency_spread,
        queues=load.queues,
        plan=load.plan,
    )
