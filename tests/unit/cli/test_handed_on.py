"""What a leader has learned, as the next one has it: told bit by bit with its questions."""

from __future__ import annotations

import asyncio
import json

from gnomon_autoscaler.beside import at_once
from gnomon_autoscaler.loop import Autoscaler
from gnomon_autoscaler.registry import BUILT_IN
from gnomon_autoscaler.testing import MemoryFleet, MemoryFunction
from gnomon_cli.handed_on import MOST, HandedOn
from gnomon_cli.scaling import ScalingAdapter
from gnomon_core.clock import VirtualClock
from gnomon_core.seam_values import Capabilities
from gnomon_core.settings import ScaleSettings, Settings

NAMES = [f"f{number}.ns" for number in range(45)]


class Replica:
    """One that follows until it leads. Clocks of two processes have nothing to do with each other."""

    def __init__(self, *, leads: bool, began_s: float = 0.0) -> None:
        self.leads = leads
        self.clock = VirtualClock(began_s)
        self.fleet = MemoryFleet(self.clock.now_s)
        for name in NAMES:
            self.fleet.known[name] = MemoryFunction(Settings(autoscaler="lv", scale=ScaleSettings(max=9)), latency_s=(0.1,))
        self.autoscaler = Autoscaler(self.fleet, self.clock, caller=at_once, stamp_s=lambda: 1e9)
        self.handed_on = HandedOn(self.autoscaler, lambda: self.leads)


async def test_the_next_leader_goes_on_from_what_the_last_one_has_learned() -> None:
    leader, heir = Replica(leads=True), Replica(leads=False, began_s=5000.0)
    leader.fleet.known[NAMES[7]].rps = 25.0
    running = asyncio.create_task(leader.autoscaler.run())
    await leader.clock.advance(40)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    told: list[list[str]] = []
    while len({name for part in told for name in part}) < len(NAMES):
        document = leader.handed_on.next("10.0.0.2")
        assert document is not None
        told.append(list(document["functions"]))
        heir.handed_on.take(json.loads(json.dumps(document)))
    assert [len(part) for part in told] == [MOST, MOST, MOST]
    heir.leads = True
    for name in NAMES:
        heir.autoscaler.redeployed(name)
        mine, theirs = ((one.autoscaler.export_state([name])["functions"]) for one in (heir, leader))
        assert mine[name]["windows"] == theirs[name]["windows"]  # type: ignore[index, call-overload]
    assert (leader.autoscaler.desired(NAMES[7]), heir.autoscaler.desired(NAMES[7])) == (3, 3)


async def test_a_busy_functions_state_goes_by_itself() -> None:
    leader = Replica(leads=True)
    for function in leader.fleet.known.values():
        function.rps = 25.0
    running = asyncio.create_task(leader.autoscaler.run())
    await leader.clock.advance(300)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    told = [leader.handed_on.next("10.0.0.2") for _ in NAMES]
    assert [list(document["functions"]) for document in told if document is not None] == [[name] for name in sorted(NAMES)]


async def test_who_leads_takes_nothing_and_who_follows_tells_nothing() -> None:
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


async def test_a_function_that_was_removed_before_the_next_one_leads_begins_with_nothing() -> None:
    leader, heir = Replica(leads=True), Replica(leads=False)
    leader.autoscaler.request(NAMES[0], 3)
    document = leader.handed_on.next("10.0.0.2")
    assert document is not None
    heir.handed_on.take(document)
    able = Capabilities(place=True, size=True, victim=True, resize=True, pair=True)
    scaling = ScalingAdapter(BUILT_IN, lambda: able, lambda: heir.leads)
    scaling.bind(heir.autoscaler)
    scaling.removed(NAMES[0])
    heir.leads = True
    heir.autoscaler.redeployed(NAMES[0])
    assert heir.autoscaler.desired(NAMES[0]) is None
