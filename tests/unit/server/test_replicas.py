"""Replicas of a gateway: what they learned is kept and transferred, the leader decides, and metrics tell of all."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gnomon_autoscaler.controller import Autoscaler
from gnomon_autoscaler.executor import at_once
from gnomon_autoscaler.registry import BUILT_IN, Policies
from gnomon_autoscaler.testing import MemoryFleet, MemoryFunction
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, read_deployment
from gnomon_core.interfaces import Capabilities
from gnomon_core.policy_registry import PolicyPlugin
from gnomon_core.scaling import Decision, Observation, PolicyState
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_gateway.functions.deployments import OtherReplicas
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.store import SqliteStore
from gnomon_platforms.kubernetes.client import UNANSWERED, ApiMetrics
from gnomon_server import replicas
from gnomon_server.kubernetes import ClusterCollector
from gnomon_server.platforms import Backend
from gnomon_server.replicas import Replicas, begin_to_lead
from gnomon_server.scaling import MOST, SavedScalingState, ScalingAdapter, ScalingStateTransfer
from gnomon_server.store_changes import StoreChanges
from tests.timelines import running
from tests.unit.gateway.stage import NAME, Scripted
from tests.virtual_clock import VirtualClock


class Odd:
    """A third party's policy, which keeps what is no JSON."""

    name, period_s, needs, state_version, default_scheduler = "odd", 1.0, frozenset[str](), 1, "immediate"

    def decide(self, seen: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        del seen, state
        return Decision((), "as it is", 0), PolicyState("odd", 1, {"seen": {1, 2}})  # type: ignore[dict-item]


def process() -> tuple[VirtualClock, Autoscaler]:
    """A process with two functions, of which the first names a third party's policy."""
    clock = VirtualClock()
    fleet = MemoryFleet(clock.now_s)
    fleet.known["a.ns"] = MemoryFunction(Settings(autoscaler="odd"))
    fleet.known["b.ns"] = MemoryFunction(Settings(autoscaler="lv", scale=ScaleSettings(max=9)), rps=25.0, latency_s=(0.1,))
    policies = {**BUILT_IN, "odd": PolicyPlugin(lambda _: Odd(), "Keeps a set.")}
    return clock, Autoscaler(fleet, clock, policies=policies, executor=at_once, stamp_s=lambda: 1e9)


async def test_unserialisable_state_of_one_function_spares_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock, last = process()
    async with running(last):
        await clock.advance(40)
    with caplog.at_level(logging.WARNING, "gnomon"):
        for _ in range(3):
            SavedScalingState(last, tmp_path).save()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["a.ns"], "once"
    _, successor = process()
    SavedScalingState(successor, tmp_path).restore()
    for name in ("a.ns", "b.ns"):
        successor.redeployed(name)
    assert [successor.desired(name) for name in ("a.ns", "b.ns")] == [None, last.desired("b.ns")]
    assert last.desired("b.ns") == 3


def test_scaling_state_that_the_disk_refuses_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, last = process()
    SavedScalingState(last, tmp_path / "gone").save()
    assert "cannot be saved" in caplog.text


@pytest.mark.parametrize("content", ["[]", '{"version": 1, "saved_at": 0, "clock_s": 0, "functions": []}'])
def test_scaling_state_of_another_form_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str) -> None:
    (tmp_path / "autoscaler.json").write_text(content)
    _, successor = process()
    SavedScalingState(successor, tmp_path).restore()
    assert "cannot be read" in caplog.text


class Gateway:
    """A gateway on the state folder of an earlier one. No policy ever answers it."""

    def __init__(self, folder: Path) -> None:
        platform = Scripted()
        scaling = ScalingAdapter(BUILT_IN, lambda: platform.capabilities)
        self.store = SqliteStore(folder / "functions.db")
        self.manager = Manager(
            self.store,
            platform,
            scaling,
            now=lambda: 0.0,
        )
        self.autoscaler = Autoscaler(self.manager.instances, VirtualClock(), executor=lambda *_: None, stamp_s=lambda: 1e9)
        scaling.bind(self.autoscaler)
        self.kept = SavedScalingState(self.autoscaler, folder)

    async def start(self) -> None:
        self.kept.restore()
        await self.manager.start()

    async def stop(self) -> None:
        self.kept.save()
        await self.manager.stop()
        self.store.close()


async def test_kept_state_of_a_removed_function_is_dropped(tmp_path: Path) -> None:
    spec = read_deployment({"service": "fn", "image": "i"})
    first = Gateway(tmp_path)
    await first.manager.deploy(spec)
    first.autoscaler.request(NAME, 7)
    await first.stop()
    second = Gateway(tmp_path)
    await second.start()
    assert second.autoscaler.desired(NAME) == 7
    second.store.delete_function(spec.key)  # it was removed, and this process has not heard of it yet
    await second.stop()
    third = Gateway(tmp_path)
    await third.start()
    await third.manager.deploy(spec)
    assert third.autoscaler.desired(NAME) is None
    await third.stop()


