"""One function's autoscaler, without a loop: the same object runs live and in the simulator.

`tick` does everything at once: it takes a sample and, when it is time, decides. The live loop takes the same steps one by one,
because there a policy decides beside the event loop: `sample`, `question`, then `accept` or `fail`. Whoever carries a decision
out says how it went: `carried_out` or `refused`.

It is time when the policy's period has passed, when an operator or a changed setting asks, and when a request waits and no
instance lives. Between those, instances that ended by themselves are replaced, so that the last decision stays true.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from gnomon_autoscaler.by_count import towards
from gnomon_autoscaler.inherited import Inherited
from gnomon_autoscaler.observe import newest, observe
from gnomon_autoscaler.registry import BUILT_IN, Policies, scaling_policy
from gnomon_autoscaler.starts import Starts
from gnomon_autoscaler.states import state_from_json, state_to_json
from gnomon_autoscaler.windows import LoadWindows
from gnomon_core.carrying_out import PartlyRefused
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.json_types import JsonObject
from gnomon_core.scaling import (
    Action,
    CreateBody,
    CreateShadow,
    Decision,
    DestroyBody,
    DestroyShadow,
    FunctionLoad,
    LoadCounters,
    Observation,
    PolicyState,
    PromoteShadow,
)
from gnomon_core.seams import ScalingPolicy
from gnomon_core.settings import Settings

FAILURES_BEFORE_FIXED = 3
FIRST_RETRY_S = 15.0
LONGEST_RETRY_S = 300.0
"""Back-off until a policy that failed is tried again: it doubles with every trial that fails, too."""
LIVE = (InstanceState.STARTING, InstanceState.READY)
OFTEN_S = 1.0
"""A policy that is asked as often as this replaces by itself what has ended, and knows better with which size."""
_TOLERANCE_S = 1e-6
"""Sums of 0.1 s steps fall short of the whole second by less than this."""

_LOG = logging.getLogger("gnomon.autoscaler")


@dataclass(frozen=True, slots=True)
class Question:
    """What a policy is asked. `answer` is pure and may run in another thread."""

    policy: ScalingPolicy
    seen: Observation
    state: PolicyState

    def answer(self) -> tuple[Decision, PolicyState]:
        # A third party's policy need not have been type-checked.
        answer: tuple[object, object] = self.policy.decide(self.seen, self.state)
        decision, state = answer
        if not isinstance(decision, Decision) or not isinstance(state, PolicyState):
            msg = f"it answered {type(decision).__name__} and {type(state).__name__}, not Decision and PolicyState"
            raise TypeError(msg)
        return decision, state


@dataclass(frozen=True, slots=True)
class _Replaced:
    """A policy that failed and what it remembers, when it is tried again, and how long it waits for that."""

    policy: ScalingPolicy
    state: PolicyState
    retry_at_s: float
    wait_s: float


class Runner:
    """Windows, policy, state and last decision of one function. It is looked at at `origin_s` and each bin after that.

    An `heir` may find instances of an earlier process.
    """

    def __init__(
        self, function: str, policies: Policies = BUILT_IN, origin_s: float | None = None, *, heir: bool = False
    ) -> None:
        self.function = function
        self.windows = LoadWindows(origin_s=origin_s)
        self._origin_s = origin_s
        self.state = PolicyState()
        self.desired: int | None = None
        self.overflow = 0.0
        """The share of the requests to come that the last decision leaves to functions on demand."""
        self.policy_name = ""
        self.held_back = ""
        """Why the last decision is carried out in part only: its function does not start, or was taken over."""
        self._policies = policies
        self._policy: ScalingPolicy | None = None
        self._settings: Settings | None = None
        self._sampled: Settings | None = None
        """Those of the last look, by which nobody may have been asked yet."""
        self._requested: int | None = None
        self._shown: int | None = None
        self._inherited = Inherited(heir=heir)
        self._starts = Starts()
        self._shadow_starts = Starts()
        self._next_s = float("-inf")
        self._replace_after_s = float("-inf")
        self._failures = 0
        self._instead = ""
        self._replaced: _Replaced | None = None
        """The policy that failed, while `fixed` stands in for it."""
        self._standing: object = None
        self._living = 0
        self._reported = False

    def tick(self, now_s: float, load: FunctionLoad) -> Decision | None:
        """Take a sample; the decision to carry out, None where it is not time for one."""
        self.sample(now_s, load)
        asked = self.question(now_s, load)
        if asked is None:
            return self.replacement(now_s, load)
        try:
            decision, state = asked.answer()
        except Exception as error:  # noqa: BLE001 - whatever a policy raises leaves the last decision in force
            return self.fail(told(error), asked)
        return self.accept(asked, decision, state)

    def sample(self, now_s: float, load: FunctionLoad, standing: object = None) -> None:
        """Take the counters and look at the instances. Call it every bin of the windows, or when it is possible.

        `standing` is what the function is known by apart from its requests, None where that is not known.
        """
        self.windows.record(now_s, load.counters)
        self._sampled = load.settings
        known, self._standing = standing is not None and standing == self._standing, standing
        if not known or not (self._starts.steady and self._shadow_starts.steady):
            self._look_at_instances(now_s, load)
        # A fleet may show a request once or until the next one: only its appearance counts.
        if load.requested is not None and load.requested != self._shown:
            self.request(load.requested)
        self._shown = load.requested

    def _look_at_instances(self, now_s: float, load: FunctionLoad) -> None:
        """Whether they are those of the last look, and what has become of them."""
        instances = newest(load.instances)
        bodies = tuple(instance for instance in instances if instance.kind is InstanceKind.BODY)
        self._starts.look(now_s, bodies)
        # A Shadow ends with its Body; and none says anything about whether Bodies start.
        serving = {body.id for body in bodies if body.state in LIVE}
        self._living = len(serving)
        self._inherited.look([body for body in bodies if body.id in serving])
        shadows = tuple(instance for instance in instances if instance.kind is InstanceKind.SHADOW)
        self._shadow_starts.dismiss(shadow.id for shadow in self._shadow_starts.seen if shadow.partner not in serving)
        self._shadow_starts.look(now_s, shadows)

    def between_turns(self, now_s: float) -> bool:
        """Whether its policy is asked later, if nothing happens."""
        return now_s < self._next_s - _TOLERANCE_S and self._requested is None and self._replaced is None

    def count(self, now_s: float, counters: LoadCounters, standing: object) -> bool:
        """Take the counters alone, which is a tenth of the work of `sample`; False where the function must be looked at.

        Between two turns of its policy that is enough while nothing but its requests has changed, none of them waits for an
        instance to be made, and no instance is missing.
        """
        whole = self._living >= (self.desired or 0) and (self._living > 0 or not counters.queued)
        if not whole or self._standing is None or self._standing != standing:
            return False
        self.windows.record(now_s, counters)
        return True

    def question(self, now_s: float, load: FunctionLoad) -> Question | None:
        """What to ask the policy now; None when it is not time."""
        changed = load.settings is not self._settings and load.settings != self._settings
        if changed:
            self._choose(load.settings)
        elif self._replaced is not None and now_s >= self._replaced.retry_at_s - _TOLERANCE_S:
            self._try_again(self._replaced)
        policy = self._policy
        assert policy is not None
        waits = load.counters.queued > 0 and not _live(load)
        in_period = now_s < self._next_s - _TOLERANCE_S
        if in_period and not changed and not waits and self._requested is None:
            return None
        if not in_period:
            # The rhythm is kept when a tick is late, and taken up anew after a pause.
            kept = self._next_s > now_s - policy.period_s
            self._next_s = (self._next_s if kept else now_s) + policy.period_s
        seen = observe(now_s, self.function, load, self.windows.history(now_s), self._requested)
        self._requested = None
        return Question(policy, seen, self.state)

    def rested(self, until_s: float) -> None:
        """The function was left in peace until then: the rhythm goes on as if its policy had been asked all the time."""
        if self._policy is not None and self._next_s <= until_s + _TOLERANCE_S:
            asked = math.floor((until_s + _TOLERANCE_S - self._next_s) / self._policy.period_s) + 1
            self._next_s += asked * self._policy.period_s

    @property
    def next_s(self) -> float:
        """When its policy is asked next, if nothing happens."""
        return self._next_s

    def start_backoff_s(self, now_s: float) -> float:
        """Seconds until the next instance may start, after failed starts; 0 where it may now."""
        return max(0.0, self._starts.wait_until_s - now_s)

    def accept(self, asked: Question, decision: Decision, state: PolicyState) -> Decision:
        """Take the policy's answer; the decision to carry out."""
        if self._is_past(asked):
            return self._superseded(asked)
        self._failures = 0
        if self._replaced is not None and asked.policy is self._replaced.policy:
            self._replaced = None
        self.state = state
        if self._instead:
            decision = replace(decision, reason=self._instead + decision.reason)
        decision, kept = self._inherited.keep(decision, asked.seen)
        self.desired, self.overflow = decision.desired, decision.overflow
        decision = self._restrained(asked.seen.now_s, decision)
        self.held_back = self.held_back or kept
        return decision

    def fail(self, error: str, asked: Question) -> Decision:
        """The policy raised or overran: the last decision stays in force.

        After the third failure in a row `fixed` stands in for the policy, until it is tried again after a back-off.
        """
        if self._is_past(asked):
            return self._superseded(asked)
        self._failures += 1
        said = f"{self.policy_name} failed ({self._failures} of {FAILURES_BEFORE_FIXED}): {error}"
        if self._failures >= FAILURES_BEFORE_FIXED:
            self._stand_in(asked, error)
        return Decision((), f"{said}; the last decision stays in force", self.desired)

    @property
    def fallback(self) -> str:
        """Why `fixed` decides instead of the policy that the settings name; empty where that one decides."""
        return self._instead.removesuffix(": ")

    def _is_past(self, asked: Question) -> bool:
        """Whether the function has other settings by now, or another policy."""
        return asked.policy is not self._policy or (self._sampled is not None and asked.seen.settings != self._sampled)

    def _superseded(self, asked: Question) -> Decision:
        """The settings changed while a policy was thinking: the next question is asked by those that there are."""
        if self._requested is None:
            self._requested = asked.seen.requested
        return Decision((), f"{asked.policy.name} was asked by settings of before; its answer is not used", self.desired)

    def replacement(self, now_s: float, load: FunctionLoad) -> Decision | None:
        """Instances in place of those that ended by themselves since the last decision; None if none are missing."""
        often = self._policy is not None and self._policy.period_s <= OFTEN_S
        if often or self.desired is None or now_s < max(self._starts.wait_until_s, self._replace_after_s):
            return None
        missing = self.desired - len(_live(load))
        if missing <= 0:
            return None
        self._starts.begin()
        seen = observe(now_s, self.function, load, self.windows.history(now_s), None)
        return Decision(towards(self.desired, seen), f"{missing} of {self.desired} instances are missing: replaced", self.desired)

    def carried_out(self, decision: Decision) -> None:
        """The decision has been carried out: what it made is there at the next look, or has failed."""
        self._expect(decision.actions)

    def refused(self, now_s: float, why: Exception) -> None:
        """Not all of it could be, for want of room: nothing is tried again before the policy's next turn."""
        period_s = self._policy.period_s if self._policy else 1.0
        self._replace_after_s = max(self._next_s, now_s + min(1.0, period_s))
        if isinstance(why, PartlyRefused):
            self._expect(why.done)

    def _expect(self, done: Sequence[Action]) -> None:
        self._starts.expect(sum(isinstance(action, CreateBody | PromoteShadow) for action in done))
        self._shadow_starts.expect(sum(isinstance(action, CreateShadow) for action in done))

    def forgive(self) -> None:
        """The function was deployed again, or is known to start: what failed to start before says nothing about it."""
        self._starts.forgive()
        self._shadow_starts.forgive()

    def request(self, instances: int) -> None:
        """An operator asks for so many instances. It shows at once as what is desired; the next tick decides."""
        self._requested = self.desired = instances

    def to_json(self) -> JsonObject | None:
        """What a restarted autoscaler needs in order to go on; None, as is logged once, where a policy keeps what is no JSON."""
        try:
            return {"state": state_to_json(self.state), "desired": self.desired, "windows": self.windows.to_json()}
        except Exception as error:  # noqa: BLE001 - a third party's policy may keep anything
            if not self._reported:
                self._reported = True
                _LOG.warning("%s: what is known of it is neither kept nor handed on: %s", self.function, told(error))
            return None

    def restore(self, document: JsonObject, shift_s: float) -> None:
        """Go on from a saved runner whose clock must be moved by `shift_s`."""
        state = state_from_json(cast("JsonObject", document["state"]), shift_s)
        windows = LoadWindows.from_json(cast("JsonObject", document["windows"]), origin_s=self._origin_s)
        desired = document["desired"]
        self.state, self.windows = state, windows
        self.desired = int(desired) if isinstance(desired, int | float) else None

    def _choose(self, settings: Settings) -> None:
        self._settings = settings
        self._failures, self._instead, self._replaced, self.overflow = 0, "", None, 0.0
        self.windows.keep_at_least(settings.stable_window_s)
        try:
            self._policy = scaling_policy(settings.autoscaler, settings, self._policies)
        except Exception as error:  # noqa: BLE001 - a third party's maker may raise anything
            self._fall_back(f"{settings.autoscaler} cannot be used, fixed instead ({told(error)})", settings)
        else:
            self.policy_name = self._policy.name
        # A policy that drops what it cannot read keeps the rest of its state; a new period begins now.
        self._next_s = float("-inf")

    def _stand_in(self, failed: Question, error: str) -> None:
        """`fixed` decides until the back-off of the policy that failed is over. What that one remembers is kept for it."""
        before = self._replaced
        wait_s = FIRST_RETRY_S if before is None else min(2.0 * before.wait_s, LONGEST_RETRY_S)
        self._replaced = _Replaced(failed.policy, failed.state, failed.seen.now_s + wait_s, wait_s)
        why = f"{self.policy_name} failed {FAILURES_BEFORE_FIXED} times, fixed instead ({error})"
        if before is not None:
            why = f"{self.policy_name} failed again, fixed instead for {wait_s:g} s ({error})"
        self._fall_back(why, failed.seen.settings)

    def _try_again(self, replaced: _Replaced) -> None:
        """Ask the policy that failed once more; one more failure makes `fixed` stand in for longer."""
        self._policy, self.policy_name, self.state = replaced.policy, replaced.policy.name, replaced.state
        self._failures, self._instead = FAILURES_BEFORE_FIXED - 1, ""
        self._next_s = float("-inf")

    def _fall_back(self, why: str, settings: Settings) -> None:
        self._policy = BUILT_IN["fixed"].make(settings)
        self.policy_name = self._policy.name
        self.state, self.overflow = PolicyState(), 0.0
        self._instead = f"{why}: "
        # A faulty policy must not take instances away: what it had wished for last is held, as if an operator asked.
        self._requested = self.desired
        self._next_s = float("-inf")

    def _restrained(self, now_s: float, decision: Decision) -> Decision:
        """The decision without what would start a broken instance again too soon."""
        self.held_back = ""
        for starts, creation in ((self._starts, CreateBody | PromoteShadow), (self._shadow_starts, CreateShadow)):
            starts.begin()
            kept = tuple(action for action in decision.actions if not isinstance(action, creation))
            if now_s < starts.wait_until_s and len(kept) < len(decision.actions):
                self.held_back = starts.row
                decision = replace(decision, actions=kept)
        self._starts.dismiss(action.id for action in decision.actions if isinstance(action, DestroyBody))
        self._shadow_starts.dismiss(action.id for action in decision.actions if isinstance(action, DestroyShadow | PromoteShadow))
        return decision


def _live(load: FunctionLoad) -> list[Instance]:
    """Bodies that serve or are about to."""
    return [one for one in newest(load.instances) if one.kind is InstanceKind.BODY and one.state in LIVE]


def told(error: Exception) -> str:
    """An error as a part of a reason."""
    return str(error) if isinstance(error, GnomonError) else f"{type(error).__name__}: {error}"
