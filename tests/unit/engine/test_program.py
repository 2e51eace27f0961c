"""A layer program's document: what is written is what is read, and nothing else is."""

import json
from typing import Any

import pytest

from gnomon_core.program import BatchSize, Operation, Program, Value, Weight, dump_program, parse_program
from gnomon_core.signature import ModelSignature, TensorSpec
from tests.refusals import refused

SPEC = TensorSpec("x", "FP32", (3,))
PROGRAM = Program(
    torch_version="2.6.0",
    schema_sha256="00",
    signature=ModelSignature("m", "1", (SPEC,), (TensorSpec("y", "FP32", (3,)),)),
    inputs=("x",),
    outputs=("y",),
    weights={"w": Weight("FP32", (3,))},
    operations=(Operation("aten.add.Tensor", (Value("x"), Value("w")), ("y",)),),
)


def document(**changes: Any) -> bytes:
    return json.dumps(json.loads(dump_program(PROGRAM)) | changes).encode()


def operation(**changes: Any) -> bytes:
    return document(operations=[{"op": "aten.add.Tensor", "args": [{"value": "x"}, {"value": "w"}], "results": ["y"]} | changes])


def test_a_program_survives_its_document() -> None:
    assert parse_program(dump_program(PROGRAM)) == PROGRAM
    assert dump_program(parse_program(dump_program(PROGRAM))) == dump_program(PROGRAM)


def test_a_size_follows_the_batch() -> None:
    assert [BatchSize(49).at(batch) for batch in (1, 2, 16)] == [49, 98, 784]
    assert [BatchSize(64, 3, 4).at(batch) for batch in (1, 2)] == [16, 32]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x80\x04K\x01.", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "format"),
        (document(format="gnomon-layer-program/99"), "gnomon-layer-program/99"),
        (document(operations=None), "lacks a field"),
        (document(signature={}), "lacks a field"),
        (document(inputs=["../x"], outputs=["y" * 300]), "not a name"),
        (document(outputs=["z"]), "Nothing makes"),
        (document(inputs=["w"]), "same name"),
        (document(inputs=["x", "x2"]), "another number"),
        (document(weights={"w": {"datatype": "OBJECT", "shape": [3]}}), "'OBJECT'"),
        (document(weights={"w": {"datatype": "FP32", "shape": [-1]}}), "(-1,)"),
        (document(weights={"w": {"datatype": "FP32", "shape": [3], "order": [1]}}), "order (1,)"),
        (operation(op="os.system"), "not the name of an ATen overload"),
        (operation(op="aten.add.Tensor; import os"), "not the name of an ATen overload"),
        (operation(args=[{"value": "y"}]), "before anything makes it"),
        (operation(results=["x"]), "a second time"),
        (operation(args=[{"eval": "1"}]), "not an argument"),
        (operation(args=["/etc/passwd"]), "not an argument"),
        (operation(args=[[[[[[1]]]]]]), "not an argument"),
        (operation(args=[2**63]), "64-bit"),
        (operation(args=[{"batch": -1}]), "does not grow"),
        (operation(args=[{"batch": 1, "over": 0}]), "does not grow"),
        (operation(args=[{"batch": 2**41}]), "does not grow"),
        (operation(args=[list(range(5000))]), "not an argument"),
    ],
)
def test_invalid_program_is_refused_with_the_reason(data: bytes, says: str) -> None:
    with refused(422, "invalid_program", message=says):
        parse_program(data)


def test_infinities_are_written_as_words() -> None:
    program = parse_program(operation(op="aten.clamp.default", args=[{"value": "x"}, {"float": "-inf"}, {"float": "inf"}]))
    assert program.operations[0].args[1:] == (float("-inf"), float("inf"))
    assert b"Infinity" not in dump_program(program)
