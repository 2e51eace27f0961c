"""Input and output of a scaling policy.

An `Observation` is the complete, frozen input of a policy; a `Decision` is a list of actions with the reason in one sentence.
Neither refers to a clock or a connection, so that a recorded observation can be decided again anywhere. A `DecisionRecord` is a
decision as it is stored and shown.

A buffer plan crosses processes as JSON, because the process that decides is not always the one that makes the batches: OpenFaaS's
gateway replicas get it from their leader, and Knative's gateways read it in the status of their Revision's PodAutoscaler.

    {"max_batch": 8, "max_wait_s": 0.05}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeAlias

from gnomon_core.fleet import Instance, InstanceKind, InstanceState, Node
from gnomon_core.json_types import JsonObject
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.settings import Settings

_BODY, _READY = InstanceKind.BODY, InstanceState.READY
"""Constants, because Python 3.11 takes a tenth of a microsecond to look up a member of an enumeration."""
_LIVE = (InstanceState.STARTING, InstanceState.READY)


@dataclass(frozen=True, slots=True)
class History:
    """Recent load in bins of `bin_s` seconds, oldest first; the last bin ends at `end_s`.

    `arrivals` and `successes` are counts per bin, `concurrency` the time-average of requests in the system (waiting and
    executing), `busy_cores` the time-average of cores that instances used. All have the same length.
    A window that is longer than the history covers the available bins. The columns are immutable snapshots.
    """

    bin_s: float
    end_s: float
    arrivals: Sequence[float] = ()
    successes: Sequence[float] = ()
    concurrency: Sequence[float] = ()
    busy_cores: Sequence[float] = ()

    def rate_rps(self, counts: Sequence[float], window_s: float, *, until_s: float = 0.0) -> float:
        """Events per second over the window that ends `until_s` seconds before the end; 0 without data."""
        bins = self._window(counts, window_s, until_s)
        return sum(bins) / (len(bins) * self.bin_s) if bins else 0.0

    def mean(self, values: Sequence[float], window_s: float, *, until_s: float = 0.0) -> float:
        """The mean over the window that ends `until_s` seconds before the end; 0 without data."""
        bins = self._window(values, window_s, until_s)
        return sum(bins) / len(bins) if bins else 0.0

    def _window(self, values: Sequence[float], window_s: float, until_s: float) -> Sequence[float]:
        end = len(values) - round(until_s / self.bin_s)
        # At least one bin: a window shorter than a bin would otherwise be empty.
        begin = max(0, end - max(1, round(window_s / self.bin_s)))
        return values[begin:end] if end > 0 else ()


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of one function at one time, as a policy sees it.

    `queued` and `executing` are the present numbers of requests; `oldest_wait_s` is 0 with an empty queue; `requested` is the
    number that an operator has requested (scale-function) since the last decision, else None. `latency_s` is the predicted
    latency of an instance with the function's cores for batches of 1, 2, … `settings.max_batch`, empty while unknown. `profile`
    is the profile of its model, None without a profiled model. `latency_spread` is the recent mean relative error of latency
    predictions; 0 while unknown. `queues` is the number of queues, one or more, among which arrivals are distributed at random,
    each with its own buffer. `plan` is the buffer plan in force, None for the deployed limits: a policy that wants another plan
    repeats it at each decision until it is in force.
    """

    now_s: float
    function: str
    settings: Settings
    instances: tuple[Instance, ...]
    nodes: tuple[Node, ...]
    queued: int
    executing: int
    oldest_wait_s: float
    last_request_s: float
    history: History
    latency_s: tuple[float, ...] = ()
    requested: int | None = None
    profile: ModelProfile | None = None
    latency_spread: float = 0.0
    queues: int = 1
    plan: SetBufferPlan | None = None

    @property
    def live(self) -> tuple[Instance, ...]:
        """Bodies that serve or are about to: starting and ready."""
        return tuple([i for i in self.instances if i.kind is _BODY and i.state in _LIVE])

    @property
    def ready(self) -> tuple[Instance, ...]:
        """Bodies that can take a batch."""
        return tuple([i for i in self.instances if i.kind is _BODY and i.state is _READY])

    @property
    def shadows(self) -> tuple[Instance, ...]:
        """Shadows that compute for a Body or are about to."""
        return tuple([i for i in self.instances if i.kind is InstanceKind.SHADOW and i.state in _LIVE])


@dataclass(frozen=True, slots=True)
class LoadCounters:
    """The gateway's counters of a function, cumulative since its deployment, and its present requests.

    The `*_s` integrals make any sampling period exact: their difference over an interval, divided by its length, is the mean.
    `busy_core_s` is the sum over instances of cores × seconds in which the instance executed.
    """

    arrivals: int = 0
    successes: int = 0
    concurrency_s: float = 0.0
    busy_core_s: float = 0.0
    queued: int = 0
    executing: int = 0
    oldest_wait_s: float = 0.0
    last_request_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FunctionLoad:
    """A function's present state, which the autoscaler extends by the recorded history to an `Observation`.

    The fields have the same meaning as there.
    """

    settings: Settings
    counters: LoadCounters
    instances: tuple[Instance, ...]
    nodes: tuple[Node, ...]
    latency_s: tuple[float, ...] = ()
    requested: int | None = None
    profile: ModelProfile | None = None
    latency_spread: float = 0.0
    queues: int = 1
    plan: SetBufferPlan | None = None


