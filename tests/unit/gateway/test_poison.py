"""A request that fails its batch, or ends instances, fails nobody else where its function is idempotent."""

import pytest

from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.dispatcher import Answer, Dispatcher, Effect, Send
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.dispatch.quarantine import KEPT_S, MOST, Quarantine
from gnomon_gateway.queueing.request import Batch, LaneKey, Request
from gnomon_gateway.scheduling.basic import Immediate

EVENTS = LaneKey("events", "f")


def request(body: bytes = b"good", *, at_s: float = 0.0, idempotent: bool = True) -> Request:
    return Request(EVENTS, at_s, at_s + 30.0, meta=b"POST\n/\n\nx-call-id: %d" % id(body), body=body, replay_safe=idempotent)


class World:
    """A function whose instance fails a whole batch where one of its members is poison: with 500, or by its end."""

    def __init__(self, *, deadly: bool = False) -> None:
        self.dispatcher = Dispatcher(Settings(), Immediate(), LearnedLatency(), 0.0)
        self.deadly = deadly
        self.instances = 0
        self.codes: dict[Request, int] = {}
        self.batches: list[list[bytes]] = []
        self.begin()

    def begin(self) -> list[Effect]:
        self.instances += 1
        return self.dispatcher.instance_ready(f"i{self.instances}", 1, 8, 0.0)

    def arrive(self, *requests: Request, at_s: float = 0.0) -> None:
        self.carry_out(self.dispatcher.arrive(requests, at_s), [], at_s + 0.1)

    def carry_out(self, effects: list[Effect], results: list[int], at_s: float) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                assert effect.request not in self.codes, "answered twice"
                self.codes[effect.request] = effect.error.status if effect.error is not None else results[effect.member]
            elif isinstance(effect, Send):
                self.execute(effect.batch, at_s)

    def execute(self, batch: Batch, at_s: float) -> None:
        bodies = [bytes(one.body) for one in batch.requests]
        self.batches.append(bodies)
        if b"poison" in bodies and self.deadly:
            self.carry_out(self.dispatcher.instance_gone(batch.instance_id, at_s), [], at_s)
            self.carry_out(self.begin(), [], at_s)
        else:
            codes = [500 if b"poison" in bodies else 200] * len(bodies)
            self.carry_out(self.dispatcher.finished(batch.instance_id, batch.id, codes, at_s), codes, at_s)


@pytest.mark.parametrize("deadly", [False, True])
def test_innocents_beside_a_poison_request_succeed_by_themselves(*, deadly: bool) -> None:
    world = World(deadly=deadly)
    requests = [request(b"good %d" % number) for number in range(7)]
    poison = request(b"poison")
    world.arrive(*requests[:3], poison, *requests[3:])
    assert [world.codes[one] for one in requests] == [200] * 7
    assert world.codes[poison] == (502 if deadly else 500)
    assert [len(batch) for batch in world.batches] == [8, *[1] * 8]
    assert world.dispatcher.retried == 8


@pytest.mark.parametrize("deadly", [False, True])
def test_nothing_is_executed_twice_where_nobody_said_that_it_may(*, deadly: bool) -> None:
    world = World(deadly=deadly)
    requests = [request(b"good", idempotent=False), request(b"poison", idempotent=False), request(b"more", idempotent=False)]
    world.arrive(*requests)
    assert world.batches == [[b"good", b"poison", b"more"]]
    assert [world.codes[one] for one in requests] == [502 if deadly else 500] * 3


def test_what_fails_alone_is_not_executed_again() -> None:
    world = World()
    world.arrive(request(b"poison"))
    assert world.batches == [[b"poison"]]


@pytest.mark.parametrize("deadly", [False, True])
def test_an_input_that_failed_alone_as_well_shares_no_batch_for_a_while(*, deadly: bool) -> None:
    world = World(deadly=deadly)
    world.arrive(request(), request(b"poison"))
    world.batches.clear()
    innocents = [request(at_s=1.0), request(b"more", at_s=1.0)]
    again = request(b"poison", at_s=1.0)
    world.arrive(innocents[0], again, innocents[1], at_s=1.0)
    assert sorted(world.batches) == [[b"good", b"more"], [b"poison"]]
    assert world.codes[again] == (502 if deadly else 500)
    assert world.instances == (4 if deadly else 1)  # one more than what the first poison took: the second took one, not two


def test_an_input_leaves_quarantine_when_it_succeeds_and_after_a_while() -> None:
    quarantine = Quarantine()
    quarantine.add(request(b"poison"), 0.0)
    for at_s, alone in ((1.0, True), (KEPT_S, False), (KEPT_S - 1.0, False)):
        one = request(b"poison")
        quarantine.isolate(one, at_s)
        assert one.lane.solo is alone
    quarantine.add(request(b"poison"), 0.0)
    quarantine.release(request(b"poison"))
    assert not len(quarantine)


def test_quarantine_is_bounded_and_forgets_the_oldest() -> None:
    quarantine = Quarantine()
    for number in range(MOST + 5):
        quarantine.add(request(b"%d" % number), 0.0)
    assert len(quarantine) == MOST
    oldest, newest = request(b"0"), request(b"%d" % (MOST + 4))
    quarantine.isolate(oldest, 1.0)
    quarantine.isolate(newest, 1.0)
    assert (oldest.lane.solo, newest.lane.solo) == (False, True)