NAMES = [f"f{number}.ns" for number in range(45)]
NAMES_IN_ORDER = sorted(NAMES)


class Replica:
    """A replica that follows until it leads. Clocks of two processes have nothing to do with each other."""

    def __init__(self, *, leads: bool, began_s: float = 0.0, policies: Policies = BUILT_IN) -> None:
        self.leads = leads
        self.clock = VirtualClock(began_s)
        self.fleet = MemoryFleet(self.clock.now_s)
        for name in NAMES:
            self.fleet.known[name] = MemoryFunction(Settings(autoscaler="lv", scale=ScaleSettings(max=9)), latency_s=(0.1,))
        self.autoscaler = Autoscaler(self.fleet, self.clock, policies=policies, executor=at_once, stamp_s=lambda: 1e9)
        self.handed_on = ScalingStateTransfer(self.autoscaler, lambda: self.leads)


async def test_the_next_leader_goes_on_from_what_the_last_one_has_learned() -> None:
    leader, heir = Replica(leads=True), Replica(leads=False, began_s=5000.0)
    leader.fleet.known[NAMES[7]].rps = 25.0
    async with running(leader.autoscaler):
        await leader.clock.advance(40)
    sent: list[list[str]] = []
    while len({name for part in sent for name in part}) < len(NAMES):
        document = leader.handed_on.next("10.0.0.2")
        sent.append(list(document["functions"]))
        heir.handed_on.take(json.loads(json.dumps(document)))
    assert [len(part) for part in sent] == [MOST, MOST, MOST]
    heir.leads = True
    for name in NAMES:
        heir.autoscaler.redeployed(name)
        mine, theirs = ((replica.autoscaler.export_state([name])["functions"]) for replica in (heir, leader))
        assert mine[name]["windows"] == theirs[name]["windows"]  # type: ignore[index, call-overload]
    assert (leader.autoscaler.desired(NAMES[7]), heir.autoscaler.desired(NAMES[7])) == (3, 3)


async def test_a_busy_functions_state_goes_by_itself() -> None:
    leader = Replica(leads=True)
    for function in leader.fleet.known.values():
        function.rps = 25.0
    async with running(leader.autoscaler):
        await leader.clock.advance(300)
    sent = [leader.handed_on.next("10.0.0.2") for _ in NAMES]
    assert [list(document["functions"]) for document in sent if document is not None] == [[name] for name in sorted(NAMES)]


async def test_leader_reads_no_state_and_follower_sends_none() -> None:
    leader, other = Replica(leads=True), Replica(leads=False)
    assert leader.handed_on.next("10.0.0.2") is None, "nothing has been learned"
    leader.autoscaler.request(NAMES[0], 3)
    document = leader.handed_on.next("10.0.0.2")
    assert document is not None
    other.leads = True
    other.handed_on.take(document)
    other.autoscaler.redeployed(NAMES[0])
    assert other.autoscaler.desired(NAMES[0]) is None
    other.leads = False
    assert other.handed_on.next("10.0.0.1") is None


async def test_function_removed_before_a_new_leader_starts_without_state() -> None:
    leader, heir = Replica(leads=True), Replica(leads=False)
    leader.autoscaler.request(NAMES[0], 3)
    document = leader.handed_on.next("10.0.0.2")
    assert document is not None
    heir.handed_on.take(document)
    able = Capabilities(place=True, size=True, victim=True, resize=True, pair=True)
    other_replicas = OtherReplicas(leads=False)
    scaling = ScalingAdapter(BUILT_IN, lambda: able, other_replicas)
    scaling.bind(heir.autoscaler)
    scaling.removed(NAMES[0])
    heir.leads = other_replicas.leads = True
    heir.autoscaler.redeployed(NAMES[0])
    assert heir.autoscaler.desired(NAMES[0]) is None


async def test_function_whose_state_cannot_be_serialised_is_skipped_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    leader = Replica(leads=True, policies={**BUILT_IN, "odd": PolicyPlugin(lambda _: Odd(), "Keeps a set.")})
    leader.fleet.known[NAMES[0]] = MemoryFunction(Settings(autoscaler="odd"))
    async with running(leader.autoscaler):
        await leader.clock.advance(3)
    with caplog.at_level(logging.WARNING, "gnomon"):
        sent = [leader.handed_on.next("10.0.0.2") for _ in range(6)]
    assert {name for document in sent if document is not None for name in document["functions"]} == set(NAMES) - {NAMES[0]}
    json.dumps(sent)
    assert [record.getMessage().split(":")[0] for record in caplog.records if "not JSON" in record.getMessage()] == [NAMES[0]]


async def test_first_replica_gets_the_whole_state() -> None:
    leader = Replica(leads=True)
    for name in NAMES:
        leader.autoscaler.request(name, 1)

    def sent() -> list[str]:
        document = leader.handed_on.next("10.0.0.2")
        return list(document["functions"])

    assert sent() == NAMES_IN_ORDER[:MOST]
    leader.handed_on.keep({"10.0.0.2", "10.0.0.3"})
    assert sent() == NAMES_IN_ORDER[MOST : 2 * MOST]
    leader.handed_on.keep({"10.0.0.3"})
    assert sent() == NAMES_IN_ORDER[:MOST]


