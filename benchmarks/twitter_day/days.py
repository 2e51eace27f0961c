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

from benchmarks.twitter_day.cases import HOUR_S, INSTANCE_MB, LOOK_S, PERCENT, Case, arrivals, counted, is_met
from gnomon_autoscaler.policies.batch.policy import Batch
from gnomon_autoscaler.registry import BUILT_IN
from gnomon_autoscaler.runner import state_from_json, state_to_json
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.interfaces import ScalingPolicy
from gnomon_core.json_types import JsonObject
from gnomon_core.scaling import History, Observation, PolicyState, SetBufferPlan
from gnomon_core.settings import Settings
from gnomon_planner.replay import Bounds, Indices, Vector, instance_waits, rebuffered

START_S = 1.0
KEEP = 60
FUNCTION = "f.openfaas-fn"
MODES: dict[str, Callable[[Settings], ScalingPolicy]] = {
    "on change": BUILT_IN["batch"].make,
    "hourly": lambda settings: Batch("batch", settings, rule=None),
}


@dataclass(frozen=True, slots=True)
class Followed:
    """What the policy said in one hour: bounds (since, B, T), instances paid for at each look, when it planned; and its state."""

    bounds: Sequence[tuple[float, int, float]]
    paid: Sequence[int]
    planned_s: Sequence[float]
    state: JsonObject


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
        return is_met(self.within)


def followed(case: Case, mode: str, hour: int, before: Followed | None) -> Followed:
    """The policy's next hour; its first one where there is none `before`."""
    policy, looks, latency_s = MODES[mode](case.settings), counted(), tuple(case.service_s.tolist())
    state = PolicyState() if before is None else state_from_json(before.state, 0.0)
    bounds: list[tuple[float, int, float]] = [] if before is not None else [(-math.inf, case.max_batch, 0.0)]
    planned_s, paid = [], [1 if before is None else before.paid[-1]]
    first, last = round(hour * HOUR_S / LOOK_S), round((hour + 1) * HOUR_S / LOOK_S)
    for number in range(first + 1, last + 1):
        now_s = number * LOOK_S
        history = History(LOOK_S, now_s, looks[max(0, number - KEEP) : number])
        seen = Observation(
            now_s, FUNCTION, case.settings, _instances(paid[-1]), (), queued=0, executing=0, oldest_wait_s=0.0,
            last_request_s=now_s, history=history, latency_s=latency_s,
        )  # fmt: skip
        decision, state = policy.decide(seen, state)
        buffers = [action for action in decision.actions if isinstance(action, SetBufferPlan)]
        bounds += [(now_s, each.max_batch, each.max_wait_s) for each in buffers]
        paid.append(decision.desired or 1)
        plan = state.values.get("plan")
        if isinstance(plan, Mapping) and plan["planned_at_s"] == now_s:
            planned_s.append(now_s)
    return Followed(bounds, paid[1:], planned_s, state_to_json(state))


def _ready(paid: Sequence[int]) -> Iterator[tuple[float, int]]:
    """How many instances serve from when on: those that are paid for now and were `START_S` ago; `paid` begins with second 0."""
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


def hours(case: Case, parts: Sequence[Followed], judged: Sequence[int]) -> list[Hour]:
    """What happened to the requests of each of these hours, with what the policy said from the first hour of the day on."""
    times = arrivals()[: int(np.searchsorted(arrivals(), len(parts) * HOUR_S))]
    run = rebuffered(times, [Bounds(*each) for part in parts for each in part.bounds])
    opened_s, sizes = times[run.first], run.sizes[run.first]
    latency_s = run.latency_s(case.service_s)
    paid = [1, *(count for part in parts for count in part.paid)]
    if case.held:
        sent_s = opened_s + run.wait_s[run.first]
        waits = instance_waits(sent_s, case.service_s[sizes - 1], tuple(_ready(paid)))
        latency_s = latency_s + np.repeat(waits, sizes)
    plans = [len(part.planned_s) for part in parts]
    held = np.mean(np.reshape(paid[:-1], (len(parts), -1)), axis=1).tolist()
    return [_judged(case, (hour, plans[hour], held[hour]), (times, latency_s), (opened_s, sizes)) for hour in judged]


def _judged(case: Case, said: tuple[int, int, float], requests: tuple[Vector, Vector], batches: tuple[Vector, Indices]) -> Hour:
    """An hour in which so many plans were made and so many instances held on average."""
    hour, plans, held = said
    begin_s, end_s = hour * HOUR_S, (hour + 1) * HOUR_S
    times, latency_s = requests
    opened_s, sizes = batches
    mine = latency_s[slice(*np.searchsorted(times, [begin_s, end_s]))]
    sizes = sizes[slice(*np.searchsorted(opened_s, [begin_s, end_s]))]
    usd = held * HOUR_S * case.usd_per_instance_s if case.held else float(case.usd_of_calls(sizes).sum())
    percentile_s = float(np.quantile(mine, PERCENT / 100.0, method="inverted_cdf"))
    return Hour(hour, len(mine), case.within(mine), percentile_s, usd / len(mine), plans, float(sizes.mean()), held)
