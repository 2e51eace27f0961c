"""State that gateway replicas exchange: load, pairs, plans, decisions."""

from __future__ import annotations

import gc
import json
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey, read_deployment
from gnomon_core.pairs import Pair, together
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.deployments import Deployed, LostInstance, OtherReplicas
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.queueing.queue import Request
from gnomon_gateway.replicas.state_sync import PairFollower, Reporter, pairs_to_json
from gnomon_gateway.scheduling.policies import Immediate
from gnomon_gateway.store import SqliteStore
from tests.unit.gateway.stage import Client, Scaling, Scripted
from tests.unit.ownership.test_queue_changes_hands import OneInstance, turn

NAME = "f.openfaas-fn"


def runtime(name: str = "f") -> FunctionRuntime:
    return FunctionRuntime(FunctionKey(name), Settings(max_batch=1), Immediate(), LearnedLatency())


def submit(to: FunctionRuntime) -> None:
    now_s = time.monotonic()
    to.submit(Request(to.event_lane, now_s, now_s + 60.0, body=b"x", responder=Client()))


def reporter_of(functions: list[FunctionRuntime], lost: dict[str, LostInstance] | None = None) -> Reporter:
    return Reporter(lambda: functions, {} if lost is None else lost)


def sent(report: dict[str, Any]) -> dict[str, Any]:
    """The report as it comes over the wire."""
    found: dict[str, Any] = json.loads(json.dumps(report))
    return found


async def test_leader_sees_the_load_of_each_replica() -> None:
    function, instance, leader = runtime(), OneInstance(), OtherReplicas()
    function.instance_ready(Instance("i", NAME, 1, "here", 1, 0, InstanceState.READY, 0.0), instance)
    submit(function)
    submit(function)
    await turn()
    reporter = reporter_of([function])
    leader.take_report("a", sent(reporter.report(0))["functions"])
    seen = leader.of(NAME).counters
    assert (seen.arrivals, seen.queued, seen.executing, seen.successes) == (2, 1, 1, 0)
    assert leader.in_flight(NAME, "i") == 1
    assert seen.last_request_s == pytest.approx(time.monotonic(), abs=5.0)
    instance.answer()
    await turn()
    instance.answer()
    await turn()
    leader.take_report("a", sent(reporter.report(1))["functions"])
    seen = leader.of(NAME).counters
    assert (seen.arrivals, seen.queued, seen.executing, seen.successes) == (2, 0, 0, 2)
    assert (leader.of(NAME).invocations, leader.in_flight(NAME, "i")) == (2, 0)
    assert 0.0 < seen.busy_core_s <= seen.concurrency_s
    function.close()


async def test_only_what_is_new_is_told_and_everything_to_whoever_asks_anew() -> None:
    busy, idle, never = runtime("busy"), runtime("idle"), runtime("never")
    reporter = reporter_of([busy, idle, never])
    submit(busy)
    submit(idle)
    await turn()
    idle.hand_over_waiting()
    assert reporter.report(0)["functions"].keys() == {"busy.openfaas-fn", "idle.openfaas-fn"}
    # A report that was not heard of is told again; the time that requests wait goes on by itself.
    assert reporter.report(0)["functions"].keys() == {"busy.openfaas-fn", "idle.openfaas-fn"}
    assert reporter.report(2)["functions"].keys() == {"busy.openfaas-fn"}
    assert reporter.report(99)["functions"].keys() == {"busy.openfaas-fn", "idle.openfaas-fn"}, "another process counted that"
    for function in (busy, idle, never):
        function.close()


def test_instances_that_were_lost_are_told_until_it_was_heard() -> None:
    lost = {"i": LostInstance("frozen", served=True)}
    reporter = reporter_of([], lost)
    reporter.want(NAME)
    first = sent(reporter.report(0))
    assert (first["lost"], first["wanted"]) == ({"i": ["frozen", True]}, [NAME])
    assert reporter.report(0)["lost"]
    assert reporter.report(first["number"])["lost"] == {}
    assert (lost, reporter.report(2)["wanted"]) == ({}, [])


async def test_counters_outlive_a_replica_but_its_queue_does_not() -> None:
    function, leader = runtime(), OtherReplicas()
    submit(function)
    await turn()
    leader.take_report("a", sent(reporter_of([function]).report(0))["functions"])
    leader.take_report("b", sent(reporter_of([function]).report(0))["functions"])
    assert (leader.of(NAME).counters.arrivals, leader.of(NAME).counters.queued) == (2, 2)
    stamp = leader.stamp(NAME)
    leader.keep({"b"})
    assert leader.stamp(NAME) != stamp, "a function at rest is to be looked at again"
    left = leader.of(NAME).counters
    assert (left.arrivals, left.queued, left.executing) == (2, 1, 0)
    leader.forget(NAME)
    assert leader.of(NAME).counters.arrivals == 0
    function.close()


