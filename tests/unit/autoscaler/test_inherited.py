"""What a new leader does with the instances that it finds: its windows know nothing of the load that they are for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gnomon_autoscaler.registry import BUILT_IN
from gnomon_autoscaler.runner import Runner
from gnomon_core.fleet import InstanceKind
from gnomon_core.pairs import Pair
from gnomon_core.scaling import DestroyBody, DestroyShadow, FunctionLoad, LoadCounters
from gnomon_core.settings import ScaleSettings, Settings
from tests.unit.autoscaler.asyfunc_stage import LATENCY_S, PROFILE, body, node

SCALE = ScaleSettings(min=1, max=6)
PAIR = Pair(1, (0,), (0, 1, 1, 2, 2, 3, 3, 4))
SHADOW = body("s1", kind=InstanceKind.SHADOW, partner="b1", pair=PAIR)
FOUND = (replace(body("b1"), partner="s1", pair=PAIR), body("b2"), body("b3"), SHADOW)


def load(policy: str, rps: float, now_s: float, requested: int | None = None) -> FunctionLoad:
    """Three Bodies and a Shadow, as they are found and stay; so much has come since."""
    settings = Settings(autoscaler=policy, slo_s=1.0, max_batch=8, max_cores=1, scale=SCALE)
    come = int(rps * now_s)
    counters = LoadCounters(come, come, 3.0 * now_s, 3.0 * now_s, 0, 3, 0.0, now_s)
    return FunctionLoad(settings, counters, FOUND, (node(),), LATENCY_S, requested, PROFILE)


def played(runner: Runner, policy: str, rps: float, until_s: float, *, from_s: float = 0.0) -> list[tuple[float, type]]:
    """What was decided to end, and when."""
    ended: list[tuple[float, type]] = []
    for tick in range(round(2 * from_s), round(2 * until_s) + 1):
        now_s = tick / 2
        decision = runner.tick(now_s, load(policy, rps, now_s))
        actions = decision.actions if decision is not None else ()
        ended += [(now_s, type(action)) for action in actions if isinstance(action, DestroyBody | DestroyShadow)]
    return ended


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_nothing_that_was_found_ends_before_its_load_is_known(policy: str) -> None:
    runner = Runner("f.ns", heir=True)
    assert played(runner, policy, 1.0, 59.5) == []
    assert runner.desired is None or runner.desired >= 3


@pytest.mark.parametrize("policy", ["asyfunc", "lv", "od", "openfaas"])
def test_what_is_superfluous_ends_once_it_is(policy: str) -> None:
    runner = Runner("f.ns", heir=True)
    assert {action for _, action in played(runner, policy, 1.0, 120.0)} >= {DestroyBody}


def test_it_says_why_it_waits() -> None:
    runner = Runner("f.ns", heir=True)
    runner.tick(0.0, load("asyfunc", 1.0, 0.0))
    why = "taken over: no instance ends before 60 s of load are recorded"
    assert runner.held_back == why
    played(runner, "asyfunc", 1.0, 30.0, from_s=0.5)
    assert runner.held_back == why, "one record for as long as it waits, not one each time"
    played(runner, "asyfunc", 1.0, 120.0, from_s=30.5)
    assert runner.held_back == ""


def test_what_an_operator_asks_for_holds_at_once() -> None:
    runner = Runner("f.ns", heir=True)
    played(runner, "fixed", 1.0, 1.0)
    decision = runner.tick(1.5, load("fixed", 1.0, 1.5, requested=1))
    assert decision is not None
    assert sum(isinstance(action, DestroyBody) for action in decision.actions) == 2


def test_a_function_that_begins_here_is_nobodys_heir() -> None:
    runner = Runner("f.ns", heir=True)
    runner.tick(0.0, replace(load("lv", 0.0, 0.0), instances=()))
    assert played(runner, "lv", 1.0, 59.5, from_s=0.5)