@dataclass(frozen=True, slots=True)
class CreateBody:
    """Start an instance with the whole model; with `node` None the platform chooses the node.

    `memory_mb` is a size other than the function's own, for platforms that size instances by memory. `idle_cores` is for nodes
    that lend cores: the instance keeps these cores between batches and borrows up to `cores` for each batch.
    """

    cores: int
    node: str | None = None
    memory_mb: int | None = None
    idle_cores: int | None = None


@dataclass(frozen=True, slots=True)
class DestroyBody:
    """Drain and stop an instance."""

    id: str


@dataclass(frozen=True, slots=True)
class CreateShadow:
    """Start a Shadow for this Body, on its node unless the pair names another. It is used once it has registered."""

    body: str
    pair: Pair


@dataclass(frozen=True, slots=True)
class ChangeShadow:
    """Let a Shadow hold other blocks or take another share of each batch, from its Body's next batch on."""

    id: str
    pair: Pair


@dataclass(frozen=True, slots=True)
class DestroyShadow:
    """End a pair: the Body computes alone from its next batch on, and the Shadow is stopped."""

    id: str


@dataclass(frozen=True, slots=True)
class PromoteShadow:
    """Let a Shadow load the rest of the model while it works, and become a Body. It counts as a starting Body from now on."""

    id: str


@dataclass(frozen=True, slots=True)
class Resize:
    """Give an instance another number of cores in place.

    With `idle_cores` it keeps only those between batches from now on and borrows up to `cores` for each (`CreateBody`); without,
    all its cores are its own.
    """

    id: str
    cores: int
    idle_cores: int | None = None


@dataclass(frozen=True, slots=True)
class SetBufferPlan:
    """Change the bounds (B, T) of the function's batches."""

    max_batch: int
    max_wait_s: float


Action: TypeAlias = (
    CreateBody | DestroyBody | CreateShadow | ChangeShadow | DestroyShadow | PromoteShadow | Resize | SetBufferPlan
)
"""Actions of a decision. A platform's capabilities state which ones it supports."""
Dispensable: TypeAlias = CreateShadow | ChangeShadow | PromoteShadow | Resize
"""Actions whose refusal does not stop the rest of the decision (`actuation`)."""


def action_to_json(action: Action) -> dict[str, Any]:
    """An action as JSON for logs and the API; memory size and borrowed cores only if the action has them."""
    document = asdict(action)
    for rare in ("memory_mb", "idle_cores"):
        if document.get(rare, 0) is None:
            del document[rare]
    return {"action": type(action).__name__, **document}


@dataclass(frozen=True, slots=True)
class Decision:
    """The actions of a policy, with a one-sentence reason for the log, the metrics, the UI and the tests.

    `desired` is the number of instances that the policy wants, None for a policy without such a number. `overflow` is the
    expected share of requests that the instances will not answer in time, from 0 to 1: a platform with functions on demand sends
    these requests there; on other platforms they wait like all others.
    """

    actions: tuple[Action, ...]
    reason: str
    desired: int | None = None
    overflow: float = 0.0


StateValue: TypeAlias = bool | int | float | str | tuple["StateValue", ...] | Mapping[str, "StateValue"] | None


@dataclass(frozen=True, slots=True)
class PolicyState:
    """A policy's memory between decisions: JSON-serialisable, so that it survives a failover.

    `version` is the version of the policy's format. A state of another version or policy is discarded.
    """

    policy: str = ""
    version: int = 0
    values: Mapping[str, StateValue] = field(default_factory=dict)


class ScaledFleet(Protocol):
    """The functions that the autoscaler's loop observes and scales: the gateway's, live or simulated."""

    def functions(self) -> Sequence[str]:
        """The deployed functions as `name.namespace`."""
        ...

    def load(self, function: str) -> FunctionLoad | None:
        """The function's state now; None when it has been removed."""
        ...

    async def apply(self, function: str, actions: Sequence[Action]) -> None:
        """Carry out a decision. Returns once it has begun: creating and draining continue in the background.

        Raises:
            PartlyRefused: 503 `no_capacity`, the last of several refusals. If the refused actions are `Dispensable`, all others
                were carried out; otherwise only those before the refused action (`actuation`).
            GnomonError: no action can be carried out.

        """
        ...


def plan_to_json(plan: SetBufferPlan) -> dict[str, Any]:
    """A plan as JSON."""
    return {"max_batch": plan.max_batch, "max_wait_s": plan.max_wait_s}


def plan_from_json(document: Mapping[str, Any]) -> SetBufferPlan:
    """Parse a buffer plan.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: the document is not a plan.

    """
    max_batch, max_wait_s = int(document["max_batch"]), float(document["max_wait_s"])
    if max_batch < 1 or not 0.0 <= max_wait_s < math.inf:
        raise ValueError(f"an invalid buffer plan: batches of {max_batch} after {max_wait_s} s")
    return SetBufferPlan(max_batch, max_wait_s)


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision, and how often it was repeated unchanged until `last_at`. Times are seconds since 1970.

    `error` is the reason why the policy could not decide or the decision was not carried out in full; empty without one.
    """

    at: float
    policy: str
    desired: int | None
    actions: tuple[Action, ...]
    reason: str
    error: str = ""
    last_at: float = 0.0
    repeats: int = 0

    def to_json(self) -> JsonObject:
        """The JSON object for pages and files."""
        return {
            "at": self.at,
            "policy": self.policy,
            "desired": self.desired,
            "actions": [action_to_json(action) for action in self.actions],
            "reason": self.reason,
            "error": self.error,
            "last_at": self.last_at,
            "repeats": self.repeats,
        }
