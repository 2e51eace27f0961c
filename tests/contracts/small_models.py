"""Models of a few operations, as the files that a repository takes."""

import hashlib
import json
from typing import Any

import numpy as np
from safetensors.numpy import save

from gnomon_core.blocks import Block, Layers
from gnomon_core.program import Operation, Program, Value, Weight, dump_program
from gnomon_core.signature import ModelSignature, TensorSpec


def files(scale: float = 2.0, op: str = "aten.mul.Tensor") -> dict[str, bytes]:
    spec = TensorSpec("x", "FP32", (3,))
    program = Program(
        torch_version="2.6.0",
        schema_sha256="00",
        signature=ModelSignature("made", "0", (spec,), (spec,), details={"scale": scale}),
        inputs=("x",),
        outputs=("y",),
        weights={},
        operations=(Operation(op, (Value("x"), scale), ("y",)),),
    )
    header = json.dumps({"__metadata__": {"scale": str(scale)}}).encode()
    return {"program.json": dump_program(program), "weights.safetensors": len(header).to_bytes(8, "little") + header}


def with_layers(made: dict[str, bytes], difference: float = 0.0) -> dict[str, bytes]:
    """With the layer blocks of the program above: one of one operation."""
    block = Block("all", 0, 1, ("x",), ("y",), (), 0, 0, splittable=True, difference=difference)
    layers = Layers(hashlib.sha256(made["program.json"]).hexdigest(), ("y",), (block,), {"x": 12, "y": 12})
    return made | {"layers.json": json.dumps(layers.to_json()).encode()}


def two_blocks() -> tuple[dict[str, bytes], dict[str, np.ndarray[Any, Any]]]:
    """A model of two blocks and its weights: three small tensors in the first block, a large one in the second."""
    weights = {name: np.arange(size, dtype=np.float32) + size for name, size in {"a": 3, "b": 5, "c": 64, "big": 1 << 19}.items()}
    spec = TensorSpec("x", "FP32", (1,))
    chain = ["x", "v1", "v2", "v3", "y"]
    program = Program(
        torch_version="2.6.0",
        schema_sha256="00",
        signature=ModelSignature("made", "0", (spec,), (spec,)),
        inputs=("x",),
        outputs=("y",),
        weights={name: Weight("FP32", array.shape) for name, array in weights.items()},
        operations=tuple(
            Operation("aten.mul.Tensor", (Value(before), Value(name)), (after,))
            for before, name, after in zip(chain, weights, chain[1:], strict=False)
        ),
    )
    document = dump_program(program)
    blocks = (
        Block("first", 0, 3, ("x",), ("v3",), ("a", "b", "c"), 0, 4 * 72, splittable=True),
        Block("second", 3, 4, ("v3",), ("y",), ("big",), 0, 4 << 19, splittable=True),
    )
    layers = Layers(hashlib.sha256(document).hexdigest(), ("y",), blocks, {"x": 4, "v3": 4, "y": 4})
    files = {"program.json": document, "weights.safetensors": save(weights), "layers.json": json.dumps(layers.to_json()).encode()}
    return files, weights
