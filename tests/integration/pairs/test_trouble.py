"""Pairs in trouble: lost partners, nonsense on the wire."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gnomon_core import shared_memory
from gnomon_runtime.pair.headers import Kind, Message
from gnomon_runtime.pair.link import Link
from tests.integration.pairs.conftest import within
from tests.pair_harness import Buffers, Child, Model, Nursery, Task, join, load, tell_body

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]


def new_shadow(nursery: Nursery, body: Child, task: Task) -> Child:
    shadow = nursery.empty()
    assert load(shadow, task)["say"] == "registered"
    join(body, shadow, task)
    return shadow


def test_shadows_killed_while_they_compute(nursery: Nursery, body: Child, task: Task, x: Tensor, whole: Tensor) -> None:
    for delay_s in (0.0, 0.005, 0.01, 0.02, 0.04):
        shadow = new_shadow(nursery, body, task)
        body.ask(x)
        body.send(x)
        time.sleep(delay_s)
        shadow.signal(signal.SIGKILL)
        with within(10):
            assert torch.equal(body.result()[0], whole)
            assert torch.equal(body.ask(x)[0], whole)
        assert body.say("unpaired")["reason"] == "the Shadow has gone"
        nursery.gone(shadow.id)


def test_a_shadow_that_dies_while_the_body_is_idle_is_noticed_at_once(nursery: Nursery, body: Child, task: Task) -> None:
    shadow = new_shadow(nursery, body, task)
    shadow.end()
    with within(5):
        assert body.say("unpaired") == {"say": "unpaired", "epoch": 1, "shadow": shadow.id, "reason": "the Shadow has gone"}
    assert not [entry for entry in body.descriptors() if "memfd" in entry]


def test_a_frozen_shadow_ends_the_pair_after_three_misses(
    nursery: Nursery, body: Child, task: Task, x: Tensor, whole: Tensor
) -> None:
    shadow = new_shadow(nursery, body, task)
    body.ask(x)
    shadow.signal(signal.SIGSTOP)
    for _ in range(3):
        with within(10):
            answer, [timing] = body.ask(x)
        assert torch.equal(answer, whole)
        assert timing["outcome"] == "late"
    assert body.say("unpaired")["reason"].startswith("3 misses in a row")
    answer, timings = body.ask(x)
    assert torch.equal(answer, whole)
    assert timings == []
    shadow.signal(signal.SIGCONT)
    assert shadow.say("unpaired")["reason"] == "the Body has gone"
    shadow.end()


def test_a_shadow_that_froze_for_a_moment_is_forgiven(
    nursery: Nursery, body: Child, task: Task, x: Tensor, whole: Tensor
) -> None:
    """The answer that the Shadow computes on waking is late and belongs to no batch; the next hand-over is answered."""
    shadow = new_shadow(nursery, body, task)
    body.ask(x)
    shadow.signal(signal.SIGSTOP)
    assert body.ask(x)[1][0]["outcome"] == "late"
    shadow.signal(signal.SIGCONT)
    outcomes = []
    for _ in range(10):
        answer, [timing] = body.ask(x)
        assert torch.equal(answer, whole)
        outcomes.append(timing["outcome"])
    assert outcomes[-5:] == ["answered"] * 5
    shadow.end()


def test_a_batch_in_a_hurry_is_answered_and_nobody_blamed(
    nursery: Nursery, body: Child, task: Task, x: Tensor, whole: Tensor
) -> None:
    shadow = new_shadow(nursery, body, replace(task, expected_ms=[[60_000.0] * 8]))
    body.ask(x)
    shadow.signal(signal.SIGSTOP)
    for _ in range(4):
        with within(10):
            answer, [timing] = body.ask(x, budget_s=0.2)
        assert torch.equal(answer, whole)
        assert timing["outcome"] == "hurried"
    shadow.end()


def test_a_body_that_is_killed_leaves_a_shadow_that_ends_with_its_coordinator(
    nursery: Nursery, model: Model, task: Task, x: Tensor
) -> None:
    body = nursery.body(model)
    shadow = new_shadow(nursery, body, task)
    body.send(x)
    body.end()
    assert shadow.say("unpaired")["reason"] == "the Body has gone"
    assert not [entry for entry in shadow.descriptors() if "memfd" in entry]
    shadow.orders.close()
    with within(5):
        assert nursery.gone(shadow.id)["status"] == 0


def test_a_pair_outlives_its_coordinator(nursery: Nursery, model: Model, task: Task, x: Tensor, whole: Tensor) -> None:
    body = nursery.body(model)
    shadow = new_shadow(nursery, body, task)
    body.orders.close()
    shadow.orders.close()
    for _ in range(3):
        answer, [timing] = body.ask(x)
        assert torch.equal(answer, whole)
        assert timing["outcome"] == "answered"
    body.end()
    with within(5):
        assert nursery.gone(shadow.id)["status"] == 0


def test_empty_containers_end_when_they_are_told_or_nobody_is_left(nursery: Nursery) -> None:
    ordered, left = nursery.empty(), nursery.empty()
    ordered.order("stop")
    left.orders.close()
    with within(5):
        assert nursery.gone(ordered.id)["status"] == nursery.gone(left.id)["status"] == 0


def test_two_hundred_pairs_leave_nothing(nursery: Nursery, body: Child, task: Task, x: Tensor, whole: Tensor) -> None:
    shadow = nursery.empty()
    load(shadow, task)
    sizes = shared_memory.buffer_sizes(task.model.layers, 8)

    def held() -> tuple[int, int, int, int]:
        return len(body.descriptors()), body.mappings(), len(shadow.descriptors()), shadow.mappings()

    before: tuple[int, int, int, int] | None = None
    for turn in range(200):
        join(body, shadow, task, sizes=sizes)
        if turn % 20 == 0:
            assert torch.equal(body.ask(x)[0], whole)
        if turn == 40:
            before = held()
    assert before is not None
    after = held()
    assert (after[0], after[2]) == (before[0], before[2])
    # An allocator may map a little more of the heap; a leak would be two mappings a pair.
    assert after[1] - before[1] < 20
    assert after[3] - before[3] < 20
    body.order("unpair", (), {"shadow": shadow.id})
    assert body.say("unpaired")["reason"] == "told to"
    assert shadow.say("unpaired")["reason"] == "the Body has gone"
    for child in (body, shadow):
        assert not [line for line in Path(f"/proc/{child.pid}/maps").read_text().splitlines() if "memfd" in line]
    shadow.end()


def test_orders_of_an_older_coordinator_are_refused(nursery: Nursery, body: Child, task: Task) -> None:
    shadow = nursery.empty()
    for child in (body, shadow):
        child.order("hello", epoch=7)
        assert child.say("body", "empty")["epoch"] == 7
        child.order("hello", epoch=6)
        assert child.say("stale") == {"say": "stale", "epoch": 7}
        child.order("unpair" if child is body else "stop", epoch=3)
        assert child.say("stale")["epoch"] == 7
        child.order("hello", epoch=7)
        child.say("body", "empty")
    shadow.end()


@pytest.mark.parametrize(
    "damage",
    [
        {"program": "/nowhere"},
        {"weights": "/dev/null"},
        {"layers": "/dev/null"},
        {"blocks": [99]},
        {"blocks": []},
        {"blocks": "x"},
        {"weight_mode": None},
    ],
)
def test_a_load_that_fails_is_said_and_ends_the_container(nursery: Nursery, task: Task, damage: dict[str, object]) -> None:
    shadow = nursery.empty()
    real = shadow.order
    shadow.order = lambda do, fds=(), details=None, epoch=1: real(do, fds, {**(details or {}), **damage}, epoch)  # type: ignore[method-assign, assignment]
    said = load(shadow, task)
    assert (said["say"], said["shadow"]) == ("failed", shadow.id)
    assert said["reason"]
    with within(5):
        assert os.waitstatus_to_exitcode(nursery.gone(shadow.id)["status"]) == 1


def test_refused_pairing_leaves_the_body_serving(nursery: Nursery, body: Child, task: Task, x: Tensor, whole: Tensor) -> None:
    unsealed = [os.memfd_create("unsealed") for _ in range(2)]
    for descriptor in unsealed:
        os.ftruncate(descriptor, 1 << 16)
    good = Buffers.make(1 << 16, 1 << 16)
    details = {"shadow": "s-1", "blocks": [1], "split": [0, 1], "shadow_cores": 1, "expected_ms": []}
    wrong: list[tuple[list[int], dict[str, object]]] = [
        ([], details),
        (good.body[:2], details),
        ([good.body[0], *unsealed], details),
        ([good.body[1], good.body[0], good.body[2]], details),
        ([good.body[0], good.body[2], good.body[2]], details),
        (good.body, {**details, "blocks": [99]}),
        (good.body, {**details, "split": None}),
        (good.body, {**details, "expected_ms": [["soon"]]}),
    ]
    for descriptors, message in wrong:
        body.order("pair", descriptors, message)
        assert body.say("paired", "failed")["say"] == "failed"
        assert torch.equal(body.ask(x)[0], whole)
    assert not [entry for entry in body.descriptors() if "memfd" in entry]
    good.close()
    for descriptor in unsealed:
        os.close(descriptor)


def test_a_shadow_leaves_a_body_that_sends_nonsense_and_can_be_joined_again(nursery: Nursery, task: Task) -> None:
    shadow = nursery.empty()
    load(shadow, task)
    begin, end = task.model.layers.runs(task.blocks)[0].begin, task.model.layers.runs(task.blocks)[0].end
    for noise in (b"", b"x", b"GNP1" + bytes(36), bytes(5000)):
        buffers = Buffers.make(1 << 16, 1 << 16)
        shadow.order("join", buffers.shadow, {"shadow": shadow.id, "body": "f-1", "blocks": [], "split": []})
        shadow.say("paired")
        mine = Link([os.dup(descriptor) for descriptor in buffers.body], body=True)
        buffers.close()
        if noise:
            mine._socket.send(noise)
            assert shadow.say("unpaired")["reason"].startswith("the Body sends nonsense")
        else:
            # Operations that it does not hold, and tensors that its operations do not take.
            for operations, tensors in (((begin, end + 1), 1), ((begin, end), 2), ((begin, end), 1)):
                rows = mine.to.write([torch.ones(2, 3)] * tensors)
                assert rows is not None
                mine.send(Message(Kind.COMPUTE, 1, *operations, 2, rows))
                deadline_s = time.monotonic() + 10
                while not (answers := mine.pending()) and time.monotonic() < deadline_s:
                    time.sleep(0.001)
                assert [answer.kind for answer in answers] in ([Kind.REFUSED], [Kind.FAILED])
        mine.close()
        if not noise:
            assert shadow.say("unpaired")["reason"] == "the Body has gone"
    shadow.end()


def test_a_hand_over_to_a_raw_peer_is_what_the_contract_says(body: Child, task: Task, x: Tensor, whole: Tensor) -> None:
    """The test is the Shadow: it sees the rows, and what it answers is in the result."""
    buffers = Buffers.make(*shared_memory.buffer_sizes(task.model.layers, 8))
    mine = Link([os.dup(descriptor) for descriptor in buffers.shadow], body=False)
    tell_body(body, "s-1", replace(task, expected_ms=[[5000.0] * 8]), buffers)
    buffers.close()
    body.send(x)
    deadline_s = time.monotonic() + 10
    while not (asked := mine.pending()) and time.monotonic() < deadline_s:
        time.sleep(0.001)
    [message] = asked
    [run] = task.model.layers.runs(task.blocks)
    assert (message.kind, message.begin, message.end, message.samples) == (Kind.COMPUTE, run.begin, run.end, 2)
    assert [row.shape[0] for row in message.rows] == [2] * len(run.reads)
    mine.send(replace(message, kind=Kind.REFUSED, rows=()))
    answer, [timing] = body.result()
    assert torch.equal(answer, whole)
    assert timing["outcome"] == "refused"
    mine.close()
    assert body.say("unpaired")["reason"] == "the Shadow has gone"
