"""Admission refuses only requests that no order of dispatch could answer in time, and none that an idle instance could."""

from collections.abc import Sequence
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon_core.pairs import Pair
from gnomon_core.profiles import LatencyTable
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_gateway.dispatch.dispatcher import Answer, Dispatcher, Effect, Send
from gnomon_gateway.dispatch.latency import GivenLatency
from gnomon_gateway.queueing.admission import Admission, BatchTimes, Capacity, Place
from gnomon_gateway.queueing.queue import FunctionQueue, LaneKey, Request
from gnomon_gateway.scheduling.registry import BUILT_IN, scheduling_policy
from gnomon_simulator.arrivals import poisson
from gnomon_simulator.events import stream
from gnomon_simulator.profiles import Profile
from gnomon_simulator.results import OK
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, simulate

LANE = LaneKey("events", "v")
CLOSE_S = 1e-5
"""So near to a deadline rounding decides."""


class Curve:
    """Seconds by batch, on instances of two sizes, the second half as quick again."""

    def __init__(self, steps_s: Sequence[float]) -> None:
        self.seconds_of = [sum(steps_s[: size + 1]) for size in range(len(steps_s))]

    @property
    def most(self) -> int:
        return len(self.seconds_of)

    def seconds(self, variant: str, body_cores: int, batch: int, pair: Pair | None = None) -> float | None:
        del variant, pair
        whole_s = self.seconds_of[min(batch, self.most) - 1] * max(1.0, batch / self.most)
        return whole_s if body_cores == 1 else whole_s / 1.5