async def test_latency_spread_is_reported_if_known() -> None:
    function, leader = runtime(), OtherReplicas()
    function.instance_ready(Instance("i", NAME, 1, "here", 2, 0, InstanceState.READY, 0.0), OneInstance())
    for seconds in (0.1, 0.12, 0.1, 0.12) * 20:
        function.latency.observe(function.variant, 2, 1, seconds)
    function.latency.observe(function.variant, 1, 1, 1.0)
    function.latency.observe(function.variant, 1, 1, 9.0)
    submit(function)
    await turn()
    report = sent(reporter_of([function]).report(0))["functions"]
    leader.take_report("a", report)
    assert leader.of(NAME).spread == pytest.approx(0.09, abs=0.02), "of the size that its instance has"
    # A replica of an earlier version says nothing of it; what is known otherwise stays.
    before = {NAME: {name: value for name, value in report[NAME].items() if name != "spread"}}
    leader.take_report("b", before)
    assert leader.of(NAME).spread == pytest.approx(0.09, abs=0.02)
    leader.keep({"b"})
    assert leader.of(NAME).spread == pytest.approx(0.09, abs=0.02)
    alone = OtherReplicas()
    alone.take_report("b", before)
    assert (alone.of(NAME).spread, alone.of(NAME).counters.arrivals) == (0.0, 1)
    function.close()


async def test_batch_latency_is_shared_between_replicas() -> None:
    other, here, leader = runtime(), runtime(), OtherReplicas()
    other.latency.observe(other.variant, 1, 1, 0.5)
    here.latency.observe(here.variant, 1, 1, 0.1)
    deployed = Deployed(read_deployment({"service": "f", "image": "f:1"}), 1, "1", {}, 0.0, here, other_replicas=leader)
    submit(here)
    submit(other)
    await turn()
    leader.take_report("b", sent(reporter_of([other]).report(0))["functions"])
    assert deployed.load((), ()).latency_s == (0.5,)
    # It has gone for good, and the leader serves alone.
    leader.keep(())
    submit(here)
    await turn()
    assert deployed.load((), ()).latency_s == (0.1,)
    for function in (other, here):
        function.close()


def test_invalid_report_changes_nothing() -> None:
    leader = OtherReplicas()
    for broken in ({NAME: {}}, {NAME: []}, {NAME: {"arrivals": "many"}}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            leader.take_report("a", broken)
    assert leader.of(NAME).counters.arrivals == 0
    assert leader.stamp(NAME) == 0


async def test_nothing_is_kept_of_functions_that_are_gone() -> None:
    function, other = runtime(), runtime("other")
    there = [function, other]
    reporter = reporter_of(there)
    for deployed in there:
        submit(deployed)
    await turn()
    assert reporter.report(0)["functions"].keys() == {function.name, other.name}
    for deployed in there:
        deployed.close()
    gone = [weakref.ref(function) for function in there]
    there.clear()
    del function, other, deployed
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert not reporter._seen


ONE, TWO = Pair(2, (1, 2), (0, 1)), Pair(1, (1, 2), (0, 0), "node-b")


async def test_bodies_have_the_shadows_that_were_told_last() -> None:
    runtime = FunctionRuntime(FunctionKey("f"), Settings(), Immediate(), LearnedLatency())
    for name in ("i", "j"):
        runtime.instance_ready(Instance(name, runtime.name, 1, "here", 1, 0, InstanceState.READY, 0.0), OneInstance())
    followed = PairFollower({"i": runtime, "j": runtime}.get)

    def pair_of(body: str) -> Pair | None:
        return runtime.dispatcher.workers.by_id[body].pair

    for table in ({"i": [ONE, TWO], "unknown": [ONE]}, {"i": [ONE], "j": [TWO]}, {"j": [TWO]}, {}):
        followed.follow(json.loads(json.dumps(pairs_to_json(table))))
        for body in ("i", "j"):
            assert pair_of(body) == together(tuple(table.get(body, ())))
    runtime.close()


def test_invalid_table_changes_nothing() -> None:
    followed = PairFollower(lambda _: pytest.fail("nobody is to be asked"))
    for broken in ([], {"i": [{}]}, {"i": 1}, {"i": [{"cores": 1, "blocks": "x", "split": [], "node": None}]}):
        with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
            followed.follow(broken)  # type: ignore[arg-type]


KEY = FunctionKey("fn")


class Deciding(Scaling):
    """Wants what it was asked for until it decides."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted = 1

    def request(self, function: str, instances: int) -> None:
        del function
        self.wanted = instances

    def desired(self, function: str) -> int | None:
        del function
        return self.wanted


async def test_a_request_that_a_decision_has_gone_past_is_not_told_any_more(tmp_path: Path) -> None:
    """Also where that decision changed nothing: policies that choose sizes have no number to hold."""
    scaling, store = Deciding(), SqliteStore(tmp_path / "functions.db")
    manager = Manager(store, Scripted(), scaling, now=lambda: 0.0)
    await manager.deploy(read_deployment({"service": "fn", "image": "i"}))

    def replicas() -> int:
        status = manager.status(KEY)
        assert status is not None
        return status.replicas

    await manager.scale(KEY, 3)
    assert replicas() == 3, "at once"
    scaling.wanted = 2
    assert replicas() == 2
    await manager.stop()
    store.close()
