"""Two Shadows of one Body, all real processes: right answers whatever one of them does, and the other goes on."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.pair_harness import Child, Model, Nursery, Task, change, join, load

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]
Expected = Callable[[Model, Tensor], Tensor]
ONE = (0, 1, 1, 1, 2, 2, 3, 3)
TWO = (0, 0, 1, 1, 1, 2, 2, 3)
BLOCKS = [1, 2, 3, 4]


@pytest.fixture(scope="module")
def x(model: Model) -> Tensor:
    return torch.randn(8, *model.signature.inputs[0].shape, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def whole(model: Model, x: Tensor, expected: Expected) -> Callable[[int], Tensor]:
    made: dict[int, Tensor] = {}

    def of(samples: int) -> Tensor:
        if samples not in made:
            made[samples] = expected(model, x[:samples])
        return made[samples]

    return of


@pytest.fixture
def start(nursery: Nursery, body: Child) -> Iterator[Callable[[Task], Child]]:
    """Another Shadow of the Body."""
    made: list[Child] = []

    def shadow(task: Task) -> Child:
        container = nursery.empty()
        made.append(container)
        assert load(container, task)["say"] == "registered"
        join(body, container, task)
        return container

    yield shadow
    for each in made:
        if each.id not in ended:
            each.end()


ended: set[str] = set()
"""Shadows that a test has ended."""


def killed(shadow: Child) -> None:
    shadow.end()
    ended.add(shadow.id)


def task(model: Model, split: tuple[int, ...], blocks: list[int] = BLOCKS, may_take_ms: float = 10_000.0) -> Task:
    """A Shadow that may take its time: this machine may be busy with other things."""
    return Task(model, blocks, split, [[may_take_ms] * 8] * len(model.layers.runs(blocks)))


def shared_mappings(body: Child) -> int:
    """How many buffers it has mapped."""
    return sum("memfd:" in line for line in Path(f"/proc/{body.pid}/maps").read_text(encoding="utf-8").splitlines())


def close_to(answer: Tensor, whole: Tensor) -> bool:
    """At a batch of one a kernel may add in another order than at eight."""
    return bool((answer - whole).abs().max() <= 1e-5 * whole.abs().max())


def outcomes(timings: list[dict[str, object]]) -> list[tuple[object, object]]:
    return [(timing["outcome"], timing["samples"]) for timing in timings]


@pytest.mark.parametrize("blocks", [BLOCKS, [0, 2, 4], [0, 1, 2, 3, 4, 5]])
def test_all_three_answer_as_the_model_does(
    body: Child, start: Callable[[Task], Child], x: Tensor, whole: Callable[[int], Tensor], *, model: Model, blocks: list[int]
) -> None:
    start(task(model, ONE, blocks))
    start(task(model, TWO, blocks))
    runs = len(model.layers.runs(blocks))
    for samples in range(1, 9):
        answer, timings = body.ask(x[:samples])
        assert close_to(answer, whole(samples))
        given = [("answered", share) for share in (ONE[samples - 1], TWO[samples - 1]) if share]
        assert outcomes(timings) == given * runs


@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
def test_shadow_killed_mid_batch_leaves_the_other_working(
    body: Child, start: Callable[[Task], Child], x: Tensor, whole: Callable[[int], Tensor], *, model: Model, first: bool
) -> None:
    shadows = [start(task(model, ONE)), start(task(model, TWO))]
    victim, other = shadows if first else reversed(shadows)
    body.ask(x)
    for delay_s in (0.0, 0.01):
        body.send(x)
        time.sleep(delay_s)
        if victim.id not in ended:
            killed(victim)
        answer, _ = body.result()
        assert close_to(answer, whole(8))
    assert body.say("unpaired") == {"say": "unpaired", "epoch": 1, "shadow": victim.id, "reason": "the Shadow has gone"}
    answer, timings = body.ask(x)
    assert close_to(answer, whole(8))
    assert [(timing["shadow"], timing["outcome"]) for timing in timings] == [(other.id, "answered")]


def test_frozen_shadow_leaves_the_other_working(
    body: Child, start: Callable[[Task], Child], model: Model, x: Tensor, whole: Callable[[int], Tensor]
) -> None:
    frozen, other = start(task(model, ONE, may_take_ms=300.0)), start(task(model, TWO))
    body.ask(x)
    frozen.signal(signal.SIGSTOP)
    for _ in range(3):
        answer, timings = body.ask(x)
        assert close_to(answer, whole(8))
        assert outcomes(timings) == [("late", ONE[7]), ("answered", TWO[7])]
    said = body.say("unpaired")
    assert (said["shadow"], said["reason"][:16]) == (frozen.id, "3 misses in a ro")
    answer, timings = body.ask(x)
    assert close_to(answer, whole(8))
    assert [(timing["shadow"], timing["samples"]) for timing in timings] == [(other.id, TWO[7])]
    frozen.signal(signal.SIGCONT)


def test_splits_and_blocks_change_between_batches_and_none_notices(
    body: Child, start: Callable[[Task], Child], model: Model, x: Tensor, whole: Callable[[int], Tensor]
) -> None:
    """A Shadow has its new blocks before the other one; for a moment both shares together may be too large."""
    half = (0, 1, 1, 2, 2, 3, 3, 4)
    plans = [
        (task(model, ONE), task(model, TWO)),
        (task(model, half), task(model, TWO)),
        (task(model, half, [2, 3]), task(model, half, [2, 3])),
        (task(model, (0, 1, 2, 3, 4, 5, 6, 7), [0, 1, 4]), task(model, ONE, [0, 1, 4])),
    ]
    shadows = [start(plans[0][0]), start(plans[0][1])]
    for turn in range(1, 9):
        old, new = plans[(turn - 1) % 4], plans[turn % 4]
        for shadow, before, after in zip(shadows, old, new, strict=True):
            change(body, shadow, before, after)
            answer, timings = body.ask(x)
            assert close_to(answer, whole(8))
            assert {timing["outcome"] for timing in timings} == {"answered"}
    assert body.skipped == []


def test_unpaired_shadow_leaves_nothing_behind(
    body: Child, start: Callable[[Task], Child], model: Model, x: Tensor, whole: Callable[[int], Tensor]
) -> None:
    first, second = start(task(model, ONE)), start(task(model, TWO))
    body.ask(x)
    held, mapped = len(body.descriptors()), shared_mappings(body)
    body.order("unpair", (), {"shadow": first.id})
    assert body.say("unpaired")["shadow"] == first.id
    answer, timings = body.ask(x)
    assert close_to(answer, whole(8))
    assert [timing["shadow"] for timing in timings] == [second.id]
    # A socket and two buffers, each mapped once.
    assert (len(body.descriptors()), shared_mappings(body)) == (held - 3, mapped - 2)


def test_a_body_says_with_whom_it_works(body: Child, start: Callable[[Task], Child], model: Model) -> None:
    first, second = start(task(model, ONE)), start(task(model, TWO))
    body.order("hello", epoch=2)
    pairs = body.say("body")["pairs"]
    assert pairs == [
        {"shadow": first.id, "blocks": BLOCKS, "split": list(ONE), "elsewhere": False},
        {"shadow": second.id, "blocks": BLOCKS, "split": list(TWO), "elsewhere": False},
    ]
