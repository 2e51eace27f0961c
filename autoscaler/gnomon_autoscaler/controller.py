"""The live loop of the autoscaler: one runner per function, called every bin and on pokes; the fleet carries out the decisions.

Every bin of the windows each function is sampled, and its policy is called if it is due: on the event loop if it decides within
microseconds, as most policies do that decide on a count alone, otherwise in a worker thread (`executor`). While a policy decides
or its decision is being carried out, the function is only sampled; a poke in between is remembered. One function's slow or
failing policy delays no other function.

**Idle functions are skipped** until an event wakes them: of hundreds of deployed functions most have had no request for minutes.
A function is idle if no request waits or executes and none arrived in all recorded history, if its instances are ready, and if
its policy has just decided to change nothing.

    the policy has decided ▶ skipped until its next period, before which it would not be called
                          └─▶ evaluated at the end of a long skip, it decides the same ▶ skipped for up to five minutes

The policy can be evaluated at a future time because it is a pure function of its observation, which differs only in the time. A
policy that is about to scale an idle function to zero decides otherwise there, and is called in its own period. Long skips have
different lengths, so that functions whose skips began together do not wake together.

The fleet gives an idle function a stamp: a value that changes with every event of the function. The function is observed again if
its stamp differs, if it is poked, and after the skip. The stamp is compared each bin, or once a period of a policy that decides
on a count.

**Busy functions.** Between two turns of its policy only the counters of a function are sampled, if nothing else has changed
(`CountingFleet`): the bins are as exact, for a tenth of the work. Where the policy decides on a count, they are not sampled
either. A function with requests in its windows gets no stamp.

**The decision log** keeps what was decided, when and why. A policy that decides every second and keeps deciding the same would
bury everything else; such a run of equal decisions is one record, with the reason for which it began. A record is one log line.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Protocol, TypeAlias, cast, runtime_checkable

from gnomon_autoscaler.executor import Executor, Outcome, Overrun, PolicyExecutor, at_once
from gnomon_autoscaler.registry import BUILT_IN, Policies
from gnomon_autoscaler.runner import PolicyCall, Runner, error_text
from gnomon_autoscaler.windows import BIN_S
from gnomon_core.clock import Clock, utc_now_s
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import InstanceState
from gnomon_core.json_types import JsonObject
from gnomon_core.scaling import (
    Action,
    Decision,
    DecisionRecord,
    FunctionLoad,
    LoadCounters,
    Observation,
    PolicyState,
    ScaledFleet,
    action_to_json,
)

LONG_SKIPS_S = (300.0, 30.0)
"""Horizons in seconds for which a policy is asked whether it would decide the same, the longest first."""
TOLERANCE_S = 1e-6
GOLDEN = 0.6180339887
"""The golden ratio less 1: the fractional parts of its multiples are spread evenly between 0 and 1, however many there are."""


@runtime_checkable
class StampingFleet(Protocol):
    """A `ScaledFleet` with a cheap change stamp per function."""

    def stamp(self, function: str) -> object:
        """A value that stays equal only while the function's settings, instances and requests are unchanged.

        It is quick to make and to compare.
        """
        ...


@runtime_checkable
class CountingFleet(Protocol):
    """A `ScaledFleet` that returns a function's counters without its instances, and a stamp of everything but the counters.

    It pokes the autoscaler when an instance of the function becomes ready or ends, and when its settings change.
    """

    def stamp_without_requests(self, function: str) -> object:
        """A value that stays equal only while the function's settings and instances are unchanged."""
        ...

    def counters(self, function: str) -> LoadCounters | None:
        """The `counters` part of `load` alone; None if the function has been removed."""
        ...


