"""The rehearsal of a fork that waits: it loads and runs a network of its own, so that the first real load finds everything warm.

A fork shares its parent's pages until it writes to them, and Python writes to every object that it looks at. The first load in a
fresh fork therefore pays for some thousand page faults, and the first convolution for starting its library. While a fork waits
for its order, or a container for its load, there is time for both: the rehearsal takes the very way that a load takes, with files
that exist only in its memory.

The rehearsal has steps of a few milliseconds. Between them the process checks for an order. An interrupted rehearsal continues
later or is abandoned: the load then pays for the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator
from pathlib import Path

import torch
from safetensors.torch import save

from gnomon_core import packets
from gnomon_core.blocks import Block, Layers
from gnomon_core.program import Operation, Program, Value, Weight, dump_program, schema_sha256
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_runtime.engine.allowlist import operator_of
from gnomon_runtime.engine.torch_support import keep_freed_memory
from gnomon_runtime.pair.shadow_model import HeldBlocks

CHANNELS, SIZE, DEPTH = 16, 16, 12
_CONVOLUTION, _NORM = "aten.conv2d.default", "aten._native_batch_norm_legit_no_training.default"
_RELU, _ADD, _POOL = "aten.relu.default", "aten.add.Tensor", "aten.max_pool2d.default"


def rehearsal() -> Generator[None, None, None]:
    """Load a small residual network as a Shadow would, run it on one sample and forget it, one step for each `next`."""
    keep_freed_memory()
    torch.set_num_threads(1)
    program, layers = _network()
    document = dump_program(program)
    layers = Layers(hashlib.sha256(document).hexdigest(), layers.outputs, layers.blocks, layers.value_bytes)
    weights = save({name: torch.ones(weight.shape) for name, weight in program.weights.items()})
    yield
    files = [packets.sealed_file("rehearsal", content) for content in (document, weights, json.dumps(layers.to_json()).encode())]
    try:
        paths = [Path(f"/proc/self/fd/{file}") for file in files]
        blocks_held = HeldBlocks(paths[0], paths[1], paths[2], "shared")
    finally:
        for file in files:
            os.close(file)
    yield
    blocks_held.hold(range(len(layers.blocks)))
    yield
    [run] = layers.runs(range(len(layers.blocks)))
    segment = blocks_held.segment(run.begin, run.end)
    assert segment is not None
    for _ in range(2):
        segment.run(1, [torch.zeros(1, CHANNELS, SIZE, SIZE)])
        yield


def _network() -> tuple[Program, Layers]:
    """`DEPTH` times convolution, normalisation, addition of what came before, ReLU and a pooling that changes nothing."""
    operations: list[Operation] = []
    weights: dict[str, Weight] = {}
    blocks: list[Block] = []
    previous = "x"
    for index in range(DEPTH):
        kernel, scale, shift, mean, variance = (f"{name}{index}" for name in ("kernel", "scale", "shift", "mean", "variance"))
        weights |= {kernel: Weight("FP32", (CHANNELS, CHANNELS, 3, 3))}
        weights |= {name: Weight("FP32", (CHANNELS,)) for name in (scale, shift, mean, variance)}
        begin, three = len(operations), (f"a{index}", f"b{index}", f"c{index}")
        tensors = tuple(Value(name) for name in (three[0], scale, shift, mean, variance))
        operations += [
            Operation(_CONVOLUTION, (Value(previous), Value(kernel), None, (1, 1), (1, 1), (1, 1), 1), (three[0],)),
            Operation(_NORM, (*tensors, 0.1, 1e-5), (three[1], None, None)),
            Operation(_ADD, (Value(three[1]), Value(previous)), (three[2],)),
            Operation(_RELU, (Value(three[2]),), (f"d{index}",)),
            Operation(_POOL, (Value(f"d{index}"), (3, 3), (1, 1), (1, 1)), (f"e{index}",)),
        ]
        blocks.append(Block(f"{index}", begin, len(operations), (previous,), (f"e{index}",), (), 0, 0, splittable=True))
        previous = f"e{index}"
    value_bytes = dict.fromkeys(("x", *(block.makes[0] for block in blocks)), 4 * CHANNELS * SIZE * SIZE)
    spec = (CHANNELS, SIZE, SIZE)
    signature = ModelSignature("rehearsal", "1", (TensorSpec("x", "FP32", spec),), (TensorSpec("y", "FP32", spec),))
    schemas = schema_sha256(operator_of(name).schema for name in (_CONVOLUTION, _NORM, _RELU, _ADD, _POOL))
    program = Program(torch.__version__, schemas, signature, ("x",), (previous,), weights, tuple(operations))
    return program, Layers("", (previous,), tuple(blocks), value_bytes)
