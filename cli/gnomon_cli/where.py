"""Where functions run, by what `gnomon serve` was told, and what is shown of those that do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gnomon_cli.commands.serve_options import ServeOptions
from gnomon_cli.platforms import require_kubernetes
from gnomon_core.clock import Clock
from gnomon_core.interfaces import ModelRepository
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.metrics import FunctionReading
from gnomon_gateway.service import FunctionService
from gnomon_profiler.measuring.session import this_machine

if TYPE_CHECKING:
    from gnomon_cli.on_kubernetes import OnKubernetes


def cluster_of(options: ServeOptions, repository: ModelRepository, clock: Clock) -> OnKubernetes | None:
    """The cluster that functions run on, if they run on one."""
    if options.cluster is None:
        return None
    require_kubernetes()
    from gnomon_cli.on_kubernetes import OnKubernetes  # noqa: PLC0415 - the client is an extra of its own

    return OnKubernetes(options, options.cluster, repository, clock)


def orchestration(options: ServeOptions) -> str:
    """What runs the functions, as faas-cli shows it."""
    if options.cluster is not None:
        return "kubernetes"
    return "local" if options.provider is None else "provider"


def place(options: ServeOptions) -> str:
    """Whose speed is learned: corrections of one place mean nothing in another."""
    if options.cluster is not None or options.provider is not None:
        return orchestration(options)
    return "lambda" if options.aws is not None else this_machine().id


async def in_images(reference: str) -> None:
    """A cluster's functions bring their models along, in their images or volumes."""
    del reference


def readings(functions: FunctionService, manager: Manager, decided: Callable[[str], int]) -> Iterator[FunctionReading]:
    """What the metrics tell of each function; `decided` is how often its scaling was."""
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
