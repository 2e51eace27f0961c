"""The day under the policy: it is shown what arrives, second by second in virtual time, and its plans are carried out at once.

It is the very policy that functions name, asked once a second as it is live; an instance serves `START_S` after it was asked for.
Beside it stands the same policy with its test for changes left out, so that a plan holds for an hour. Every request then goes
through the buffer whose (B, T) changes when the policy says so and, where instances are held, through as many as there were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.twitter_day.cases import HOUR_S, INSTANCE_MB, LOOK_S, PERCENT, Case, arrivals, counted
from gnomon_autoscaler.policies.batch.policy import Batch
from gnomon_autoscaler.registry import BUILT_IN
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.scaling import History, Observation, PolicyState, SetBufferPlan
from gnomon_core.seams import ScalingPolicy
from gnomon_core.settings import Settings
from gnomon_simulator.buffer import Bounds, rebuffered
from gnomon_simulator.held import instance_waits

START_S = 1.0
KEEP = 60
ROUNDING = 1e-9
FUNCTION = "f.openfaas-fn"
MODES: dict[str, Callable[[Settings], ScalingPolicy]] = {
    "on change": BUILT_IN["batch"].make,
    "hourly": lambda settings: Batch("batch", settings, rule=None),
}


@dataclass(frozen=True, slots=True)
class Followed:
    """What the policy said and when: bounds, the number of instances ready, and how many are paid for at each look."""

    bounds: tuple[Bounds, ...]
    ready: tuple[tuple[float, int], ...]
    paid: tuple[int, ...]
    planned_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Hour:
    """One hour of a day: the share of requests within the SLO, the percentile, and the price of a request."""

    hour: int
    requests: int
    within: float
    percentile_s: float
    usd_per_request: float
    plans: int
    mean_batch: float
    instances: float

    @property
    def met(self) -> bool:
        """Whether the percentile is within the SLO."""
        return self.within >= PERCENT / 100.0


def followed(case: Case, mode: str, until_s: float) -> Followed:
    """The policy's day until then."""
    policy, state, looks = MODES[mode](case.settings), PolicyState(), counted()[: round(until_s / LOOK_S)]
    latency_s = tuple(case.service_s.tolist())
    bounds, planned_s, paid = [Bounds(-math.inf, case.max_batch, 0.0)], [], [1]
    for number in range(1, len(looks) + 1):
        now_s = number * LOOK_S
        history = History(LOOK_S, now_s, looks[max(0, number - KEEP) : number])
        seen = Observation(
            now_s, FUNCTION, case.settings, _instances(paid[-1]), (), queued=0, executing=0, oldest_wait_s=0.0,
            last_request_s=now_s, history=history, latency_s=latency_s,
        )  # fmt: skip
        decision, state = policy.decide(seen, state)
        buffers = [action for action in decision.actions if isinstance(action, SetBufferPlan)]
        bounds += [Bounds(now_s, each.max_batch, each.max_wait_s) for each in buffers]
        paid.append(decision.desired or 1)
        plan = state.values.get("plan")
        if isinstance(plan, Mapping) and plan["planned_at_s"] == now_s:
            planned_s.append(now_s)
    return Followed(tuple(bounds), tuple(_ready(paid)), tuple(paid[:-1]), tuple(planned_s))


def _ready(paid: Sequence[int]) -> Iterator[tuple[float, int]]:
    """How many instances serve from when on: those that are paid for now and were `START_S` ago."""
    late = round(START_S / LOOK_S)
    last = 0
    for number, count in enumerate(paid):
        serving = min(count, paid[max(0, number - late)])
        if serving != last:
            yield number * LOOK_S, serving
        last = serving


@cache
def _instances(count: int) -> tuple[Instance, ...]:
    made = (f"i-{number}" for number in range(count))
    return tuple(
        Instance(name, FUNCTION, 1, "node-1", 1, INSTANCE_MB * 2**20, InstanceState.READY, started_s=0.0) for name in made
    )


def hours(case: Case, mode: str, judged: Sequence[int]) -> list[Hour]:
    """What happened to the requests of each of these hours, after all that came before."""
    until_s = (max(judged) + 1) * HOUR_S
    plans, times = followed(case, mode, until_s), arrivals()
    times = times[: int(np.searchsorted(times, until_s))]
    run = rebuffered(times, plans.bounds)
    opened_s, sizes = times[run.first], run.sizes[run.first]
    latency_s = run.latency_s(case.service_s)
    if case.held:
        sent_s = opened_s + run.wait_s[run.first]
        waits = instance_waits(sent_s, case.service_s[sizes - 1], plans.ready)
        latency_s = latency_s + np.repeat(waits, sizes)
    planned_s, paid = np.array(plans.planned_s), np.array(plans.paid)
    found = []
    for hour in judged:
        begin_s, end_s = hour * HOUR_S, (hour + 1) * HOUR_S
        mine = latency_s[slice(*np.searchsorted(times, [begin_s, end_s]))]
        batches = sizes[slice(*np.searchsorted(opened_s, [begin_s, end_s]))]
        held = float(paid[round(begin_s / LOOK_S) : round(end_s / LOOK_S)].mean())
        usd = held * HOUR_S * case.usd_per_instance_s if case.held else float(case.usd_of_calls(batches).sum())
        found.append(
            Hour(
                hour,
                len(mine),
                float((mine <= case.slo_s + ROUNDING).mean()),
                float(np.quantile(mine, PERCENT / 100.0, method="inverted_cdf")),
                usd / len(mine),
                int(((planned_s >= begin_s) & (planned_s < end_s)).sum()),
                float(batches.mean()),
                held,
            )
        )
    return found
