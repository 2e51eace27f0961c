"""The live loop: one runner per function, ticks, pokes, and carrying out what was decided. It knows no formula.

Every bin of the windows each function is looked at: a sample is taken, and if it is time its policy is asked beside the event
loop. While a policy thinks or its decision is being carried out, the function is only sampled; a poke in between is remembered.
One function's slow or failing policy holds up no other function.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import cast

from gnomon_autoscaler.beside import Caller, Overrun, beside
from gnomon_autoscaler.decisions import DecisionLog, DecisionRecord
from gnomon_autoscaler.registry import BUILT_IN, Policies
from gnomon_autoscaler.runner import Question, Runner, told
from gnomon_autoscaler.windows import BIN_S
from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError
from gnomon_core.json_types import JsonObject
from gnomon_core.scaling import Decision, ScaledFleet

DECIDE_LIMIT_S = 1.0
STATE_VERSION = 1

log = logging.getLogger("gnomon.autoscaler")


def utc_now_s() -> float:
    """Seconds since 1970, for date stamps only."""
    return datetime.now(UTC).timestamp()


class Autoscaler:
    """Observes a fleet, asks its policies and carries out their decisions. Everything is called on the event loop."""

    def __init__(
        self,
        fleet: ScaledFleet,
        clock: Clock,
        *,
        policies: Policies = BUILT_IN,
        limit_s: float = DECIDE_LIMIT_S,
        caller: Caller = beside,
        stamp_s: Callable[[], float] = utc_now_s,
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._policies = policies
        self._limit_s = limit_s
        self._caller = caller
        self._stamp_s = stamp_s
        self._origin_s = clock.now_s()
        self._runners: dict[str, Runner] = {}
        self._logs: dict[str, DecisionLog] = {}
        self._steps: dict[str, asyncio.Task[None]] = {}
        self._poked: set[str] = set()
        self._again: set[str] = set()
        self._saved: dict[str, tuple[JsonObject, float]] = {}

    async def run(self) -> None:
        """Look at every function each bin, until cancelled."""
        try:
            while True:
                self._turn()
                # The rhythm is kept, so that bins end when they are looked at.
                await self._clock.sleep(BIN_S - (self._clock.now_s() - self._origin_s) % BIN_S)
        finally:
            steps = list(self._steps.values())
            for step in steps:
                step.cancel()
            await asyncio.gather(*steps, return_exceptions=True)

    def poke(self, function: str) -> None:
        """Look at the function now: a request waits and nothing lives, or its settings changed."""
        if function not in self._poked:
            self._poked.add(function)
            asyncio.get_running_loop().call_soon(self._poke, function)

    def request(self, function: str, instances: int) -> None:
        """An operator asks for so many instances."""
        self._runner(function).request(instances)
        self.poke(function)

    def redeployed(self, function: str) -> None:
        """The function was deployed again: failed starts of the past are forgiven."""
        self._runner(function).forgive()
        self.poke(function)

    def served(self, function: str) -> None:
        """An instance that had answered has ended: whatever ended it, the function does start."""
        self._runner(function).forgive()

    def removed(self, function: str) -> None:
        """The function is gone: one by the same name begins with nothing."""
        self._runners.pop(function, None)
        self._logs.pop(function, None)

    def decisions(self, function: str, limit: int = 100) -> list[DecisionRecord]:
        """The function's last decisions, the newest first."""
        known = self._logs.get(function)
        return known.latest(limit) if known else []

    def decided(self, function: str) -> int:
        """How many decisions there have been."""
        known = self._logs.get(function)
        return known.total if known else 0

    def desired(self, function: str) -> int | None:
        """How many instances the last decision wants; None before it or where the policy does not think in numbers."""
        runner = self._runners.get(function)
        return runner.desired if runner else None

    def export_state(self) -> JsonObject:
        """Windows and policy states as JSON, from which another autoscaler goes on."""
        return {
            "version": STATE_VERSION,
            "saved_at": self._stamp_s(),
            "clock_s": self._clock.now_s(),
            "functions": {function: runner.to_json() for function, runner in self._runners.items()},
        }

    def import_state(self, document: JsonObject) -> None:
        """Go on from an exported state. One that cannot be read is reported and left out."""
        if document.get("version") != STATE_VERSION:
            log.warning(
                "the saved autoscaler state has version %s, not %s: starting afresh", document.get("version"), STATE_VERSION
            )
            return
        away_s = max(0.0, self._stamp_s() - cast("float", document["saved_at"]))
        shift_s = self._clock.now_s() - away_s - cast("float", document["clock_s"])
        functions = cast("Mapping[str, JsonObject]", document["functions"])
        self._saved = {function: (saved, shift_s) for function, saved in functions.items()}

    def _turn(self) -> None:
        functions = self._fleet.functions()
        for function in self._runners.keys() - set(functions):
            self.removed(function)
        for function in functions:
            self._look(function)

    def _poke(self, function: str) -> None:
        self._poked.discard(function)
        if function in self._steps:
            self._again.add(function)
        self._look(function)

    def _done(self, function: str) -> None:
        self._steps.pop(function, None)
        if function in self._again:
            self._again.discard(function)
            self._look(function)

    def _look(self, function: str) -> None:
        try:
            self._look_at(function)
        except Exception:
            # Whatever is wrong with one function must not stop the others.
            log.exception("%s: cannot be observed", function)

    def _look_at(self, function: str) -> None:
        load = self._fleet.load(function)
        if load is None:
            return
        runner, now_s = self._runner(function), self._clock.now_s()
        runner.sample(now_s, load)
        if function in self._steps:
            return
        work: Question | Decision | None = runner.question(now_s, load) or runner.replacement(now_s, load)
        if work is not None:
            step = asyncio.get_running_loop().create_task(self._step(function, runner, work))
            self._steps[function] = step
            step.add_done_callback(lambda _: self._done(function))

    async def _step(self, function: str, runner: Runner, work: Question | Decision) -> None:
        decision, error = (work, "") if isinstance(work, Decision) else await self._decide(runner, work)
        if decision.actions:
            try:
                await self._fleet.apply(function, decision.actions)
            except GnomonError as refused:
                error = f"{refused.code}: {refused}"
                runner.refused(self._clock.now_s())
            except Exception as failed:
                error = told(failed)
                log.exception("%s: the decision could not be carried out", function)
                runner.refused(self._clock.now_s())
            else:
                runner.carried_out(decision)
        if self._runners.get(function) is runner:
            self._log(function).add(self._stamp_s(), runner.policy_name, decision, error)

    async def _decide(self, runner: Runner, asked: Question) -> tuple[Decision, str]:
        """The decision, and why the policy could not take one or why not all of it is carried out, if so."""
        try:
            decision, state = await self._caller(asked.answer, self._limit_s)
        except Exception as failed:  # noqa: BLE001 - whatever a policy raises leaves the last decision in force
            error = str(failed) if isinstance(failed, Overrun) else told(failed)
            return runner.fail(error), error
        return runner.accept(asked, decision, state), runner.held_back

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
        return self._logs.setdefault(function, DecisionLog(function))
