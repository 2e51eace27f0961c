"""What a program computes, at any batch size, and what it holds while it does."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gnomon_core.program import BatchSize, Constant
from gnomon_runtime.engine import Executor

pytestmark = pytest.mark.torch
Make = Callable[..., Executor]
Ramp = Callable[..., Tensor]


def test_runs_at_any_batch_size_twice_with_the_same_answer(executor: Make, ramp: Ramp) -> None:
    weights = {"w": torch.ones(3, 4), "b": torch.arange(3.0)}
    made = executor(
        [("aten.linear.default", ("%x", "%w", "%b"), "h"), ("aten.relu.default", ("%h",), "y")],
        "y",
        weights=weights,
        out_shape=(3,),
    )
    for batch in (1, 2, 3, 8, 16):
        x = ramp(batch, 4)
        expected = torch.relu(x.sum(1, keepdim=True) + torch.arange(3.0))
        for _ in range(3):
            assert torch.equal(made.run([x])[0], expected)


def test_sizes_follow_the_batch(executor: Make, ramp: Ramp) -> None:
    made = executor(
        [
            ("aten.view.default", ("%x", [BatchSize(2), 2]), "halves"),
            ("aten.sum.dim_IntList", ("%halves", [1]), "sums"),
            ("aten.view.default", ("%sums", [BatchSize(1), 2]), "y"),
        ],
        "y",
        out_shape=(2,),
    )
    for batch in (1, 2, 5):
        x = ramp(batch, 4)
        assert torch.equal(made.run([x])[0], x.view(batch, 2, 2).sum(2))


def test_several_results_lists_and_constants(executor: Make, ramp: Ramp) -> None:
    made = executor(
        [
            ("aten.split.Tensor", ("%x", 2, 1), ("left", "right")),
            ("aten.max.dim", ("%left", 1, True), ("largest", None)),
            ("aten.to.dtype", ("%right", Constant("dtype", "float64")), "wide"),
            ("aten.clamp.default", ("%wide", float("-inf"), 3.0), "clamped"),
            ("aten._to_copy.default", ("%clamped",), "narrow", {"dtype": Constant("dtype", "float32")}),
            ("aten.cat.default", (["%largest", "%narrow"], 1), "y"),
        ],
        "y",
        out_shape=(3,),
    )
    x = ramp(3, 4)
    expected = torch.cat([x[:, :2].max(1, keepdim=True).values, x[:, 2:].clamp(max=3.0)], 1)
    assert torch.equal(made.run([x])[0], expected)


def test_memory_is_reused_only_where_nothing_reads_it_again(executor: Make, ramp: Ramp) -> None:
    """`b` is read after the ReLU of it, `view` looks into `c`: neither may be written over."""
    made = executor(
        [
            ("aten.mul.Tensor", ("%x", 2.0), "a"),
            ("aten.relu.default", ("%a",), "b"),
            ("aten.relu.default", ("%b",), "again"),
            ("aten.add.Tensor", ("%again", "%b"), "c"),
            ("aten.view.default", ("%c", [-1, 2, 2]), "view"),
            ("aten.mul.Tensor", ("%c", -1.0), "d"),
            ("aten.view.default", ("%view", [-1, 4]), "flat"),
            ("aten.add.Tensor", ("%flat", "%d"), "zero"),
            ("aten.add.Tensor", ("%zero", "%flat"), "y"),
        ],
        "y",
    )
    x = ramp(3, 4)
    expected = 2 * torch.relu(2 * x)
    for _ in range(3):
        assert torch.equal(made.run([x])[0], expected)


def test_inputs_and_weights_are_never_written(executor: Make, ramp: Ramp) -> None:
    weights = {"w": torch.full((4,), 3.0)}
    made = executor(
        [
            ("aten.relu.default", ("%x",), "h"),
            ("aten.view.default", ("%w", [1, 4]), "row"),
            ("aten.expand.default", ("%row", [BatchSize(1), 4]), "rows"),
            ("aten.add.Tensor", ("%rows", "%h"), "s"),
            ("aten.view.default", ("%x", [-1, 4]), "alias"),
            ("aten.hardtanh.default", ("%alias", -1.0, 1.0), "t"),
            ("aten.add.Tensor", ("%s", "%t"), "y"),
        ],
        "y",
        weights=weights,
    )
    x = ramp(2, 4)
    before = x.clone()
    for _ in range(3):
        made.run([x])
    assert torch.equal(x, before)
    assert torch.equal(weights["w"], torch.full((4,), 3.0))


def test_an_input_may_be_an_output(executor: Make, ramp: Ramp) -> None:
    made = executor([("aten.relu.default", ("%x",), "unused")], "x")
    x = ramp(2, 4)
    assert torch.equal(made.run([x])[0], x)


def test_a_value_is_freed_after_its_last_use(executor: Make) -> None:
    """Thirty values of 1 MB in a chain: never more than two live at once, in the checked run and in those after it."""
    chain: list[tuple[Any, ...]] = [("aten.exp.default", ("%x",), "v0")]
    chain += [("aten.exp.default", (f"%v{index}",), f"v{index + 1}") for index in range(30)]
    made = executor(chain, "v30", shape=(1 << 18,))
    x = torch.full((1, 1 << 18), -1e9)
    made.run([x])
    assert made.peak_bytes(1) == 2 * 4 * (1 << 18)

    alive: list[weakref.ref[Tensor]] = []
    most = 0
    plan = made._plans[1]
    steps = []
    for call, *rest in plan.steps:

        def watched(*arguments: Any, call: Any = call) -> Any:
            nonlocal most
            result = call(*arguments)
            alive.append(weakref.ref(result))
            most = max(most, sum(reference() is not None for reference in alive))
            return result

        steps.append((watched, *rest))
    object.__setattr__(plan, "steps", tuple(steps))
    made.run([x])
    assert len(alive) == 31
    assert most == 2


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        [torch.zeros(2, 5)],
        [torch.zeros(0, 4)],
        [torch.zeros(())],
        [torch.zeros(2, 4, dtype=torch.float64)],
        [torch.zeros(2, 4), torch.zeros(2, 4)],
    ],
)
def test_inputs_that_do_not_fit_are_a_value_error(inputs: list[Tensor], executor: Make) -> None:
    with pytest.raises(ValueError, match="input"):
        executor([("aten.relu.default", ("%x",), "y")], "y").run(inputs)


def test_a_run_that_failed_leaves_nothing_behind(executor: Make) -> None:
    weights = {"table": torch.arange(6.0).view(3, 2)}
    made = executor(
        [("aten.embedding.default", ("%table", "%x"), "rows"), ("aten.sum.dim_IntList", ("%rows", [1]), "y")],
        "y",
        weights=weights,
        datatype="INT64",
        shape=(2,),
        out_shape=(2,),
    )
    for _ in range(2):
        with pytest.raises(IndexError):
            made.run([torch.tensor([[0, 9]])])
        assert torch.equal(made.run([torch.tensor([[0, 2]])])[0], torch.tensor([[4.0, 6.0]]))
