"""A pair in trouble: killed, frozen and abandoned. Answers stay right, nobody lingers, nothing leaks."""

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gnomon_core import shared_memory
from gnomon_runtime.pair.testing import Child, Model, Nursery, Task, join, load
from tests.integration.pairs.conftest import within

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
    """What it computes on waking is late and belongs to no batch; the next hand-over is answered."""
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
    told, left = nursery.empty(), nursery.empty()
    told.order("stop")
    left.orders.close()
    with within(5):
        assert nursery.gone(told.id)["status"] == nursery.gone(left.id)["status"] == 0


def test_two_hundred_pairs_leave_nothing(nursery: Nursery, body: Child, task: Task, x: Tensor, whole: Tensor) -> None:
    shadow = nursery.empty()
    load(shadow, task)
    sizes = shared_memory.hand_over_bytes(task.model.layers, 8)

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