@pytest.mark.parametrize(
    "broken",
    [GnomonError(503, "kubernetes_busy", "It is busy."), OSError(116, "Stale file handle"), KeyError("metadata")],
)
async def test_a_new_leader_retries_until_it_can_decide(broken: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """The leader renews the Lease all the while, so that no other replica would decide."""
    clock, leading, attempts = VirtualClock(), asyncio.Event(), list[float]()

    async def lead() -> None:
        attempts.append(clock.now_s())
        if len(attempts) < 3:
            raise broken

    task = asyncio.create_task(begin_to_lead(leading, lead, clock))
    await clock.advance(10.0)
    assert attempts == [], "another process leads"
    leading.set()
    await clock.advance(10.0)
    await task
    assert attempts == [10.0, 11.0, 12.0]
    warnings = [record.getMessage() for record in caplog.records]
    assert [warning.startswith("this replica leads, but its autoscaler cannot start yet") for warning in warnings] == [True] * 2


async def test_replica_that_leaves_does_not_begin_to_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The autoscaler of a gateway that stops has been stopped already: nothing would stop another one."""

    async def nothing() -> None: ...

    parts = SimpleNamespace(
        app=None, invoke=None, agent=None, peers=None, start=nothing, leave=nothing, stop=nothing, watch=lambda _: lambda: None
    )
    monkeypatch.setattr(replicas, "SharedGateway", lambda *_, **__: parts)
    monkeypatch.setattr(replicas, "Assigner", lambda *_, **__: SimpleNamespace(run=nothing))
    leader = SimpleNamespace(identity="a", leading=asyncio.Event())
    cluster = SimpleNamespace(board=lambda: parts, inside=("", 0), peer_secret=lambda: None, leader=leader, leads=lambda: True)
    manager = SimpleNamespace(runtimes=list, instances=SimpleNamespace(runtime_of=None), directory=None)
    clock, led = VirtualClock(), list[str]()

    async def lead() -> None:
        led.append("led")

    others = OtherReplicas(leads=False)
    made = Replicas(cluster, clock, manager, others, None, guard=None, autoscaler=None, scaling=None)  # type: ignore[arg-type]
    await made.start(lead)
    leaving = asyncio.create_task(made.leave())
    await asyncio.sleep(0)
    leader.leading.set()
    await clock.advance(10.0)
    await leaving
    await made.stop()
    assert led == []


def page(cluster: Any) -> list[str]:
    registry = CollectorRegistry()
    registry.register(ClusterCollector(cast("Any", cluster)))
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_metrics_report_leader_api_server_silence_and_request_counts() -> None:
    now_s = [100.0]
    api_metrics = ApiMetrics(lambda: now_s[0])
    api_metrics.count("PATCH", "/api/v1/namespaces/fn/pods/x/resize", 200)
    now_s[0] = 130.0
    api_metrics.count("PATCH", "/api/v1/namespaces/fn/pods/x", UNANSWERED)
    assert page(SimpleNamespace(api_metrics=api_metrics, leads=lambda: True)) == [
        "gnomon_leading 1.0",
        "gnomon_kubernetes_silence_seconds 30.0",
        'gnomon_kubernetes_requests_total{outcome="unanswered",resource="pods",verb="PATCH"} 1.0',
        'gnomon_kubernetes_requests_total{outcome="200",resource="pods/resize",verb="PATCH"} 1.0',
    ]


def test_without_a_cluster_there_are_no_metrics_of_one() -> None:
    assert list(Backend().collectors()) == []


KEY = FunctionKey("fn")


class Store:
    """A store that tells of a change when the test says so."""

    def __init__(self) -> None:
        self.changed: Callable[[FunctionKey], None] = lambda _: None

    def watch(self, changed: Callable[[FunctionKey], None]) -> Callable[[], None]:
        self.changed = changed
        return lambda: None

    def watch_namespaces(self, changed: Callable[[], None]) -> Callable[[], None]:
        del changed
        return lambda: None


@pytest.mark.parametrize(
    "error", [GnomonError(503, "kubernetes_unreachable", "Away."), OSError(116, "Stale file handle")], ids=["known", "unforeseen"]
)
async def test_update_that_cannot_be_followed_at_once_is_followed_later(error: Exception) -> None:
    """The function's secret or model could not be read. The store tells of it only once, and the leader replaces all pods."""
    clock, store, attempts_s = VirtualClock(), Store(), list[float]()

    async def follow(key: FunctionKey) -> None:
        assert key == KEY
        attempts_s.append(clock.now_s())
        if len(attempts_s) < 4:
            raise error

    StoreChanges(clock).follow(store, follow)
    store.changed(KEY)
    await clock.advance(100.0)
    assert attempts_s == [0.0, 1.0, 3.0, 7.0]