class Given:
    """A fleet as it is said to be."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places

    def capacity(self) -> Capacity:
        first = self._places[0]
        return Capacity(len(self._places), sum(place.most for place in self._places), first.most, first.size)

    def places(self, now_s: float) -> Sequence[Place]:
        del now_s
        return self._places

    def idle_sizes(self) -> Sequence[tuple[int, Pair | None]]:
        return [(place.size, place.pair) for place in self._places if place.idle]

    def largest_idle(self) -> Place | None:
        return next((place for place in reversed(self._places) if place.idle), None)


curves = st.builds(
    Curve, st.lists(st.integers(0, 20), min_size=1, max_size=3).map(lambda steps: [0.05, *[0.01 * n for n in steps]])
)
deadlines = st.integers(1, 60).map(lambda hundredths: hundredths / 100)


def some_order_answers(curve: Curve, places: Sequence[Place], deadlines_s: Sequence[float]) -> bool:
    """True if all can be answered in time, by trying every batch on every instance after every other."""

    @cache
    def possible(free_s: tuple[float, ...], waiting: tuple[float, ...]) -> bool:
        if not waiting:
            return True
        for number, place in enumerate(places):
            for size in range(1, min(place.most, len(waiting)) + 1):
                end_s = free_s[number] + (curve.seconds("v", place.size, size) or 0.0)
                after = (*free_s[:number], end_s, *free_s[number + 1 :])
                for batch in combinations(range(len(waiting)), size):
                    if end_s > min(waiting[request] for request in batch) - CLOSE_S:
                        continue
                    if possible(after, tuple(due for value, due in enumerate(waiting) if value not in batch)):
                        return True
        return False

    return possible(tuple(place.free_in_s for place in places), tuple(sorted(deadlines_s)))


@given(
    curves,
    st.lists(st.tuples(st.integers(1, 2), st.integers(0, 20)), min_size=1, max_size=2),
    st.lists(deadlines, max_size=4),
    deadlines,
)
@settings(max_examples=200, deadline=None)
def test_request_that_some_order_could_serve_is_never_refused(
    curve: Curve, fleet: list[tuple[int, int]], waiting: list[float], deadline_s: float
) -> None:
    places = [Place(size, None, curve.most, hundredths / 100, idle=hundredths == 0) for size, hundredths in fleet]
    queue = FunctionQueue(100, 1000)
    for due_s in waiting:
        queue.add(Request(LANE, 0.0, due_s))
    refused = Admission(queue, Given(places), GivenLatency(curve)).refusal(Request(LANE, 0.0, deadline_s), 0.0, settled=False)
    if refused is not None:
        assert not some_order_answers(curve, places, (*waiting, deadline_s))


@given(curves, st.integers(1, 30))
def test_t_is_the_least_time_for_so_many_samples(curve: Curve, samples: int) -> None:
    @cache
    def least_s(left: int) -> float:
        sizes = range(1, min(curve.most, left) + 1)
        return min((curve.seconds_of[size - 1] + least_s(left - size) for size in sizes), default=0.0)

    times = BatchTimes(lambda batch: curve.seconds_of[batch - 1], curve.most)
    exactly = samples <= 4 * curve.most
    assert times.least_s(samples) >= least_s(samples) - 1e-9
    assert not exactly or times.least_s(samples) <= least_s(samples) + 1e-9
    assert times.within(times.least_s(samples) + 1e-9, samples) == samples
    assert times.within(times.least_s(samples) - 1e-6, samples) < samples


arrivals = st.lists(
    st.tuples(st.integers(0, 20).map(lambda ms: ms / 100), st.integers(2, 100).map(lambda ms: ms / 100), st.integers(1, 3)),
    min_size=1,
    max_size=30,
)


class Played:
    """A dispatcher whose batches end when they are expected to."""

    def __init__(self, scheduler: str, curve: Curve, instances: int) -> None:
        chosen = Settings(scheduler=scheduler, slo_s=0.4, max_wait_s=0.3, max_batch=curve.most)
        self.dispatcher = Dispatcher(chosen, scheduling_policy(scheduler, chosen), GivenLatency(curve), 0.0)
        for number in range(instances):
            self.dispatcher.instance_ready(f"i{number}", 1, curve.most, 0.0)
        self._ends: list[tuple[float, str, int, int]] = []

    def arrive(self, requests: list[Request], now_s: float) -> list[Request]:
        """The refused requests of these."""
        effects = self.dispatcher.arrive(requests, now_s)
        self._follow(effects)
        answers = [effect for effect in effects if isinstance(effect, Answer) and effect.error is not None]
        return [answer.request for answer in answers if answer.request in requests]

    def go_on(self, until_s: float) -> None:
        while True:
            next_s = min([end[0] for end in self._ends], default=float("inf"))
            if min(next_s, self.dispatcher.wake_s) > until_s:
                return
            if next_s <= self.dispatcher.wake_s:
                end_s, instance_id, batch_id, members = min(self._ends)
                self._ends.remove(min(self._ends))
                self._follow(self.dispatcher.finished(instance_id, batch_id, [200] * members, end_s))
            else:
                self._follow(self.dispatcher.timer(self.dispatcher.wake_s))

    def _follow(self, effects: Sequence[Effect]) -> None:
        batches = [effect.batch for effect in effects if isinstance(effect, Send)]
        self._ends += [(batch.expected_end_s, batch.instance_id, batch.id, len(batch.requests)) for batch in batches]


@given(st.sampled_from([name for name in BUILT_IN if name != "adaptive-paper"]), curves, st.integers(1, 3), arrivals)
@settings(max_examples=150, deadline=None)
def test_while_an_idle_instance_could_execute_a_request_in_time_it_is_not_refused(
    scheduler: str, curve: Curve, instances: int, gaps: list[tuple[float, float, int]]
) -> None:
    """Requests come in groups, each with a deadline of its own. `adaptive-paper` drops what misses the objective."""
    played, now_s = Played(scheduler, curve, instances), 0.0
    for gap_s, budget_s, together in gaps:
        now_s += gap_s
        played.go_on(now_s)
        refused = played.arrive([Request(LANE, now_s, now_s + budget_s) for _ in range(together)], now_s)
        if refused and played.dispatcher.workers.idle:
            assert (curve.seconds("v", 1, 1) or 0.0) > budget_s - CLOSE_S
    played.go_on(now_s + 100.0)
    assert played.dispatcher.in_system == 0


@given(
    scheduler=st.sampled_from(("adaptive", "immediate")),
    one_ms=st.integers(20, 200),
    more=st.floats(0.0, 1.0),
    gap=st.floats(0.05, 3.0),
    burst=st.integers(0, 30),
    instances=st.integers(1, 3),
    slo=st.floats(1.2, 20.0),
)
@settings(max_examples=60, deadline=None)
def test_a_lone_request_is_answered_within_one_and_a_half_times_its_execution(
    *, scheduler: str, one_ms: int, more: float, gap: float, burst: int, instances: int, slo: float
) -> None:
    """After a burst, which is what the rate is judged by."""
    one_s = one_ms / 1000
    latency = LatencyTable({1: {size: one_s * (1 + more * (size - 1)) for size in range(1, 9)}})
    arrivals_s = [number * gap * one_s for number in range(burst)]
    arrivals_s.append(arrivals_s[-1] + 40 * one_s if burst else 0.0)
    chosen = Settings(
        autoscaler="fixed",
        scheduler=scheduler,
        slo_s=slo * one_s,
        max_batch=8,
        scale=ScaleSettings(min=instances, max=instances),
    )
    plan = FunctionPlan("f", chosen, Profile("v", latency), arrivals_s, "given", warm=instances)
    rows = list(simulate([plan], [NodePlan("node-1", instances)])["f"].requests.rows())
    assert all(row["status"] == OK for row in rows)
    assert rows[-1]["finished_s"] - rows[-1]["arrived_s"] <= 1.5 * one_s + 1e-6


@pytest.mark.parametrize(
    ("fixed_s", "each_s", "instances", "rate_rps", "answered", "dropped"),
    [(0.0, 0.16, 12, 200.0, 2290, 0.0), (0.158, 0.002, 1, 60.0, 1370, 0.01), (0.1, 0.06, 1, 60.0, 380, 0.15)],
    ids=["in proportion", "flat", "in between"],
)
def test_overload_keeps_goodput_and_admits_hardly_any_late_request(
    *, fixed_s: float, each_s: float, instances: int, rate_rps: float, answered: int, dropped: float
) -> None:
    """Twelve instances answer at most 75 a second in proportion, one answers 46 or 14: in 30 s and the deadline of the last."""
    chosen = Settings(
        autoscaler="fixed",
        scheduler="adaptive",
        slo_s=1.0,
        deadline_s=1.0,
        max_batch=8,
        scale=ScaleSettings(min=instances, max=instances),
    )
    profile = Profile("v", LatencyTable({1: {size: fixed_s + each_s * size for size in range(1, 9)}}))
    plan = FunctionPlan("f", chosen, profile, poisson(rate_rps, 30.0, stream(1, "arrivals")), "learned", warm=instances)
    statuses = [row["status"] for row in simulate([plan], [NodePlan("node-1", instances)])["f"].requests.rows()]
    assert statuses.count(OK) >= answered
    assert statuses.count(504) <= dropped * (statuses.count(OK) + statuses.count(504))


def test_adaptive_refuses_nothing_while_one_of_twelve_instances_is_idle() -> None:
    """A handler of 0.16 s that executes its requests one after the other; deadline = objective = 1 s, 20 requests/s."""
    answered: dict[str, int] = {}
    for scheduler in ("adaptive", "adaptive-fill", "immediate"):
        chosen = Settings(
            autoscaler="fixed", scheduler=scheduler, slo_s=1.0, deadline_s=1.0, max_batch=8, scale=ScaleSettings(min=12, max=12)
        )
        profile = Profile("v", LatencyTable({1: {size: 0.16 * size for size in range(1, 9)}}))
        plan = FunctionPlan("f", chosen, profile, poisson(20.0, 30.0, stream(1, "arrivals")), "learned", warm=12)
        rows = list(simulate([plan], [NodePlan("node-1", 12)])["f"].requests.rows())
        answered[scheduler] = sum(row["status"] == OK for row in rows)
        if scheduler == "adaptive":
            latencies_s = sorted(row["finished_s"] - row["arrived_s"] for row in rows)
            assert latencies_s[len(latencies_s) // 2] <= 1.5 * 0.16
    assert answered["adaptive"] >= 0.99 * answered["immediate"]
    assert answered["adaptive-fill"] >= 0.95 * answered["immediate"]
