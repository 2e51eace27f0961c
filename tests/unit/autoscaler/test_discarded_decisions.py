"""Answers of policies that come too late to mean anything: their function has gone meanwhile, or has another policy."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from gnomon_autoscaler.controller import Autoscaler
from gnomon_autoscaler.executor import Outcome, at_once
from gnomon_autoscaler.runner import Runner
from gnomon_autoscaler.testing import FUNCTION, MemoryFunction
from gnomon_core.scaling import FunctionLoad, LoadCounters
from gnomon_core.settings import ScaleSettings, Settings
from tests.unit.autoscaler.test_autoscaler_loop import Stage, running

T = TypeVar("T")


class Held:
    """An `Executor` whose answers come when the test lets them."""

    def __init__(self) -> None:
        self.answers: list[Callable[[], None]] = []

    def __call__(self, call: Callable[[], T], limit_s: float | None, then: Callable[[Outcome[T]], None]) -> None:
        self.answers.append(lambda: at_once(call, limit_s, then))


async def test_decision_for_a_removed_function_is_discarded() -> None:
    """It wanted five instances; the one that took its name in the meantime wants one."""
    stage, held = Stage(), Held()
    autoscaler = Autoscaler(stage.fleet, stage.clock, executor=held)
    stage.deploy(min=5)
    async with running(autoscaler):
        await stage.clock.advance(1)
        [late] = held.answers
        autoscaler.removed(FUNCTION)
        function: MemoryFunction = stage.deploy(min=1)
        autoscaler.redeployed(FUNCTION)
        await stage.clock.advance(0)
        late()
        await stage.clock.advance(1)
        assert function.instances == {}
        held.answers[-1]()
        await stage.clock.advance(0)
        assert len(function.instances) == 1


async def test_decision_under_old_settings_is_discarded() -> None:
    """The plan of a policy's buffer would be in force for good under the next policy, which plans none."""
    stage, held = Stage(), Held()
    autoscaler = Autoscaler(stage.fleet, stage.clock, executor=held)
    function = stage.deploy(min=5)
    async with running(autoscaler):
        await stage.clock.advance(1)
        [late] = held.answers
        function.settings = replace(function.settings, autoscaler="kpa", scale=ScaleSettings(min=1))
        await stage.clock.advance(1)
        late()
        await stage.clock.advance(1)
        assert function.instances == {}
        assert len(held.answers) == 2, "whoever is the policy by now has been asked"
        held.answers[-1]()
        await stage.clock.advance(0)
        assert len(function.instances) == 1


def test_manual_scale_is_repeated_after_a_dropped_answer() -> None:
    before, after = (
        FunctionLoad(Settings(autoscaler="openfaas", scale=ScaleSettings(max=most)), LoadCounters(), (), ()) for most in (9, 8)
    )
    runner = Runner(FUNCTION)
    runner.request(7)
    asked = runner.question(0.0, before)
    assert asked.seen.requested == 7
    runner.sample(0.5, after)
    assert runner.accept(asked, *asked.answer()).actions == ()
    again = runner.question(0.5, after)
    assert again.seen.requested == 7


def test_the_failure_of_a_policy_that_was_replaced_meanwhile_is_not_its_successors() -> None:
    def load(policy: str) -> FunctionLoad:
        return FunctionLoad(Settings(autoscaler=policy, scale=ScaleSettings(min=2)), LoadCounters(), (), ())

    runner = Runner(FUNCTION)
    asked = runner.question(0.0, load("openfaas"))
    assert asked is not None
    next_one = runner.question(0.5, load("kpa"))
    assert next_one is not None
    for _ in range(3):
        said = runner.fail("no answer within 1 s", asked).reason
    assert said == "openfaas decided by settings that have changed since; the decision is discarded"
    assert runner.policy_name == "kpa"
    assert runner.fail("no answer within 1 s", next_one).reason.startswith("kpa failed (1 of 3)")
