"""CPU time to decide for 1,000 functions for a second, and to choose a rule for a function of 10,000 Bodies.

    python -m benchmarks.decide [--quick] [--functions N] [--repeats N] [--policies NAME …]

Each function has ResNet50's profile, and Poisson arrivals at a rate of its own between 0.01 and 100 requests/s, evenly spread
over the logarithm. Five minutes of arrivals are known at the beginning. Decisions are carried out: a Body is ready two looks
after it was wanted. Only the CPU time in the policy counts; what it costs to sample counters and to carry out decisions stands in
no figure. A policy is asked in its own period. `gnomon` decides for Bodies that borrow their nodes' cores as well.

Nothing waits: what a queue adds to a decision is not measured.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.asyfunc_cluster import NODE_CORES, read_model
from benchmarks.programs import ROOT, pace_of, pace_parser, step
from benchmarks.report import Figure, measured, write
from gnomon_autoscaler.policies.gnomon.replay import Speed, cheapest, window
from gnomon_autoscaler.registry import BUILT_IN, scaling_policy
from gnomon_autoscaler.testing import Timeline
from gnomon_autoscaler.windows import BIN_S, KEEP_S
from gnomon_core.interfaces import ScalingPolicy
from gnomon_core.policy_registry import PolicyPlugin
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import Decision, LoadCounters, Observation, PolicyState
from gnomon_core.settings import ScaleSettings, Settings

FUNCTIONS, QUICK_FUNCTIONS = 1000, 20
REPEATS, ROUND_S, SETTLE_S = 5, 10.0, 20.0
LENT = "gnomon, lent cores"
POLICIES = ("gnomon", LENT, "asyfunc", "batch", "kpa", "od")
GOAL_MS = 20.0
BUSY_S = 0.05
"""Seconds that a request is in the system, and that it keeps a core busy."""
NODES = tuple((f"n{number}", NODE_CORES) for number in range(13))
SERIAL = 0.05
MANY = 10_000


class Timed:
    """A policy whose CPU time is counted."""

    def __init__(self, policy: ScalingPolicy) -> None:
        self._policy = policy
        self.spent_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def decide(self, seen: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        begun_s = time.process_time()
        decided = self._policy.decide(seen, state)
        self.spent_s += time.process_time() - begun_s
        return decided


class Loaded(Timeline):
    """A function under a Poisson process."""

    def __init__(self, policy: str, model: ModelProfile, rng: random.Random) -> None:
        lends = policy == LENT
        settings = Settings(
            autoscaler=policy.split(",", maxsplit=1)[0],
            slo_s=0.1 if lends else 0.25,
            max_batch=8,
            cores=16 if lends else 2,
            max_cores=NODE_CORES if lends else 2,
            scale=ScaleSettings(max=20),
        )
        self.timed = Timed(scaling_policy(settings.autoscaler, settings))
        policies = {**BUILT_IN, settings.autoscaler: PolicyPlugin(lambda _: self.timed, "The same, timed.")}
        self._drawn = np.random.default_rng(rng.randrange(2**32))
        self._mean = 10 ** rng.uniform(-2, 2) * BIN_S
        super().__init__(settings, policies=policies, nodes=NODES, start_s=2 * BIN_S, profile=model, lends=lends)
        arrived = 0
        for count in self._drawn.poisson(self._mean, round(KEEP_S / BIN_S)):
            arrived += int(count)
            self._ticks += 1
            self.now_s = self._ticks * BIN_S
            self.runner.windows.record(self.now_s, LoadCounters(arrived, arrived, BUSY_S * arrived, BUSY_S * arrived))
        self.totals, self.counted_s = (float(arrived), BUSY_S * arrived, BUSY_S * arrived), self.now_s

    def look(self) -> None:
        """The next half second."""
        self.rps = float(self._drawn.poisson(self._mean)) / BIN_S
        self.concurrency = self.busy_cores = BUSY_S * self.rps
        self._ticks += 1
        self.now_s = self._ticks * BIN_S
        self.tick()


def decided(policy: str, functions: int, repeats: int, round_s: float) -> Figure:
    """The CPU time of one policy for so many functions, in rounds of `round_s`."""
    step(f"{policy}: {functions} functions")
    rng = random.Random(1)
    model = read_model(ROOT / "profiles" / "resnet50.json", SERIAL)
    loaded = [Loaded(policy, model, rng) for _ in range(functions)]
    settle_looks, looks = round(SETTLE_S / BIN_S), round(round_s / BIN_S)
    spent_ms: list[float] = []
    for round_looks in (settle_looks, *[looks] * repeats):
        before_s = sum(function.timed.spent_s for function in loaded)
        for _ in range(round_looks):
            for function in loaded:
                function.look()
        spent_ms.append(1e3 * (sum(function.timed.spent_s for function in loaded) - before_s) / (round_looks * BIN_S))
    bodies = sum(function.live for function in loaded) / functions
    detail = f"{bodies:.2f} Bodies a function; asked every {loaded[0].timed.period_s:g} s"
    goal = GOAL_MS if policy.startswith("gnomon") and functions == FUNCTIONS else None
    return measured(f"{policy}: {functions} functions", spent_ms[1:], "ms of CPU a second", at_most=goal, detail=detail)


def rule_of_many(repeats: int) -> Figure:
    """The CPU time to choose a rule for bursts that 10,000 Bodies answer."""
    drawn = np.random.default_rng(1)
    rates_rps = [40_000.0 * (1 + (200 <= bin_ % 300 < 230)) for bin_ in range(round(KEEP_S / BIN_S))]
    recent = window([float(count) for count in drawn.poisson(BIN_S * np.asarray(rates_rps))], BIN_S, 0.8)
    spent_ms = []
    for _ in range(repeats):
        speed = Speed(tuple(10.0 * bodies for bodies in range(MANY + 1)), 0.2, 1.0)
        begun_s = time.process_time()
        rule = cheapest(recent, speed, 1.0, 0.001, most=MANY)
        spent_ms.append(1e3 * (time.process_time() - begun_s))
    detail = f"a floor of {rule.floor}, {rule.factor:g} × for {rule.hold_s:g} s"
    return measured(f"a rule for {MANY} Bodies", spent_ms, "ms of CPU", detail=detail)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--functions", type=int, help="how many")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="rounds of ten seconds each")
    parser.add_argument("--policies", nargs="*", default=POLICIES, choices=POLICIES, metavar="NAME", help="only these")
    options: argparse.Namespace = parser.parse_args(arguments)
    pace = pace_of(options)
    functions = options.functions or (QUICK_FUNCTIONS if pace.quick else FUNCTIONS)
    repeats = 2 if pace.quick else options.repeats
    figures = [decided(policy, functions, repeats, 1.0 if pace.quick else ROUND_S) for policy in options.policies]
    figures.append(rule_of_many(repeats))
    write("decide", figures, repeats=repeats, packages=("gnomon", "numpy"), folder=pace.results)


if __name__ == "__main__":
    main()
