"""Reads an entry's `layers.json` and believes nothing of it that its program can tell.

A Shadow is given block numbers and trusts them to mean the same operations and values as its Body's; a file that describes
another program, or borders that are not that program's, is refused before it is stored.
"""

from __future__ import annotations

import hashlib
import json
import math

from gnomon_core.blocks import Block, Layers
from gnomon_core.errors import GnomonError
from gnomon_core.program import Program
from gnomon_core.signature import DATATYPE_BYTES
from gnomon_profiler.flow import Flow

LAYERS = "layers.json"


def invalid_layers(message: str) -> GnomonError:
    """422: the document does not describe the blocks of its program."""
    return GnomonError(422, "invalid_layers", message, "Capture the model again with gnomon's Extractor.")


def check_layers(data: bytes, document: bytes, program: Program) -> Layers:
    """The blocks in a `layers.json`, once they are those of this program; `document` is the program's JSON.

    Raises:
        GnomonError: 422 `invalid_layers`, naming what is wrong.

    """
    try:
        layers = Layers.from_json(json.loads(data))
    except (ValueError, AttributeError, RecursionError) as error:
        raise invalid_layers(f"The layer blocks cannot be read: {error}.") from None
    if layers.program_sha256 != hashlib.sha256(document).hexdigest():
        raise invalid_layers("The layer blocks are those of another program.")
    if layers.outputs != program.outputs or layers.blocks[-1].end != len(program.operations):
        raise invalid_layers("The layer blocks do not cover the program.")
    flow, sizes = Flow.of(program), weight_bytes(program)
    for block in layers.blocks:
        border = flow.border(block.begin, block.end)
        stated = (block.reads, block.makes, block.weights, block.parameter_bytes)
        if stated != (border.reads, border.makes, border.weights, sum(sizes[name] for name in border.weights)):
            raise invalid_layers(f"Block {block.name[:100]!r} has other borders than its operations.")
        if block.macs < 0 or (block.splittable and not _can_be_handed_over(block)):
            raise invalid_layers(f"Block {block.name[:100]!r} cannot be what it says.")
    return layers


def weight_bytes(program: Program) -> dict[str, int]:
    """The size of each of a program's weights."""
    return {name: math.prod(weight.shape) * DATATYPE_BYTES[weight.datatype] for name, weight in program.weights.items()}


def _can_be_handed_over(block: Block) -> bool:
    return bool(block.reads and block.makes)
