"""The interface between the API routes and the functions' lifecycle, as one Protocol.

The routes parse and check a request, call the service and write its result as OpenFaaS expects it. The service owns the
functions: store, runtime, instances. Every refusal is a `GnomonError`, which the routes send unchanged.

`status`, `detail`, `list`, `decisions` and `policies` read memory and never block: the OpenFaaS gateway queries the status before
each invocation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gnomon_core.errors import GnomonError, not_found
from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.interfaces import Usage
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import DecisionRecord
from gnomon_gateway.metrics import PairMetrics


@dataclass(frozen=True, slots=True)
class FunctionStatus:
    """A function and its current state.

    `replicas` is the desired number of instances, `available_replicas` the number that can take a request. `usage` is set only if
    it was requested.
    """

    spec: FunctionSpec
    created_at: float
    """Seconds since 1970."""
    replicas: int = 0
    available_replicas: int = 0
    invocation_count: int = 0
    usage: Usage | None = None
    problem: GnomonError | None = None
    """The reason why fewer instances of the current version are ready than desired, if known."""


@dataclass(frozen=True, slots=True)
class FunctionDetail:
    """A function's Bodies and Shadows, with the metrics of its pairs.

    `instances` are all that are not gone, oldest first; `largest` maps each Body to its largest batch, in samples. `scheduler` is
    the scheduling policy in force. `profile` is the profile of the function's model, corrected by served latencies; None without
    a model. `notice` names a feature that the function currently lacks, such as Shadows.
    """

    status: FunctionStatus
    scheduler: str
    instances: tuple[Instance, ...]
    largest: Mapping[str, int]
    pairs: PairMetrics
    profile: ModelProfile | None = None
    notice: str = ""
    engine: str = ""
    """The engine that runs the function's model; "" without a model, or where its platform has one engine."""
    version: int = 0
    """The version of the latest deployment, and of its instances."""
    cannot_start: bool = False
    """True if no instance starts, and a retry is not expected to help."""


@dataclass(frozen=True, slots=True)
class KnownPolicies:
    """The policies that a function may name, each with its description."""

    scaling: Mapping[str, str] = field(default_factory=dict)
    scheduling: Mapping[str, str] = field(default_factory=dict)


class FunctionService(Protocol):
    """The functions of this gateway.

    A command returns once it is on disk; its effects follow in the background. A removed function's name is free at once.
    """

    async def deploy(self, spec: FunctionSpec) -> None:
        """Add a function.

        Raises:
            GnomonError: 409 `function_exists`; 400 for a policy, image, model or secret that does not exist.

        """
        ...

    async def update(self, spec: FunctionSpec) -> None:
        """Replace a function's deployment. Requests in flight are answered; a changed secret reaches the new instances.

        Raises:
            GnomonError: 404 `function_not_found`; 400 as for `deploy`.

        """
        ...

    async def remove(self, key: FunctionKey) -> None:
        """Remove a function.

        Raises:
            GnomonError: 404 `function_not_found`.

        """
        ...

    async def scale(self, key: FunctionKey, replicas: int) -> None:
        """Set the desired number of instances, from 0, until the policy's next decision.

        Raises:
            GnomonError: 404 `function_not_found`; 503 `function_not_served`; 400 for a number that is never possible.

        """
        ...

    def status(self, key: FunctionKey, *, usage: bool = False) -> FunctionStatus | None:
        """The function's current status; None where there is no such function."""
        ...

    def detail(self, key: FunctionKey) -> FunctionDetail | None:
        """The function's Bodies and Shadows; None where there is no such function."""
        ...

    def list(self, namespace: str) -> Sequence[FunctionStatus]:
        """The functions of a namespace, sorted by name."""
        ...

    def decisions(self, key: FunctionKey, limit: int) -> Sequence[DecisionRecord] | None:
        """The latest decisions, newest first, at most `limit`; None where there is no such function."""
        ...

    def policies(self) -> KnownPolicies: ...


def unknown_function(key: FunctionKey) -> GnomonError:
    """404 for a function that is not deployed."""
    return not_found(
        "function_not_found", f"There is no function {str(key)[:200]!r}.", "List them with `gnomon list`, or deploy it first."
    )
