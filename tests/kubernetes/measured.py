"""A network, what it takes on this machine as a profile of it, and a function of it that cannot carry a burst by itself."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import torch

from gnomon_core.blocks import Layers
from gnomon_core.profiles import LatencyTable, Loading, ModelProfile
from gnomon_profiler.repository import DirectoryRepository
from gnomon_runtime.engine import load_program
from gnomon_runtime.engine.loaded_model import zeros

SIDE, CHANNELS, CONVOLUTIONS = 64, 32, 8
MAX_BATCH = 4
SERIAL = 0.1
SLOWER = 4.0
"""The profile says so many times what this machine takes: by that a Body is patient with its Shadow while the machine is busy."""


def network() -> torch.nn.Sequential:
    """Convolutions one after the other, with the same weights each time: some milliseconds a sample."""
    torch.manual_seed(0)
    widths = [3] + [CHANNELS] * CONVOLUTIONS
    convolutions = [torch.nn.Conv2d(first, second, 3, padding=1) for first, second in pairwise(widths)]
    layers = [layer for convolution in convolutions for layer in (convolution, torch.nn.ReLU())]
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(CHANNELS, 3)).eval()


def put_profiled(models: Path, name: str, files: Mapping[str, bytes], cores: Sequence[int] = (1,)) -> float:
    """Store a captured model with a profile of it. How long a sample takes by that on one core, in seconds."""
    entry = DirectoryRepository(models).put(name, "1", files)
    assert entry.layers is not None
    blocks = Layers.from_json(json.loads(entry.layers.read_bytes()))
    sample_s = SLOWER * measured_s(entry.program, entry.weights)
    folder = models / "profiles" / f"{name}@1"
    folder.mkdir(parents=True)
    (folder / "here.json").write_text(json.dumps(profile_of(f"{name}@1", blocks, sample_s, cores).to_json()))
    return sample_s


def in_a_hurry(name: str, sample_s: float, samples: int = 6) -> dict[str, str]:
    """Annotations of a function whose objective is so many samples' time: within it a Body answers as many callers."""
    return {
        "gnomon/model": f"{name}@1",
        "gnomon/autoscaler": "asyfunc",
        "gnomon/max-batch": str(MAX_BATCH),
        "gnomon/slo-ms": str(round(1000 * samples * sample_s / SLOWER)),
        "gnomon/deadline-ms": "60000",
    }


def profile_of(reference: str, blocks: Layers, sample_s: float, cores: Sequence[int] = (1,)) -> ModelProfile:
    """In proportion to the samples, each block alike; what more cores share is all but a tenth of the work."""

    def row(core_s: float, count: int) -> dict[int, float]:
        return {batch: core_s * batch * (SERIAL + (1 - SERIAL) / count) for batch in range(1, MAX_BATCH + 1)}

    def table(share: float) -> LatencyTable:
        return LatencyTable({count: row(share * sample_s, count) for count in cores})

    shares = (table(1 / len(blocks.blocks)),) * len(blocks.blocks)
    return ModelProfile(reference, blocks, table(1.0), shares, {"shared": Loading(0.0, 0.0)}, 0.0, 0.0, 0, 0.0, 0.0)


def measured_s(program: Path, weights: Path) -> float:
    """Seconds of one sample on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = load_program(program, weights, "shared")
        inputs = zeros(model.signature, 1)
        times = []
        for _ in range(7):
            began_s = time.perf_counter()
            model.run(inputs)
            times.append(time.perf_counter() - began_s)
    finally:
        torch.set_num_threads(threads)
    return statistics.median(times)
