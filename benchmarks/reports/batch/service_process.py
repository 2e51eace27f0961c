"""Measures one captured model on so many cores, in a process of its own; a line of JSON for each batch.

    python -m benchmarks.reports.batch.service_process FOLDER CORES BATCHES REPEATS

The first round goes from the smallest batch up and warms up; the process's largest resident size after each batch is that
batch's.
The rounds after it are timed, every other one downwards, so that a machine that slows down slows all batches alike.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

KIB_PER_MB = 1024.0


def main(folder: Path, cores: int, batches: list[int], repeats: int) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    import torch

    from gnomon_runtime.engine import load_program
    from gnomon_runtime.engine.loaded_model import zeros
    from gnomon_runtime.engine.torch_support import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(cores)
    program = load_program(folder / "program.json", folder / "weights.safetensors")
    seconds: dict[int, list[float]] = {batch: [] for batch in batches}
    peaks_mb = {}
    for batch in sorted(batches):
        program.executor.run(_photographs(zeros(program.signature, batch)))
        peaks_mb[batch] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_PER_MB
    for number in range(repeats):
        for batch in sorted(batches, reverse=bool(number % 2)):
            inputs = _photographs(zeros(program.signature, batch))
            begun_s = time.perf_counter()
            program.executor.run(inputs)
            seconds[batch].append(time.perf_counter() - begun_s)
    for batch in batches:
        print(json.dumps({"cores": cores, "batch": batch, "seconds": seconds[batch], "peak_mb": round(peaks_mb[batch], 1)}))


def _photographs(zeros: list[Any]) -> list[Any]:
    import torch

    return [torch.randn_like(zero) if zero.is_floating_point() else zero for zero in zeros]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), [int(value) for value in sys.argv[3].split(",")], int(sys.argv[4]))
