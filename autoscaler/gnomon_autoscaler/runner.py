"""The autoscaler of one function, without a loop: the same object runs live and in the simulator.

`tick` takes a sample and decides if a decision is due. The live loop takes the same steps one by one, because there a policy
decides in a worker thread: `sample`, `due_call`, then `accept` or `fail`. The loop reports the outcome: `carried_out` or
`refused`.

A decision is due when the policy's period has passed, when an operator requests a number, when the settings change, and when a
request waits and no instance is live. In between, instances that ended by themselves are replaced.

**Inherited instances** (`InheritedInstances`). Windows are empty at first, which looks like no load to every policy: in the midst
of a peak a new leader would end all Shadows, and all Bodies but the least, and warm instances would end before the first request.
The number of Bodies and the Shadows of the first observation are kept until the windows cover the time that policies read
(`Settings.stable_window_s`). Meanwhile instances may be added, instances beyond the inherited number may end, and an operator's
number takes effect at once.

    9 warm Bodies, second 0, 0 rps: 9 stay    second 20, after a burst that added 3: these 3 end    second 60: as decided

**Observation** (`observe`). During a rolling update the gateway replaces the instances of the old version. They are not observed,
so that no policy counts them twice or chooses one as a victim.

**State** (`state_to_json`). Readings of a monotonic clock are invalid after a reboot or on another machine. Keys of times in a
policy's state end in `_at_s`; when the state is restored, these times are shifted to the new clock, so that their age is
preserved.

**Start back-off** (`StartBackoff`). A start has failed if the instance ends before it was ready for 10 s, or was created and is
missing in the next observation. After the second failure in a row, new instances wait 1 s, then 2, 4, … at most 60 s. Several
that fail together count once. The back-off is reset when an instance stays ready for 10 s, or when an instance ends that had
answered (`reset_start_backoff`): it had started well and a request may have ended it, and a client that sends such requests must
not be able to block the function for other clients.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import cast

from gnomon_autoscaler.registry import BUILT_IN, Policies, scaling_policy
from gnomon_autoscaler.replica_policy import actions_towards, decides_on_count
from gnomon_autoscaler.windows import LoadWindows
from gnomon_core.actuation import PartlyRefused
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.interfaces import ScalingPolicy
from gnomon_core.json_types import Json, JsonObject
from gnomon_core.scaling import (
    Action,
    CreateBody,
    CreateShadow,
    Decision,
    DestroyBody,
    DestroyShadow,
    FunctionLoad,
    History,
    LoadCounters,
    Observation,
    PolicyState,
    PromoteShadow,
    StateValue,
)
from gnomon_core.settings import Settings


class InheritedInstances:
    """Instances of one function that were there before its load was recorded."""

    def __init__(self) -> None:
        self._first = True
        self._bodies = 0
        self._shadows: frozenset[str] = frozenset()

    def observe(self, live: Sequence[Instance], shadows: Sequence[Instance]) -> None:
        """Record the first observation's live Bodies and Shadows as inherited."""
        if self._first:
            self._first, self._bodies = False, len(live)
            self._shadows = frozenset(shadow.id for shadow in shadows) if live else frozenset()

    def restrict(self, decision: Decision, observation: Observation) -> tuple[Decision, str]:
        """The decision without removals that come too early, and the reason; "" if the decision is unchanged."""
        if not self._bodies:
            return decision, ""
        if len(observation.history.arrivals) * observation.history.bin_s >= observation.settings.stable_window_s:
            self._bodies, self._shadows = 0, frozenset()
        if not self._bodies or observation.requested is not None:
            return decision, ""
        bodies = len(observation.live)
        allowed: list[Action] = []
        for action in decision.actions:
            if isinstance(action, DestroyBody):
                # Only the inherited number is kept: instances that were added since may end.
                if bodies <= self._bodies:
                    continue
                bodies -= 1
            elif isinstance(action, DestroyShadow) and action.id in self._shadows:
                continue
            allowed.append(action)
        if len(allowed) == len(decision.actions):
            return decision, ""
        desired = decision.desired if decision.desired is None else max(decision.desired, bodies)
        # A constant text, so that repeated decisions are one record.
        reason = f"a short history: what there was stays until {observation.settings.stable_window_s:g} s of load are recorded"
        return replace(decision, actions=tuple(allowed), desired=desired), reason


