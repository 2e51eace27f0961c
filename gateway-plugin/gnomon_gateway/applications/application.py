"""An application while it serves: its members on the request path, and the choice among them.

    request ─▶ read_constraints ─▶ Application.choose ─▶ Chosen: the member's FunctionRuntime, and header lines of the answer
                                        │ VariantSelector
    a member's instance is ready, ends or drains ─▶ Member ─▶ selector.instance_loaded, instance_unloaded

The choice waits for nothing and reads no store. Of the members that it compares it reads how many requests wait or execute there.
A member that has no instance yet is chosen where none with an instance satisfies the query: its runtime asks for one as soon as
the request waits there, as that of every function does.

A query with an accuracy floor may be answered by a less accurate variant than wished, where no other one is in time. Its demand
stays what it wishes.

A query that no variant satisfies is refused, with the nearest variant named, unless the client accepts that one by
`nearest: serve`. The application has its own counters for what its members do not see: refusals, and which variants answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from gnomon_core.errors import GnomonError, conflict
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import VariantSelector
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature
from gnomon_core.variants import Choice, Query, Variant, VariantState
from gnomon_gateway.applications.catalogue import decided_together
from gnomon_gateway.applications.queries import DEGRADED_HEADER, NEAREST_HEADER, SERVE, VARIANT_HEADER, Constraints
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.metrics import FunctionMetrics

STARTING_RETRY_S = 1.0
"""`Retry-After` of an application whose variants are being measured."""

MakeSelector = Callable[[Iterable[Variant]], VariantSelector]


@dataclass(frozen=True, slots=True)
class Member:
    """A variant and the member function that runs it."""

    variant: Variant
    runtime: FunctionRuntime


@dataclass(frozen=True, slots=True)
class Chosen:
    """The member that answers a request, and the header lines that say so in the answer."""

    member: Member
    choice: Choice

    @property
    def lines(self) -> bytes:
        name = self.choice.variant.id.encode("latin-1", "replace")
        lines = VARIANT_HEADER + b": " + name + b"\r\n"
        if self.choice.degraded:
            return lines + DEGRADED_HEADER + f": {self.choice.variant.accuracy:.4g}\r\n".encode()
        return lines if self.choice.satisfies else lines + NEAREST_HEADER + b": " + name + b"\r\n"


class Application:
    """The endpoint of an application. `signature` is that of its models; None where their tensors differ, or without a model.

    `metrics` counts what members do not: refused queries. `answered_by` counts the queries by the variant that was chosen,
    `degraded_by` those of them that wished more accuracy, `demands` their samples by what they ask for.
    """

    def __init__(self, key: FunctionKey, settings: Settings, make_selector: MakeSelector) -> None:
        self.key = key
        self.name = str(key)
        self.settings = settings
        self.signature: ModelSignature | None = None
        self.metrics = FunctionMetrics()
        self.answered_by: dict[str, int] = {}
        self.degraded_by: dict[str, int] = {}
        self.demands: dict[Query, int] = {}
        self.measuring = False
        """True if variants of registered models are not measured yet."""
        self._make_selector = make_selector
        self._selector: VariantSelector = make_selector(())
        self._members: Mapping[str, Member] = {}
        self._reported: dict[str, tuple[VariantState, float]] = {}
        """The state of each variant's instances, and the share of their saturation rate that they serve."""

    @property
    def members(self) -> Mapping[str, Member]:
        """The members that queries may get, by their variants' ids."""
        return self._members

    @property
    def ready(self) -> int:
        """The number of instances of all members that can take batches."""
        return sum(member.runtime.ready for member in self._members.values())

    def use(self, members: Iterable[Member], signature: ModelSignature | None) -> None:
        """Choose among these members from now on. Requests that wait at a former member are answered there."""
        for member in self._members.values():
            member.runtime.capacity_changed = None
        self.signature = signature
        self._members = {member.variant.id: member for member in members}
        self._reported = {name: report for name, report in self._reported.items() if name in self._members}
        self._selector = self._make_selector(member.variant for member in self._members.values())
        for name, member in self._members.items():
            self._tell(name)
            member.runtime.capacity_changed = partial(self._tell, name)

    def report(self, variant: str, state: VariantState, load: float) -> None:
        """Report the measured state of a variant's instances, and the share of their saturation rate that they serve."""
        if variant in self._members:
            self._reported[variant] = (state, load)
            self._tell(variant)

    def _tell(self, variant: str) -> None:
        """Update the selector: whether the variant has an instance that answers."""
        runtime = self._members[variant].runtime
        ready = runtime.ready
        if ready:
            state, load = self._reported.get(variant, (VariantState.ACTIVE, 0.0))
            state = VariantState.ACTIVE if state is VariantState.INACTIVE else state
            self._selector.instance_loaded(variant, "", state, load, instances=ready, pending=runtime.pending)
        else:
            self._selector.instance_unloaded(variant, "")

    def choose(self, constraints: Constraints, samples: int = 1) -> Chosen:
        """The member that answers a request with these constraints and so many samples.

        Raises:
            GnomonError: 409 `empty_application`; 503 `application_starting`; 404 for a model or variant that is not of this
                application; 422 `no_variant_satisfies`, as `UnsatisfiedError`.

        """
        query = constraints.query
        if not self._members:
            raise self.nothing_to_choose()
        choice = self._select(query)
        if not choice.satisfies:
            if not constraints.serve_nearest:
                raise UnsatisfiedError(self.key.name, choice)
            query = Query(variant=choice.variant.id)
        if query not in self.demands and len(self.demands) >= _MOST_DEMANDS:
            query = Query(variant=choice.variant.id)
        self.demands[query] = self.demands.get(query, 0) + samples
        self.answered_by[choice.variant.id] = self.answered_by.get(choice.variant.id, 0) + 1
        if choice.degraded:
            self.degraded_by[choice.variant.id] = self.degraded_by.get(choice.variant.id, 0) + 1
        return Chosen(self._members[choice.variant.id], choice)

    def _select(self, query: Query) -> Choice:
        choice = self._selector.select(query)
        if choice.degraded and not decided_together(self.settings):
            # Each member is scaled by the requests that it gets: a wished variant without an instance would never get one.
            wished = self._selector.select(replace(query, accuracy_floor=None))
            return wished if wished.satisfies and not wished.loaded else choice
        return choice

    def nothing_to_choose(self) -> GnomonError:
        """The error for a query that no variant can answer: no model is registered, or none is measured yet."""
        if self.measuring:
            return GnomonError(
                503,
                "application_starting",
                f"The variants of the application {self.key.name} are being measured.",
                f"Watch it with: gnomon app describe {self.key.name}",
                retry_after_s=STARTING_RETRY_S,
            )
        return conflict(
            "empty_application",
            f"The application {self.key.name} has no models.",
            f"Register one: gnomon app add {self.key.name} MODEL --accuracy 0.75",
        )


_MOST_DEMANDS = 100
"""Kinds of queries that are counted apart, because clients choose the numbers. Any further kind counts as a query that names the
variant that answers it: it is neither lost to scaling, nor are there more kinds than these and the variants."""


class UnsatisfiedError(GnomonError):
    """422: no variant satisfies the query. `lines` names the nearest one in a header of the answer."""

    def __init__(self, application: str, choice: Choice) -> None:
        variant = choice.variant
        super().__init__(
            422,
            "no_variant_satisfies",
            f"No variant of the application {application} satisfies the query.",
            f"The nearest is {variant.id}: {choice.shortfall}. Ask for less, or accept it with X-Gnomon-Nearest: {SERVE}.",
        )
        self.nearest = variant.id

    @property
    def lines(self) -> bytes:
        return NEAREST_HEADER + b": " + self.nearest.encode("latin-1", "replace") + b"\r\n"


def refusal_lines(error: GnomonError) -> bytes:
    """Further header lines of an answer with this error."""
    return error.lines if isinstance(error, UnsatisfiedError) else b""
