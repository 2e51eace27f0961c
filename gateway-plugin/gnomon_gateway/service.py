"""What the API asks of the gateway: one Protocol between the routes and the functions' lives.

The routes read HTTP, check it, call the service and write its answer as OpenFaaS expects it. The service owns the functions:
store, runtime, instances. Every refusal is a `GnomonError`, which the routes send as it is.

`status`, `detail`, `list`, `decisions` and `policies` answer from memory and never wait: the OpenFaaS gateway asks for a status
before each invocation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.interfaces import Usage
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import DecisionRecord
from gnomon_gateway.functions.metrics import PairMetrics


@dataclass(frozen=True, slots=True)
class FunctionStatus:
    """A function and how it is now.

    `replicas` is the number of instances that are wanted, `available_replicas` those that can take a request.
    `usage` is only there when it was asked for.
    """

    spec: FunctionSpec
    created_at: float
    """Seconds since 1970."""
    replicas: int = 0
    available_replicas: int = 0
    invocation_count: int = 0
    usage: Usage | None = None
    problem: GnomonError | None = None
    """Why fewer instances of the present version are ready than are wanted, where that is known."""


@dataclass(frozen=True, slots=True)
class FunctionDetail:
    """A function's Bodies and Shadows, and what they do together.

    `instances` are all that are not gone, oldest first; `largest` says of each Body how many samples it takes at once.
    `scheduler` is the scheduling policy in force. `profile` is what is known of its model, corrected by what was served; None for
    a function without one. `notice` says what it does without for now, such as Shadows.
    """

    status: FunctionStatus
    scheduler: str
    instances: tuple[Instance, ...]
    largest: Mapping[str, int]
    pairs: PairMetrics
    profile: ModelProfile | None = None
    notice: str = ""
    version: int = 0
    """That of the instances which serve what was deployed last."""
    cannot_start: bool = False
    """Whether no instance starts, and the next attempt is not expected to help."""


@dataclass(frozen=True, slots=True)
class KnownPolicies:
    """The policies that a function may name, each with the sentence that describes it."""

    scaling: Mapping[str, str] = field(default_factory=dict)
    scheduling: Mapping[str, str] = field(default_factory=dict)


class FunctionService(Protocol):
    """The functions of this gateway.

    A command that has returned is on disk; what it causes goes on behind it. A removed function's name is free at once.
    """

    async def deploy(self, spec: FunctionSpec) -> None:
        """Add a function.

        Raises:
            GnomonError: 409 `function_exists`; 400 for a policy, image, model or secret that is not there.

        """
        ...

    async def update(self, spec: FunctionSpec) -> None:
        """Replace a function's deployment. Requests in flight are answered; a changed secret reaches the new instances.

        Raises:
            GnomonError: 404 `function_not_found`; 400 as for `deploy`.

        """
        ...

    async def remove(self, key: FunctionKey) -> None:
        """Take a function away.

        Raises:
            GnomonError: 404 `function_not_found`.

        """
        ...

    async def scale(self, key: FunctionKey, replicas: int) -> None:
        """Ask for a number of instances, from 0, until the policy's next decision.

        Raises:
            GnomonError: 404 `function_not_found`; 503 `function_not_served`; 400 where the number can never be.

        """
        ...

    def status(self, key: FunctionKey, *, usage: bool = False) -> FunctionStatus | None:
        """The function now; None where there is none by that name."""
        ...

    def detail(self, key: FunctionKey) -> FunctionDetail | None:
        """Its Bodies and Shadows; None where there is none by that name."""
        ...

    def list(self, namespace: str) -> Sequence[FunctionStatus]:
        """The functions of a namespace, sorted by name."""
        ...

    def decisions(self, key: FunctionKey, limit: int) -> Sequence[DecisionRecord] | None:
        """The latest decisions, newest first, at most `limit`; None where there is no such function."""
        ...

    def policies(self) -> KnownPolicies: ...