def newest(instances: tuple[Instance, ...]) -> tuple[Instance, ...]:
    """The instances of the newest version."""
    if len(instances) <= 1:
        return instances
    version = max((instance.version for instance in instances), default=0)
    return tuple(instance for instance in instances if instance.version == version)


def observe(now_s: float, function: str, load: FunctionLoad, history: History, requested: int | None) -> Observation:
    """The observation of one function at `now_s`."""
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


_TIME_SUFFIX = "_at_s"


def state_to_json(state: PolicyState) -> JsonObject:
    """The state as a JSON document.

    Raises:
        TypeError: it holds a value that is not JSON. A third party's policy need not have been type-checked.

    """
    return {"policy": state.policy, "version": state.version, "values": _to_json(state.values)}


def state_from_json(document: JsonObject, shift_s: float = 0.0) -> PolicyState:
    """The state, with its times shifted by `shift_s` seconds."""
    values = _from_json(document["values"], shift_s)
    return PolicyState(
        policy=str(document["policy"]),
        version=int(cast("int", document["version"])),
        values=values if isinstance(values, Mapping) else {},
    )


def _to_json(value: object) -> Json:
    if isinstance(value, tuple | list):
        return [_to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {_key_to_json(key): _to_json(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    msg = f"{type(value).__name__} is not a JSON value"
    raise TypeError(msg)


def _key_to_json(key: object) -> str:
    if isinstance(key, str):
        return key
    msg = f"{type(key).__name__} cannot be a key in JSON"
    raise TypeError(msg)


def _from_json(value: Json, shift_s: float) -> StateValue:
    if isinstance(value, Mapping):
        return {
            key: _shifted_time(item, shift_s) if key.endswith(_TIME_SUFFIX) else _from_json(item, shift_s)
            for key, item in value.items()
        }
    if isinstance(value, str) or value is None or isinstance(value, bool | int | float):
        return value
    return tuple(_from_json(item, shift_s) for item in value)


def _shifted_time(value: Json, shift_s: float) -> StateValue:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value + shift_s
    if value is None or isinstance(value, str | bool | Mapping):
        return _from_json(value, shift_s)
    return tuple(_shifted_time(item, shift_s) for item in value)


STEADY_S = 10.0
"""An instance that was ready for this long has started well; Kubernetes resets a container's back-off by such a time, too."""
LONGEST_WAIT_S = 60.0


class StartBackoff:
    """Follows a function's instances and delays new ones after failed starts."""

    def __init__(self) -> None:
        self.failures = 0
        """Failed starts in a row."""
        self.wait_until_s = float("-inf")
        self._seen: dict[str, Instance] = {}
        self._ready_at_s: dict[str, float] = {}
        self._ending: set[str] = set()
        self._expected = self._appeared = 0
        self.settled = False
        """True if observing the same instances again would change nothing: none is expected, and all are ready and steady."""

    @property
    def reason(self) -> str:
        """A message about consecutive failed starts; the text stays the same until their number changes."""
        return f"{self.failures} starts failed in a row: new instances wait {self._wait_s:g} s; the function's log says why"

    @property
    def _wait_s(self) -> float:
        return min(LONGEST_WAIT_S, 2.0 ** (self.failures - 2)) if self.failures > 1 else 0.0

    @property
    def instances(self) -> tuple[Instance, ...]:
        """The instances at the last observation."""
        return tuple(self._seen.values())

    def announce(self) -> None:
        """Announce that instances are about to be created, which may take a while: `observe` may run before all of them exist."""
        self._appeared = 0

    def expect(self, instances: int) -> None:
        """Record how many were created since `announce`: each must have appeared by the next observation."""
        self.settled = self.settled and not instances
        self._expected += instances

    def expect_ends(self, ids: Iterable[str]) -> None:
        """Record instances that end by a decision: their end is no failed start."""
        self._ending.update(ids)
        self.settled = self.settled and not self._ending

    def observe(self, now_s: float, instances: tuple[Instance, ...]) -> None:
        """Compare the present instances, those of the newest version, with those of the last observation."""
        if not (instances or self._seen or self._expected):  # the usual case for Shadows
            self._ending.clear()
            self.settled = True
            return
        present = {instance.id: instance for instance in instances if instance.state is not InstanceState.GONE}
        version = max((instance.version for instance in present.values()), default=None)
        self._appeared += len(present.keys() - self._seen.keys())
        # An instance may fail so early that no observation ever contained it.
        failed = self._appeared < self._expected
        self._expected = 0
        for id_, before in self._seen.items():
            replaced = version is not None and before.version < version
            intended = id_ in self._ending or before.state is InstanceState.DRAINING
            # An end that was not requested: a failed start, or after `STEADY_S` a crash, which is replaced without back-off.
            if id_ not in present and not intended and not replaced:
                failed |= not self._was_steady(now_s, id_)
        if failed:
            self._fail(now_s)
        for id_, instance in present.items():
            if instance.state is InstanceState.READY:
                self._ready_at_s.setdefault(id_, now_s)
                if self._was_steady(now_s, id_):
                    self.reset()
        self._ending &= present.keys()
        self._ready_at_s = {id_: at_s for id_, at_s in self._ready_at_s.items() if id_ in present}
        self._seen = present
        steady = all(instance.state is InstanceState.READY and self._was_steady(now_s, instance.id) for instance in instances)
        self.settled = steady and not self._ending

    def reset(self) -> None:
        """Reset the back-off: an instance is steady or has answered, or the function was deployed again."""
        self.failures = 0
        self.wait_until_s = float("-inf")

    def _was_steady(self, now_s: float, id_: str) -> bool:
        since_s = self._ready_at_s.get(id_)
        return since_s is not None and now_s - since_s >= STEADY_S

    def _fail(self, now_s: float) -> None:
        self.failures += 1
        # The first failure may be an accident: it is retried at once.
        if self.failures > 1:
            self.wait_until_s = now_s + self._wait_s


FAILURES_BEFORE_FIXED = 3
FIRST_RETRY_S = 15.0
LONGEST_RETRY_S = 300.0
"""Back-off until a failed policy is tried again; doubles with each failed trial."""
LIVE = (InstanceState.STARTING, InstanceState.READY)
OFTEN_S = 1.0
"""A policy with a period as short as this replaces ended instances by itself, and knows better with which size."""
_TOLERANCE_S = 1e-6
"""Sums of 0.1 s steps fall short of the whole second by less than this."""

_LOG = logging.getLogger("gnomon.autoscaler")


@dataclass(slots=True)
class PolicyCall:
    """A pending call of a policy. `execute` is pure and may run in another thread.

    `third_party` is whether the policy comes from an installed package, so that its time is limited.
    """

    policy: ScalingPolicy
    observation: Observation
    state: PolicyState
    third_party: bool = False

    @property
    def is_quick(self) -> bool:
        """Return whether the policy is known to decide in microseconds. A third party's policy may take any time."""
        return not self.third_party and decides_on_count(self.policy)

    def execute(self) -> tuple[Decision, PolicyState]:
        # A third party's policy need not have been type-checked.
        result: tuple[object, object] = self.policy.decide(self.observation, self.state)
        decision, state = result
        if not isinstance(decision, Decision) or not isinstance(state, PolicyState):
            msg = f"it answered {type(decision).__name__} and {type(state).__name__}, not Decision and PolicyState"
            raise TypeError(msg)
        if self.third_party:
            _require_types(decision)
        return decision, state


def _require_types(decision: Decision) -> None:
    """Refuse a decision that nobody could carry out: as a failure of the policy, before it becomes one of the autoscaler.

    Raises:
        TypeError: its actions or its number are something else.

    """
    actions: object = decision.actions
    desired: object = decision.desired
    if not isinstance(actions, tuple | list) or not all(isinstance(action, Action) for action in actions):
        msg = f"its actions are {actions!r:.100}, not a tuple of actions"
        raise TypeError(msg)
    if desired is not None and not isinstance(desired, Real):
        msg = f"it wants {desired!r:.100}, not a number of instances"
        raise TypeError(msg)


@dataclass(frozen=True, slots=True)
class _FailedPolicy:
    """A policy that `fixed` stands in for: its state, when it is tried again, and how long that back-off is."""

    policy: ScalingPolicy
    state: PolicyState
    retry_at_s: float
    backoff_s: float


class Runner:
    """Windows, policy, state and last decision of one function. It is sampled at `origin_s` and each bin after that."""

    def __init__(self, function: str, policies: Policies = BUILT_IN, origin_s: float | None = None) -> None:
        self.function = function
        self.windows = LoadWindows(origin_s=origin_s)
        self._origin_s = origin_s
        self.state = PolicyState()
        self.desired: int | None = None
        self.overflow = 0.0
        """The share of the requests to come that the last decision leaves to functions on demand."""
        self.policy_name = ""
        """The policy that decides now: the settings' own, or `fixed` in its place."""
        self.held_back = ""
        """The reason why the last decision is carried out in part only: the function does not start, or its history is short."""
        self._policies = policies
        self._policy: ScalingPolicy | None = None
        self._settings: Settings | None = None
        self._sampled_settings: Settings | None = None
        """The settings at the last sample; a policy may not have decided by them yet."""
        self._requested: int | None = None
        self._last_requested: int | None = None
        self._inherited = InheritedInstances()
        self._body_starts = StartBackoff()
        self._shadow_starts = StartBackoff()
        self._next_s = float("-inf")
        """The end of the policy's period."""
        self._replace_after_s = float("-inf")
        self._failures = 0
        self._fallback_reason = ""
        """Begins each reason while `fixed` stands in; empty otherwise."""
        self._third_party = False
        """True if the policy that the settings name comes from an installed package; `fixed` in its place does not."""
        self._failed_policy: _FailedPolicy | None = None
        """The policy that failed, while `fixed` stands in for it."""
        self._stamp: object = None
        """The fleet's stamp of the function without its requests, at the last observation of its instances."""
        self._live_bodies = 0
        self._state_error_logged = False

    def tick(self, now_s: float, load: FunctionLoad, stamp: object = None) -> Decision | None:
        """Take a sample. Returns the decision to carry out, None if none is due. `stamp` is that of `sample`."""
        self.sample(now_s, load, stamp)
        call = self.due_call(now_s, load)
        if call is None:
            return self.replacement(now_s, load)
        try:
            decision, state = call.execute()
        except Exception as error:  # noqa: BLE001 - whatever a policy raises leaves the last decision in force
            return self.fail(error_text(error), call)
        return self.accept(call, decision, state)

    def sample(self, now_s: float, load: FunctionLoad, stamp: object = None) -> None:
        """Sample the counters and observe the instances. Call it every bin of the windows, or as often as possible.

        `stamp` is the fleet's `stamp_without_requests`; None if the fleet has none. While it stays equal and every instance is
        steady, the instances need not be observed again.
        """
        self.windows.record(now_s, load.counters)
        self._sampled_settings = load.settings
        unchanged, self._stamp = stamp is not None and stamp == self._stamp, stamp
        if not unchanged or not (self._body_starts.settled and self._shadow_starts.settled):
            self._observe_instances(now_s, load)
        # A fleet may show an operator's request once or until the next one: only its appearance counts.
        if load.requested is not None and load.requested != self._last_requested:
            self.request(load.requested)
        self._last_requested = load.requested

    def _observe_instances(self, now_s: float, load: FunctionLoad) -> None:
        """Compare the instances with those of the last observation, for the start back-off."""
        instances = newest(load.instances)
        bodies = tuple(instance for instance in instances if instance.kind is InstanceKind.BODY)
        self._body_starts.observe(now_s, bodies)
        # A Shadow ends with its Body: that is no failed start of a Shadow.
        serving = {body.id for body in bodies if body.state in LIVE}
        self._live_bodies = len(serving)
        shadows = tuple(instance for instance in instances if instance.kind is InstanceKind.SHADOW)
        self._inherited.observe([body for body in bodies if body.id in serving], shadows)
        self._shadow_starts.expect_ends(shadow.id for shadow in self._shadow_starts.instances if shadow.partner not in serving)
        self._shadow_starts.observe(now_s, shadows)

    def between_turns(self, now_s: float) -> bool:
        """Return whether the policy is not due yet, unless something happens."""
        return now_s < self._next_s - _TOLERANCE_S and self._requested is None and self._failed_policy is None

    @property
    def needs_no_sample(self) -> bool:
        """Return whether the function need not be sampled before its policy's next turn, unless the fleet pokes.

        A policy that decides on a count takes means of several seconds, and cumulative counters lose nothing between turns.
        The function is sampled while anything else may concern it: instances that start, end or are missing.
        """
        return (
            decides_on_count(self._policy)
            and self._live_bodies >= max(1, self.desired or 0)
            and self._body_starts.settled
            and self._shadow_starts.settled
        )

    def record_counters(self, now_s: float, counters: LoadCounters, stamp: object) -> bool:
        """Sample the counters alone, a tenth of the work of `sample`; False if a full sample is needed.

        Between two turns of the policy that is enough while nothing but the requests has changed, none of them waits for a first
        instance, and no instance is missing.
        """
        complete = self._live_bodies >= (self.desired or 0) and (self._live_bodies > 0 or not counters.queued)
        if not complete or self._stamp is None or self._stamp != stamp:
            return False
        self.windows.record(now_s, counters)
        return True

    def due_call(self, now_s: float, load: FunctionLoad) -> PolicyCall | None:
        """The call of the policy that is due now; None if none is due."""
        changed = load.settings is not self._settings and load.settings != self._settings
        if changed:
            self._choose(load.settings)
        elif self._failed_policy is not None and now_s >= self._failed_policy.retry_at_s - _TOLERANCE_S:
            self._try_again(self._failed_policy)
        policy = self._policy
        assert policy is not None
        waits = load.counters.queued > 0 and not _live(load)
        in_period = now_s < self._next_s - _TOLERANCE_S
        if in_period and not changed and not waits and self._requested is None:
            return None
        if not in_period:
            # A late tick keeps the phase of the policy's period; after a pause a new phase begins.
            kept = self._next_s > now_s - policy.period_s
            self._next_s = (self._next_s if kept else now_s) + policy.period_s
        observation = observe(now_s, self.function, load, self.windows.history(now_s), self._requested)
        # An operator's number is passed to one call only; the policy keeps in its state what it needs of the number.
        self._requested = None
        return PolicyCall(policy, observation, self.state, third_party=self._third_party and not self._fallback_reason)

    def skipped(self, until_s: float) -> None:
        """Resume after a skip until then: turns keep their phase, as if the policy had been called all the time."""
        if self._policy is not None and self._next_s <= until_s + _TOLERANCE_S:
            turns = math.floor((until_s + _TOLERANCE_S - self._next_s) / self._policy.period_s) + 1
            self._next_s += turns * self._policy.period_s

    @property
    def next_s(self) -> float:
        """The time of the policy's next call if no event precedes it."""
        return self._next_s

    def start_backoff_s(self, now_s: float) -> float:
        """Seconds until the next instance may start, after failed starts; 0 where it may now."""
        return max(0.0, self._body_starts.wait_until_s - now_s)

    def accept(self, call: PolicyCall, decision: Decision, state: PolicyState) -> Decision:
        """Take the policy's result. Returns the decision to carry out."""
        if self._is_outdated(call):
            return self._discarded(call)
        self._failures = 0
        if self._failed_policy is not None and call.policy is self._failed_policy.policy:
            self._failed_policy = None
        self.state = state
        if self._fallback_reason:
            decision = replace(decision, reason=self._fallback_reason + decision.reason)
        decision, kept = self._inherited.restrict(decision, call.observation)
        self.desired, self.overflow = decision.desired, decision.overflow
        decision = self._within_backoff(call.observation.now_s, decision)
        self.held_back = self.held_back or kept
        return decision

    def fail(self, error: str, call: PolicyCall) -> Decision:
        """Record that the policy raised or overran: the last decision stays in force.

        After the third failure in a row `fixed` stands in for the policy, until it is tried again after a back-off.
        """
        if self._is_outdated(call):
            return self._discarded(call)
        self._failures += 1
        reason = f"{self.policy_name} failed ({self._failures} of {FAILURES_BEFORE_FIXED}): {error}"
        if self._failures >= FAILURES_BEFORE_FIXED:
            self._stand_in(call, error)
        return Decision((), f"{reason}; the last decision stays in force", self.desired)

    @property
    def fallback(self) -> str:
        """The reason why `fixed` decides instead of the policy that the settings name; empty where that policy decides."""
        return self._fallback_reason.removesuffix(": ")

    def _is_outdated(self, call: PolicyCall) -> bool:
        """Return whether the function has other settings by now, or another policy."""
        if call.policy is not self._policy:
            return True
        # A comparison takes field after field: most often it is the same object.
        before, now = call.observation.settings, self._sampled_settings
        return now is not None and before is not now and before != now

    def _discarded(self, call: PolicyCall) -> Decision:
        """Discard a decision whose function's settings changed during the call; the next call has the present ones."""
        # The discarded call had consumed the operator's number: the next call gets it, unless a newer one has arrived.
        if self._requested is None:
            self._requested = call.observation.requested
        reason = f"{call.policy.name} decided by settings that have changed since; the decision is discarded"
        return Decision((), reason, self.desired)

    def replacement(self, now_s: float, load: FunctionLoad) -> Decision | None:
        """A decision that replaces instances which ended by themselves since the last one; None if none are missing."""
        often = self._policy is not None and self._policy.period_s <= OFTEN_S
        if often or self.desired is None or now_s < max(self._body_starts.wait_until_s, self._replace_after_s):
            return None
        missing = self.desired - len(_live(load))
        if missing <= 0:
            return None
        self._body_starts.announce()
        observation = observe(now_s, self.function, load, self.windows.history(now_s), None)
        return Decision(
            actions_towards(self.desired, observation),
            f"{missing} of {self.desired} instances are missing: replaced",
            self.desired,
        )

    def carried_out(self, decision: Decision) -> None:
        """Record that the decision was carried out: its instances exist at the next observation, or have failed."""
        self._expect(decision.actions)

    def refused(self, now_s: float, why: Exception) -> None:
        """Record that capacity was too small for all of it: nothing is retried before the policy's next turn."""
        period_s = self._policy.period_s if self._policy else 1.0
        self._replace_after_s = max(self._next_s, now_s + min(1.0, period_s))
        if isinstance(why, PartlyRefused):
            self._expect(why.done)

    def _expect(self, done: Sequence[Action]) -> None:
        self._body_starts.expect(sum(isinstance(action, CreateBody | PromoteShadow) for action in done))
        self._shadow_starts.expect(sum(isinstance(action, CreateShadow) for action in done))

    def reset_start_backoff(self) -> None:
        """Reset the start back-off: the function was deployed again, or is known to start."""
        self._body_starts.reset()
        self._shadow_starts.reset()

    def request(self, instances: int) -> None:
        """Set the number that an operator requests. `desired` shows it at once; the next tick decides."""
        self._requested = self.desired = instances

    def to_json(self) -> JsonObject | None:
        """State for a restarted autoscaler; None (logged once) if the policy keeps a state that is not JSON."""
        try:
            return {"state": state_to_json(self.state), "desired": self.desired, "windows": self.windows.to_json()}
        except Exception as error:  # noqa: BLE001 - a third party's policy may keep anything
            if not self._state_error_logged:
                self._state_error_logged = True
                why = error_text(error)
                _LOG.warning("%s: the policy's state is not JSON, so it is neither saved nor transferred: %s", self.function, why)
            return None

    def restore(self, document: JsonObject, shift_s: float) -> None:
        """Restore a saved runner whose times are shifted by `shift_s` seconds."""
        state = state_from_json(cast("JsonObject", document["state"]), shift_s)
        windows = LoadWindows.from_json(cast("JsonObject", document["windows"]), origin_s=self._origin_s)
        desired = document["desired"]
        self.state, self.windows = state, windows
        self.desired = int(desired) if isinstance(desired, int | float) else None

    def _choose(self, settings: Settings) -> None:
        self._settings = settings
        self._failures, self._fallback_reason, self._failed_policy, self.overflow = 0, "", None, 0.0
        self.windows.keep_at_least(settings.stable_window_s)
        plugin = self._policies.get(settings.autoscaler)
        self._third_party = plugin is not None and plugin.third_party
        try:
            self._policy = scaling_policy(settings.autoscaler, settings, self._policies)
        except Exception as error:  # noqa: BLE001 - a third party's maker may raise anything
            self._fall_back(f"{settings.autoscaler} cannot be used, fixed instead ({error_text(error)})", settings)
        else:
            self.policy_name = self._policy.name
        # The policy keeps the part of its state that it can read; a new period begins now.
        self._next_s = float("-inf")

    def _stand_in(self, failed: PolicyCall, error: str) -> None:
        """Let `fixed` decide until the back-off of the failed policy is over. The state of that policy is kept."""
        before = self._failed_policy
        backoff_s = FIRST_RETRY_S if before is None else min(2.0 * before.backoff_s, LONGEST_RETRY_S)
        self._failed_policy = _FailedPolicy(failed.policy, failed.state, failed.observation.now_s + backoff_s, backoff_s)
        why = f"{self.policy_name} failed {FAILURES_BEFORE_FIXED} times, fixed instead ({error})"
        if before is not None:
            why = f"{self.policy_name} failed again, fixed instead for {backoff_s:g} s ({error})"
        self._fall_back(why, failed.observation.settings)

    def _try_again(self, failed: _FailedPolicy) -> None:
        """Call the failed policy again; one more failure makes `fixed` stand in for longer."""
        self._policy, self.policy_name, self.state = failed.policy, failed.policy.name, failed.state
        self._failures, self._fallback_reason = FAILURES_BEFORE_FIXED - 1, ""
        self._next_s = float("-inf")

    def _fall_back(self, why: str, settings: Settings) -> None:
        self._policy = BUILT_IN["fixed"].make(settings)
        self.policy_name = self._policy.name
        self.state, self.overflow = PolicyState(), 0.0
        self._fallback_reason = f"{why}: "
        # A faulty policy must not remove instances: its last count is held, as if an operator had requested it.
        self._requested = self.desired
        self._next_s = float("-inf")

    def _within_backoff(self, now_s: float, decision: Decision) -> Decision:
        """The decision without creations during the start back-off."""
        self.held_back = ""
        if not decision.actions:
            self._body_starts.announce()
            self._shadow_starts.announce()
            return decision
        for starts, creation in ((self._body_starts, CreateBody | PromoteShadow), (self._shadow_starts, CreateShadow)):
            starts.announce()
            kept = tuple(action for action in decision.actions if not isinstance(action, creation))
            if now_s < starts.wait_until_s and len(kept) < len(decision.actions):
                self.held_back = starts.reason
                decision = replace(decision, actions=kept)
        self._body_starts.expect_ends(action.id for action in decision.actions if isinstance(action, DestroyBody))
        self._shadow_starts.expect_ends(
            action.id for action in decision.actions if isinstance(action, DestroyShadow | PromoteShadow)
        )
        return decision


def _live(load: FunctionLoad) -> list[Instance]:
    """Bodies that serve or are about to."""
    return [instance for instance in newest(load.instances) if instance.kind is InstanceKind.BODY and instance.state in LIVE]


def error_text(error: Exception) -> str:
    """An error as a part of a reason."""
    return str(error) if isinstance(error, GnomonError) else f"{type(error).__name__}: {error}"
