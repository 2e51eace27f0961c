"""How long batches take: the whole model and each of its blocks, on some cores.

Order: `program`, `weights` and `layers` (paths), `cores`, `cpus` to run on, `batches`, `repeats` (the least number of each), and
`budget_s` (as long as it is not spent, a batch is repeated up to `most_repeats` times).

Answer, for each batch: `batch`, `whole_s`, `range_s` (interquartile), `repeats`, and of each block `blocks_s` and
`block_ranges_s`. Blocks are measured inside whole runs; their medians are scaled so that they sum to the whole's median, which
the medians of parts do not do by themselves (by some tenths of a percent).
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gnomon_core.blocks import Layers
from gnomon_runtime.birth import use_cores
from gnomon_runtime.engine.allocator import keep_freed_memory
from gnomon_runtime.engine.timing import TimedProgram, load_timed, touch
from gnomon_runtime.instance import pin
from gnomon_runtime.measuring.statistics import median_and_range

WARM_UP_RUNS = 2
"""The first is checked and slow; the second is the first by the plan, and leaves the allocator with the memory that it needs."""


def measure_latency(order: Mapping[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Measure each batch and say it as soon as it is done."""
    keep_freed_memory()
    pin(tuple(order["cpus"]))
    use_cores(int(order["cores"]))
    model = load_timed(Path(order["program"]), Path(order["weights"]))
    touch(model.weights.tensors)
    ends = [block.end for block in read_layers(Path(order["layers"])).blocks]
    gc.collect()
    gc.freeze()
    for batch in order["batches"]:
        runs = _repeat(model, int(batch), ends, order)
        say({"batch": batch} | summary(runs))


def read_layers(path: Path) -> Layers:
    """The blocks in a file.

    Raises:
        ValueError: it holds none.

    """
    return Layers.from_json(json.loads(path.read_bytes()))


def summary(runs: Sequence[Sequence[float]]) -> dict[str, Any]:
    """What is said of a batch: `runs` holds the seconds of each block in each run."""
    whole_s, range_s = median_and_range([sum(run) for run in runs])
    blocks = [median_and_range(block) for block in zip(*runs, strict=True)]
    scale = whole_s / (sum(block_s for block_s, _ in blocks) or 1.0)
    return {
        "whole_s": whole_s,
        "range_s": range_s,
        "repeats": len(runs),
        "blocks_s": [block_s * scale for block_s, _ in blocks],
        "block_ranges_s": [block_range_s for _, block_range_s in blocks],
    }


def _repeat(model: TimedProgram, batch: int, ends: Sequence[int], order: Mapping[str, Any]) -> list[tuple[float, ...]]:
    inputs = model.inputs(batch)
    for _ in range(WARM_UP_RUNS):
        model.executor.run(inputs)
    runs: list[tuple[float, ...]] = []
    end_s = time.perf_counter() + float(order["budget_s"])
    while len(runs) < int(order["repeats"]) or (time.perf_counter() < end_s and len(runs) < int(order["most_repeats"])):
        runs.append(model.executor.timed_run(inputs, ends))
    return runs
