"""The Shadow: holds some layer blocks of a model and computes them for a Body on another node, in an image.

`GNOMON_MODEL` names the model, `resnet50` or `resnet50@1`; `GNOMON_BLOCKS` the blocks, `0-5,7`. `GNOMON_MODELS` is the
repository: a folder, a volume at /models unless said otherwise, or `s3://bucket/prefix`, of which only these blocks' weights
are fetched. `GNOMON_WEIGHTS=private` gives the instance its own copy of them, `GNOMON_ENGINE` names an engine as for a Body. On
one machine a Shadow is made from an empty process that is kept ready, and this file is not run.
"""

from __future__ import annotations

from dataclasses import replace

from gnomon_core.engines import engine_of_environment, engine_options
from gnomon_core.errors import bad_request
from gnomon_core.launch import Launch
from gnomon_profiler.repository import repository_of_instance
from gnomon_runtime.application import Application
from gnomon_runtime.pair.micro_batches import BlocksApplication


def gnomon_application(launch: Launch) -> Application:
    """The application that answers the micro-batches of this instance."""
    variables = launch.environment
    reference, wanted = variables.get("GNOMON_MODEL"), variables.get("GNOMON_BLOCKS")
    if not reference or not wanted:
        raise bad_request("model_missing", "No model or no blocks are named.", "Set GNOMON_MODEL, and GNOMON_BLOCKS to 0-5,7.")
    blocks = read_blocks(wanted)
    entry = repository_of_instance(variables).get_blocks(reference, blocks)
    if entry.layers is None:
        raise bad_request("no_layer_blocks", f"{reference} was captured without layer blocks.", "Add the model again.")
    options = {
        "program": str(entry.program),
        "weights": str(entry.weights),
        "layers": str(entry.layers),
        "weight_mode": variables.get("GNOMON_WEIGHTS") or "shared",
        **engine_options(engine_of_environment(entry.files, variables)),
        "blocks": blocks,
    }
    return BlocksApplication(replace(launch, kind="shadow", options=options))


def read_blocks(text: str) -> tuple[int, ...]:
    """Block numbers: `0-2,5` is 0, 1, 2 and 5.

    Raises:
        GnomonError: 400 `invalid_blocks`.

    """
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
            raise bad_request("invalid_blocks", f"GNOMON_BLOCKS has {part!r}.", "Name numbers and ranges: 0-5,7.")
        found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))