@dataclass(slots=True)
class IdleFunction:
    """An idle function: until when it is skipped, and its stamp and load at the last observation.

    The stamp was equal at `idle_s`, and is compared again after `check_s`. `call` is the policy's last call, from which a long
    skip is derived; None once it was.
    """

    stamp: object
    load: FunctionLoad
    since_s: float
    until_s: float
    idle_s: float
    check_s: float
    call: PolicyCall | None

    @property
    def check_at_s(self) -> float:
        """The time at which the stamp is compared next."""
        # Half a bin: a tick may come a little earlier in its bin than the one that it is compared with.
        return self.idle_s + self.check_s - 0.5 * BIN_S


class IdleFunctions:
    """The functions that are idle and skipped; none if the fleet has no change stamps."""

    def __init__(self, fleet: object) -> None:
        self._fleet = fleet if isinstance(fleet, StampingFleet) else None
        self._skipped: dict[str, IdleFunction] = {}
        self._new: list[str] = []
        self._numbers = itertools.count()

    def skipped_until_s(self, function: str, now_s: float) -> float:
        """The time until which the function need not be visited, unless it is poked; 0 if it is not skipped now."""
        idle = self._skipped.get(function)
        if idle is None or self._fleet is None or now_s >= idle.until_s - TOLERANCE_S:
            return 0.0
        if now_s >= idle.check_at_s:
            if idle.stamp != self._fleet.stamp(function):
                return 0.0
            idle.idle_s = now_s
        return min(idle.until_s - TOLERANCE_S, idle.check_at_s)

    def __contains__(self, function: str) -> bool:
        """Return whether the function is skipped, or was until an event."""
        return function in self._skipped

    def wake(self, function: str) -> IdleFunction | None:
        """Stop skipping the function. Returns what was known of it during that time, None if it was not skipped."""
        return self._skipped.pop(function, None)

    def stamp(self, function: str) -> object:
        """The function's stamp. Taken before the function is observed, so that an event between the two counts as new."""
        return None if self._fleet is None else self._fleet.stamp(function)

    def skip(self, function: str, stamp: object, load: FunctionLoad, call: PolicyCall, until_s: float) -> None:
        """Skip the function until `until_s` if its stamp is unchanged; `lengthen` may extend that."""
        if self._fleet is not None and self._fleet.stamp(function) == stamp:
            now_s = call.observation.now_s
            # A policy that decides on a count is not asked between its turns, whatever arrives.
            check_s = call.policy.period_s if call.is_quick else 0.0
            self._skipped[function] = IdleFunction(stamp, load, now_s, until_s, now_s, check_s, call)
            self._new.append(function)

    def take_new(self) -> list[tuple[str, IdleFunction]]:
        """The functions that were skipped since the last call and still are."""
        names, self._new = self._new, []
        return [(name, idle) for name in names if (idle := self._skipped.get(name)) is not None and idle.call is not None]

    def lengthen(self, function: str, idle: IdleFunction, longer_s: float) -> None:
        """Extend the skip to a turn of the function's policy in the second half of `longer_s`."""
        if self._skipped.get(function) is idle and idle.call is not None:
            # Different lengths: functions that were deployed together must not wake together.
            share = 0.5 + 0.5 * (next(self._numbers) * GOLDEN % 1.0)
            period_s = idle.call.policy.period_s
            turns = math.floor((idle.since_s + longer_s * share - idle.until_s) / period_s)
            idle.until_s += max(0, turns) * period_s
            idle.call = None

    def forget(self, function: str) -> None:
        """Drop a removed function."""
        self._skipped.pop(function, None)


def is_idle(observation: Observation, decision: Decision) -> bool:
    """Return whether a function is idle, and its policy changes nothing."""
    history = observation.history
    return (
        not decision.actions
        and not (observation.queued or observation.executing)
        and observation.requested is None
        and (decision.desired is None or decision.desired == len(observation.live))
        and all(instance.state is InstanceState.READY for instance in observation.instances)
        and not (any(history.arrivals) or any(history.successes) or any(history.concurrency) or any(history.busy_cores))
    )


