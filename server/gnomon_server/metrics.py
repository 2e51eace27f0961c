"""The metrics of each function, joined from the gateway and the autoscaler."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gnomon_gateway.applications.service import Applications
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.service import FunctionService
from gnomon_gateway.metrics import FunctionMetrics, FunctionReading


def readings(functions: FunctionService, manager: Manager, decided: Callable[[str], int]) -> Iterator[FunctionReading]:
    """The values of each function's metrics; `decided` counts its scaling decisions. Members count with their application."""
    for runtime in manager.runtimes():
        status = functions.status(runtime.key) if runtime.key not in manager.members else None
        if status is not None:
            last = functions.decisions(runtime.key, 1)
            yield FunctionReading(
                name=runtime.name,
                settings=status.spec.settings,
                metrics=runtime.metrics,
                replicas=status.replicas,
                ready=status.available_replicas,
                decisions=decided(runtime.name),
                late=runtime.dispatcher.late_answers,
                retried=runtime.dispatcher.retried,
                policy_errors=runtime.dispatcher.policy_errors,
                instances=manager.instances.seen(runtime.name),
                policy=last[0].policy if last else "",
            )


def application_readings(
    applications: Applications, manager: Manager, decided: Callable[[str], int]
) -> Iterator[FunctionReading]:
    """The values of each application's metrics, under the name of its endpoint: those of its members together."""
    for endpoint in applications.endpoints():
        status = applications.status(endpoint.spec.key)
        if status is None:
            continue
        metrics, members = FunctionMetrics(), [member.runtime for member in endpoint.members.values()]
        for part in (endpoint.application.metrics, *(runtime.metrics for runtime in members)):
            metrics.add(part)
        yield FunctionReading(
            name=endpoint.application.name,
            settings=status.spec.settings,
            metrics=metrics,
            replicas=status.replicas,
            ready=status.available_replicas,
            decisions=sum(decided(runtime.name) for runtime in members),
            late=sum(runtime.dispatcher.late_answers for runtime in members),
            retried=sum(runtime.dispatcher.retried for runtime in members),
            policy_errors=sum(runtime.dispatcher.policy_errors for runtime in members),
            instances=[instance for runtime in members for instance in manager.instances.seen(runtime.name)],
        )
