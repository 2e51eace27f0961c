"""A Body says with each answer whom its next batch will be computed with: real processes."""

from __future__ import annotations

import pytest
from torch import Tensor

from gnomon_core.pairs import Pair, shadows_of
from gnomon_runtime.pair.testing import Child, Nursery, Task, change, join, load
from tests.integration.pairs.conftest import HALVES

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]


def said(body: Child, x: Tensor) -> dict[str, Pair]:
    body.send(x)
    return shadows_of(body.frame())


def test_every_answer_names_the_shadows_of_the_next_batch(nursery: Nursery, body: Child, task: Task, x: Tensor) -> None:
    assert said(body, x) == {}
    body.send(x[:1])
    assert set(body.frame().head_json()) == {"outputs"}, "what is said of nobody is nothing"
    shadow, wide = nursery.empty(), Pair(1, tuple(task.blocks), HALVES)
    assert load(shadow, task)["say"] == "registered"
    join(body, shadow, task)
    # Also with one sample, which is never split, and with a batch that the model does not take.
    for samples in (4, 1):
        assert said(body, x[:samples]) == {shadow.id: wide}
    assert said(body, x[:, :, :4]) == {shadow.id: wide}

    other = Task(task.model, [2, 3], (0, 0, 1, 1), [[500.0] * 8])
    change(body, shadow, task, other)
    assert said(body, x) == {shadow.id: Pair(1, (2, 3), (0, 0, 1, 1))}
    shadow.end()
    body.say("unpaired")
    assert said(body, x) == {}