def longest_skip_s(call: PolicyCall, state: PolicyState, desired: int | None) -> float:
    """The seconds for which the policy's decision stays the same without an event; 0 below half a minute. Pure."""
    for skip_s in LONG_SKIPS_S:
        later = replace(call.observation, now_s=call.observation.now_s + skip_s)
        decision, _ = PolicyCall(call.policy, later, state).execute()
        if not decision.actions and decision.desired == desired:
            return skip_s
    return 0.0


KEEP = 1000
"""The number of decisions that are kept for each function."""

log = logging.getLogger("gnomon.autoscaler")


class DecisionLog:
    """The last decisions of one function."""

    def __init__(self, function: str, keep: int = KEEP) -> None:
        self.total = 0
        """The number of all decisions, repeated and dropped ones included."""
        self._function = function
        self._records: deque[DecisionRecord] = deque(maxlen=keep)
        self._repeated_at = 0.0
        self._repeats = 0
        """Repetitions of the last record that are not in it yet: nearly all of hundreds of decisions a second are repetitions."""

    def add(self, at: float, policy: str, decision: Decision, error: str = "") -> None:
        """Record a decision, or count a repetition of the last one."""
        self.total += 1
        if self._records and _same(self._records[-1], policy, decision, error):
            self._repeated_at = at
            self._repeats += 1
            return
        self._add_repetitions()
        record = DecisionRecord(at, policy, decision.desired, decision.actions, decision.reason, error, at)
        self._records.append(record)
        _log_record(self._function, record)

    def latest(self, limit: int) -> list[DecisionRecord]:
        """The last decisions, the newest first."""
        self._add_repetitions()
        return list(islice(reversed(self._records), max(0, limit)))

    def _add_repetitions(self) -> None:
        """Bring the last record up to date."""
        if self._repeats:
            last = self._records[-1]
            self._records[-1] = replace(last, last_at=self._repeated_at, repeats=last.repeats + self._repeats)
            self._repeats = 0


def _same(last: DecisionRecord, policy: str, decision: Decision, error: str) -> bool:
    if decision.actions and not (error and decision.actions == last.actions):
        return False
    return last.policy == policy and last.desired == decision.desired and last.error == error


def _log_record(function: str, record: DecisionRecord) -> None:
    """Format a decision as one line: function, actions, policy and reason; the error if the reason does not state it."""
    actions = _actions_text(record.actions) or "no change"
    error = f"; {record.error}" if record.error and record.error not in record.reason else ""
    level = logging.WARNING if record.error else logging.INFO
    log.log(level, "%s: %s, by policy %s: %s%s", function, actions, record.policy, record.reason, error)


def _actions_text(actions: Sequence[Action]) -> str:
    """Format a decision's actions. Those that differ in nothing but the node are counted: a burst creates a hundred Bodies."""
    alike: dict[str, list[str]] = {}
    for action in actions:
        alike.setdefault(_action_text(action, without="node"), []).append(_action_text(action))
    counted = [(len(texts), texts[0] if len(set(texts)) == 1 else text) for text, texts in alike.items()]
    return "; ".join(text if count == 1 else f"{count} × {text}" for count, text in counted)


def _action_text(action: Action, without: str = "") -> str:
    fields = [name for name in action_to_json(action) if name not in ("action", without)]
    return f"{type(action).__name__}({', '.join(f'{name}={getattr(action, name)}' for name in fields)})"


DECIDE_LIMIT_S = 1.0
"""The limit of CPU time for one decision of a third party's policy. Tests hold the built-in policies to it."""
FUNCTIONS_AT_ONCE = 25
"""The number of functions that are observed before the loop yields to other tasks: some milliseconds."""
STATE_VERSION = 1

PolicyResult: TypeAlias = tuple[Decision, PolicyState]


@dataclass(slots=True)
class Step:
    """A step for one function: the work to do, its runner, and the stamp and load under which the function was observed.

    The stamp is None if the function had requests lately: it cannot be skipped then, and a stamp costs a tenth of an observation.
    """

    function: str
    runner: Runner
    work: PolicyCall | Decision
    stamp: object
    load: FunctionLoad


