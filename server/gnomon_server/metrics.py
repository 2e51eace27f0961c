"""The metrics of each function, joined from the gateway and the autoscaler."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.service import FunctionService
from gnomon_gateway.metrics import FunctionReading


def readings(functions: FunctionService, manager: Manager, decided: Callable[[str], int]) -> Iterator[FunctionReading]:
    """The values of each function's metrics; `decided` counts its scaling decisions."""
    for runtime in manager.runtimes():
        status = functions.status(runtime.key)
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
                instances=manager.instances.seen(runtime.name),
                policy=last[0].policy if last else "",
            )
