"""Random inputs are ones that a model can compute with: rows that its tables have, and masks that leave something to see."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.example_inputs import example_inputs
from gnomon_core.program import Argument, Constant, Operation, Program, Value, Weight, index_ranges
from gnomon_core.signature import NUMPY_TYPES, ModelSignature, TensorSpec

OUTPUT = TensorSpec("logits", "FP32", (2,))


def text_program(*operations: Operation, tables: dict[str, tuple[int, ...]]) -> Program:
    """A program of two inputs of whole numbers, `words` and `mask`."""
    inputs = (TensorSpec("words", "INT64", (12,)), TensorSpec("mask", "INT64", (12,)))
    weights = {name: Weight("FP32", shape) for name, shape in tables.items()}
    signature = ModelSignature("m", "1", inputs, (OUTPUT,))
    return Program("2", "0", signature, ("words", "mask"), ("logits",), weights, operations)


def operation(name: str, *arguments: Argument, makes: str = "logits") -> Operation:
    return Operation(f"aten.{name}", arguments, (makes,))


@pytest.mark.parametrize(
    ("pick", "indices"),
    [
        (operation("embedding.default", Value("table"), Value("narrowed")), range(50)),
        (operation("index_select.default", Value("table"), 0, Value("narrowed")), range(50)),
        (operation("index_select.default", Value("table"), 1, Value("narrowed")), range(8)),
        (operation("index.Tensor", Value("table"), (Value("narrowed"),)), range(-50, 50)),
    ],
)
def test_indices_of_a_table_are_found_behind_operations_that_keep_the_numbers(pick: Operation, indices: range) -> None:
    narrowed = operation("to.dtype", Value("words"), Constant("dtype", "int32"), makes="narrowed")
    assert index_ranges(text_program(narrowed, pick, tables={"table": (50, 8)})) == {"words": indices}


@pytest.mark.parametrize("table", [(), (0, 8)])
def test_table_without_rows_says_nothing_about_the_input(table: tuple[int, ...]) -> None:
    pick = operation("index_select.default", Value("table"), 0, Value("words"))
    assert index_ranges(text_program(pick, tables={"table": table})) == {}


def test_smallest_of_an_inputs_tables_bounds_its_numbers() -> None:
    first = operation("embedding.default", Value("large"), Value("words"), makes="first")
    second = operation("embedding.default", Value("small"), Value("words"), makes="second")
    program = text_program(first, second, tables={"large": (90, 8), "small": (3, 8)})
    assert index_ranges(program) == {"words": range(3)}
    assert set(np.unique(example_inputs(program, 64)[0])) == {0, 1, 2}


def test_numbers_that_an_operation_changes_say_nothing_about_the_input() -> None:
    changed = operation("cumsum.default", Value("words"), 1, makes="positions")
    pick = operation("embedding.default", Value("table"), Value("positions"))
    assert index_ranges(text_program(changed, pick, tables={"table": (50, 8)})) == {}


@given(batch=st.integers(1, 9), rows=st.integers(1, 1000), seed=st.integers(0, 99))
def test_every_sample_sees_a_token_and_picks_rows_that_exist(batch: int, rows: int, seed: int) -> None:
    pick = operation("embedding.default", Value("table"), Value("words"))
    words, mask = example_inputs(text_program(pick, tables={"table": (rows, 4)}), batch, seed)
    assert words.shape == mask.shape == (batch, 12)
    assert 0 <= words.min() <= words.max() < rows
    assert set(np.unique(mask)) <= {0, 1}
    assert mask.any(axis=1).all()


@pytest.mark.parametrize("datatype", NUMPY_TYPES)
@pytest.mark.parametrize("shape", [(), (3, 4)])
def test_inputs_are_the_same_at_each_call_in_the_datatype_of_the_signature(datatype: str, shape: tuple[int, ...]) -> None:
    signature = ModelSignature("m", "1", (TensorSpec("x", datatype, shape),), (OUTPUT,))
    program = Program("2", "0", signature, ("x",), ("logits",), {}, ())
    [first], [again], [other] = example_inputs(program, 40), example_inputs(program, 40), example_inputs(program, 40, seed=7)
    assert (first.dtype, first.shape) == (np.dtype(NUMPY_TYPES[datatype]), (40, *shape))
    assert np.array_equal(first, again)
    assert shape == () or not np.array_equal(first, other)


def test_bytes_are_those_of_an_image() -> None:
    signature = ModelSignature("m", "1", (TensorSpec("image", "UINT8", (3, 16, 16)),), (OUTPUT,))
    [image] = example_inputs(Program("2", "0", signature, ("image",), ("logits",), {}, ()), 4)
    assert image.min() < 16
    assert image.max() > 239
