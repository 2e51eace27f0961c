"""What a network takes on this machine, as a profile of it."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import torch

from gnomon_core.blocks import Layers
from gnomon_core.profiles import LatencyTable, Loading, ModelProfile
from gnomon_runtime.engine import load_program

MAX_BATCH = 4
SLOWER = 4.0
"""The profile says so many times what this machine takes: by that a Body is patient with its Shadow while the machine is busy."""


def profile_of(reference: str, blocks: Layers, sample_s: float) -> ModelProfile:
    """On one core, in proportion to the samples, each block alike."""

    def table(share: float) -> LatencyTable:
        return LatencyTable({1: {batch: share * batch * sample_s for batch in range(1, MAX_BATCH + 1)}})

    shares = (table(1 / len(blocks.blocks)),) * len(blocks.blocks)
    return ModelProfile(reference, blocks, table(1.0), shares, {"shared": Loading(0.0, 0.0)}, 0.0, 0.0, 0, 0.0, 0.0)


def measured_s(program: Path, weights: Path) -> float:
    """What one sample takes on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = load_program(program, weights, "shared")
        times = []
        for _ in range(7):
            began_s = time.perf_counter()
            model.executor.run(model.zeros(1))
            times.append(time.perf_counter() - began_s)
    finally:
        torch.set_num_threads(threads)
    return statistics.median(times)
