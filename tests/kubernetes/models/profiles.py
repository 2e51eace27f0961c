"""What a network takes on this machine, stored as what was measured of it."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.shadow.models import StoredModel
from gnomon_core.profiles import LatencyTable, Loading, ModelProfile
from gnomon_profiler.measuring.store import ProfileStore
from gnomon_runtime.engine import load_program

MAX_BATCH = 4
SLOWER = 4.0
"""The profile says so many times what this machine takes: by that a Body is patient with its Shadow while the machine is busy."""


@contextlib.contextmanager
def profiled(repository: Path, network: StoredModel) -> Iterator[float]:
    """A profile of the network, on one core, in the repository; how long a sample really takes, in seconds."""
    sample_s = measured_s(network)

    def table(share: float) -> LatencyTable:
        return LatencyTable({1: {batch: SLOWER * share * batch * sample_s for batch in range(1, MAX_BATCH + 1)}})

    blocks = network.layers
    shares = (table(1 / len(blocks.blocks)),) * len(blocks.blocks)
    profile = ModelProfile(network.reference, blocks, table(1.0), shares, {"shared": Loading(0.0, 0.0)}, 0.0, 0.0, 0, 0.0, 0.0)
    file = ProfileStore(repository).put(network.reference, "here", profile)
    try:
        yield sample_s
    finally:
        shutil.rmtree(file.parent)


def measured_s(network: StoredModel) -> float:
    """What one sample takes on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = load_program(network.entry.program, network.entry.weights, "shared")
        times = []
        for _ in range(7):
            began_s = time.perf_counter()
            model.executor.run(model.zeros(1))
            times.append(time.perf_counter() - began_s)
    finally:
        torch.set_num_threads(threads)
    return statistics.median(times)