class Autoscaler:
    """Observes a fleet, asks its policies and carries out their decisions. Everything is called on the event loop."""

    def __init__(
        self,
        fleet: ScaledFleet,
        clock: Clock,
        *,
        policies: Policies = BUILT_IN,
        limit_s: float = DECIDE_LIMIT_S,
        executor: Executor | None = None,
        stamp_s: Callable[[], float] = utc_now_s,
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._policies = policies
        self._limit_s = limit_s
        self._executor = executor or PolicyExecutor()
        # A hand-over to a thread and back costs as much as most decisions, and frees nothing: both hold the interpreter's lock.
        self._quick_executor: Executor = executor or at_once
        self._stamp_s = stamp_s
        self._origin_s = clock.now_s()
        self._runners: dict[str, Runner] = {}
        self._logs: dict[str, DecisionLog] = {}
        self._steps: dict[str, asyncio.Task[None] | None] = {}
        """The step of each function that is under way: the task that carries its decision out, None while its policy decides."""
        self._poked: set[str] = set()
        self._poked_during_step: set[str] = set()
        self._saved: dict[str, tuple[JsonObject, float]] = {}
        self._idle = IdleFunctions(fleet)
        self._visit_s: dict[str, float] = {}
        """Before this time a tick need not visit the function: it is idle, or between two turns of a policy that decides on a
        count. An observation and the end of a step remove the entry."""
        self._counting = fleet if isinstance(fleet, CountingFleet) else None
        self._ended = False

    async def run(self) -> None:
        """Observe every function each bin, until cancelled."""
        self._ended = False
        try:
            while True:
                await self._tick()
                # Ticks keep their phase, so that each observation falls on the end of a bin.
                await self._clock.sleep(BIN_S - (self._clock.now_s() - self._origin_s) % BIN_S)
        finally:
            self._ended = True
            steps = [step for step in self._steps.values() if step is not None]
            for step in steps:
                step.cancel()
            await asyncio.gather(*steps, return_exceptions=True)

    def poke(self, function: str) -> None:
        """Observe the function now: a request waits and no instance is live, or its settings changed."""
        if function not in self._poked:
            self._poked.add(function)
            asyncio.get_running_loop().call_soon(self._poke, function)

    def request(self, function: str, instances: int) -> None:
        """Set the number of instances that an operator requests."""
        self._runner(function).request(instances)
        self.poke(function)

    def redeployed(self, function: str) -> None:
        """Reset the start back-off of a function that was deployed again."""
        self._runner(function).reset_start_backoff()
        self.poke(function)

    def served(self, function: str) -> None:
        """Reset the start back-off: an instance that had answered has ended, so the function is known to start."""
        self._runner(function).reset_start_backoff()

    def start_backoff_s(self, function: str) -> float:
        """Seconds until the function's next instance may start, after failed starts; 0 where it may now."""
        runner = self._runners.get(function)
        return runner.start_backoff_s(self._clock.now_s()) if runner else 0.0

    def removed(self, function: str) -> None:
        """Discard the state of a removed function, so that a new function of its name starts without any."""
        self._runners.pop(function, None)
        self._logs.pop(function, None)
        self._saved.pop(function, None)
        self._idle.forget(function)
        self._visit_s.pop(function, None)

    def decisions(self, function: str, limit: int = 100) -> list[DecisionRecord]:
        """The function's last decisions, the newest first."""
        known = self._logs.get(function)
        return known.latest(limit) if known else []

    def decided(self, function: str) -> int:
        """The number of decisions so far."""
        known = self._logs.get(function)
        return known.total if known else 0

    def desired(self, function: str) -> int | None:
        """The number of instances by the last decision; None before the first, or if the policy states no number."""
        runner = self._runners.get(function)
        return runner.desired if runner else None

    def known(self) -> list[str]:
        """The functions with recorded state."""
        return sorted(self._runners)

    def export_state(self, functions: Collection[str] | None = None) -> JsonObject:
        """Windows and policy states as JSON for another autoscaler; of these functions, or of all.

        A function whose state is not JSON is left out.
        """
        wanted = self._runners.keys() if functions is None else self._runners.keys() & functions
        states = {name: state for name in wanted if (state := self._runners[name].to_json()) is not None}
        return {"version": STATE_VERSION, "saved_at": self._stamp_s(), "clock_s": self._clock.now_s(), "functions": states}

    def import_state(self, document: JsonObject) -> None:
        """Restore an exported state. An entry that cannot be read is logged and skipped."""
        if document.get("version") != STATE_VERSION:
            log.warning(
                "the saved autoscaler state has version %s, not %s: starting afresh", document.get("version"), STATE_VERSION
            )
            return
        away_s = max(0.0, self._stamp_s() - cast("float", document["saved_at"]))
        shift_s = self._clock.now_s() - away_s - cast("float", document["clock_s"])
        functions = cast("Mapping[str, JsonObject]", document["functions"])
        self._saved |= {function: (saved, shift_s) for function, saved in functions.items()}

    async def _tick(self) -> None:
        functions = self._fleet.functions()
        for function in self._runners.keys() - set(functions):
            self.removed(function)
        now_s = self._clock.now_s()
        self._lengthen_skips()
        for number, function in enumerate(functions, start=1):
            if now_s >= self._visit_s.get(function, now_s):
                self._visit(function, now_s)
            if number % FUNCTIONS_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _visit(self, function: str, now_s: float) -> None:
        """Observe the function, unless it is idle or its counters are enough."""
        try:
            until_s = self._idle.skipped_until_s(function, now_s)
            if until_s:
                self._visit_s[function] = until_s
                return
            if self._count_requests(function):
                return
        except Exception:
            log.exception("Internal error while reading the counters of function %s", function)
        self._try_to_observe(function)

    def _poke(self, function: str) -> None:
        self._poked.discard(function)
        if function in self._steps:
            self._poked_during_step.add(function)
        self._try_to_observe(function)

    def _count_requests(self, function: str) -> bool:
        """Sample at most a function's counters, between two turns of its policy; False if a full observation is needed."""
        runner = self._runners.get(function)
        now_s = self._clock.now_s()
        if self._counting is None or runner is None or not runner.between_turns(now_s) or function in self._idle:
            return False
        if runner.needs_no_sample:
            # Half a bin: a function is visited at a later time in each tick than the tick's own.
            self._visit_s[function] = runner.next_s - 0.5 * BIN_S
            return True
        stamp, counters = self._counting.stamp_without_requests(function), self._counting.counters(function)
        return counters is not None and runner.record_counters(now_s, counters, stamp)

    def _try_to_observe(self, function: str) -> None:
        """Observe a function and take the step that is due."""
        try:
            self._observe(function)
        except Exception:
            # Whatever is wrong with one function must not stop the others.
            log.exception("Internal error while observing function %s", function)

    def _observe(self, function: str) -> None:
        runner = self._runners.get(function)
        self._visit_s.pop(function, None)
        stamp = self._idle.stamp(function) if runner is None or runner.windows.is_empty else None
        without_requests = None if self._counting is None else self._counting.stamp_without_requests(function)
        load = self._fleet.load(function)
        if load is None:
            return
        runner, now_s = runner or self._runner(function), self._clock.now_s()
        idle = self._idle.wake(function)
        if idle is not None:
            # Closes the skip's time as idle: later requests are not spread over the time of the whole skip.
            runner.sample(idle.idle_s, idle.load)
            runner.skipped(idle.idle_s)
        runner.sample(now_s, load, without_requests)
        if function in self._steps:
            return
        work: PolicyCall | Decision | None = runner.due_call(now_s, load) or runner.replacement(now_s, load)
        if work is None:
            return
        self._steps[function] = None
        step = Step(function, runner, work, stamp, load)
        if isinstance(work, PolicyCall):
            executor = self._quick_executor if work.is_quick else self._executor
            executor(work.execute, self._limit_of(work), partial(self._policy_returned, step))
        else:
            self._apply(step, work, "")

    def _limit_of(self, call: PolicyCall) -> float | None:
        return self._limit_s if call.third_party else None

    def _policy_returned(self, step: Step, outcome: Outcome[PolicyResult]) -> None:
        """Accept a policy's decision; after a failure the last decision stays in force."""
        if self._ended:
            return
        runner, call = step.runner, cast("PolicyCall", step.work)
        if self._runners.get(step.function) is not runner:
            # The function was removed during the decision. A new one of the same name must not get this decision.
            self._finish(step, Decision((), ""), "")
            return
        try:
            decision, state = outcome()
        except Exception as failed:  # noqa: BLE001 - whatever a policy raises
            error = str(failed) if isinstance(failed, Overrun) else error_text(failed)
            self._apply(step, runner.fail(error, call), error)
        else:
            decision = runner.accept(call, decision, state)
            self._apply(step, decision, runner.held_back)

    def _apply(self, step: Step, decision: Decision, error: str) -> None:
        """Carry a decision out. `error` says why the policy failed, or why only a part is carried out; "" if neither."""
        if not decision.actions:
            self._finish(step, decision, error)
            return
        work = self._carry_out(step, decision, error)
        self._steps[step.function] = asyncio.get_running_loop().create_task(work)

    async def _carry_out(self, step: Step, decision: Decision, error: str) -> None:
        try:
            await self._fleet.apply(step.function, decision.actions)
        except GnomonError as refused:
            error = f"{refused.code}: {refused}"
            step.runner.refused(self._clock.now_s(), refused)
        except Exception as failed:
            error = error_text(failed)
            log.exception("Internal error while carrying out the decision for function %s", step.function)
            step.runner.refused(self._clock.now_s(), failed)
        else:
            step.runner.carried_out(decision)
        finally:
            self._finish(step, decision, error)

    def _finish(self, step: Step, decision: Decision, error: str) -> None:
        """End a step. The function is observed again if it was poked meanwhile, and skipped if it is idle."""
        function, runner = step.function, step.runner
        self._steps.pop(function, None)
        self._visit_s.pop(function, None)
        if self._ended:
            return
        again = function in self._poked_during_step
        self._poked_during_step.discard(function)
        if self._runners.get(function) is runner:
            self._log(function).add(self._stamp_s(), runner.policy_name, decision, error)
            call, disturbed = step.work, bool(error) or again
            if step.stamp is not None and not disturbed and isinstance(call, PolicyCall) and is_idle(call.observation, decision):
                self._idle.skip(function, step.stamp, step.load, call, runner.next_s)
        if again:
            self._try_to_observe(function)

    def _lengthen_skips(self) -> None:
        """Ask the policies of newly skipped functions whether these may be skipped for longer."""
        for function, idle in self._idle.take_new():
            runner = self._runners.get(function)
            if runner is not None and idle.call is not None:
                skip = partial(longest_skip_s, idle.call, runner.state, runner.desired)
                self._executor(skip, self._limit_of(idle.call), partial(self._lengthen_skip, function, idle))

    def _lengthen_skip(self, function: str, idle: IdleFunction, outcome: Outcome[float]) -> None:
        try:
            longer_s = outcome()
        except Exception:  # noqa: BLE001 - the policy is called again in its own period, and its failure reported then
            return
        if longer_s:
            self._idle.lengthen(function, idle, longer_s)

    def _runner(self, function: str) -> Runner:
        runner = self._runners.get(function)
        if runner is None:
            runner = self._runners[function] = Runner(function, self._policies, self._origin_s)
            saved = self._saved.pop(function, None)
            if saved is not None:
                try:
                    runner.restore(*saved)
                except (KeyError, TypeError, ValueError):
                    log.warning("%s: the saved autoscaler state cannot be read: starting afresh", function)
        return runner

    def _log(self, function: str) -> DecisionLog:
        found = self._logs.get(function)
        if found is None:
            found = self._logs[function] = DecisionLog(function)
        return found
