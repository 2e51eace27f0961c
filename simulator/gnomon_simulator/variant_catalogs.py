"""Catalogs of variants that nobody has measured, for tests, benchmarks and simulations.

The ranges are those of INFaaS (section 1 and Table 2): accuracies from 0.566 to 0.825, loading from 0.59 to 11 s, one sample from
1.5 ms to 5.7 s, and three kinds of hardware whose prices differ by a factor of about 50. Within an architecture a faster device
costs more, whatever runs on it. A larger batch answers later and sustains more, a lower precision is quicker and less accurate.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from gnomon_core.variants import CPU, Variant

INFERENTIA, GPU = "inferentia", "gpu"
BATCHES = (1, 2, 4, 8, 16, 32, 64)
ARCHITECTURES = 22
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Device:
    """Where variants of a catalog run: how fast, at which price, and with which resources besides memory."""

    hardware: str
    engine: str
    cores: int
    speed: float
    overhead_s: float
    cost_per_s: float


DEVICES = (
    Device(CPU, "torch", 1, 1.0, 0.002, 0.3),
    Device(CPU, "onnx", 1, 1.4, 0.002, 0.3),
    Device(CPU, "onnx", 2, 2.6, 0.002, 0.55),
    Device(CPU, "openvino", 4, 5.2, 0.002, 1.0),
    Device(INFERENTIA, "neuron", 1, 40.0, 0.003, 3.0),
    Device(GPU, "torch", 1, 90.0, 0.004, 10.0),
    Device(GPU, "tensorrt", 1, 260.0, 0.001, 16.0),
)
PRECISIONS = (("fp32", 1.0, 0.0), ("bf16", 1.6, 0.002), ("int8", 2.1, 0.012))


def made_up_variants(count: int, chance: random.Random, *, architectures: int = ARCHITECTURES) -> tuple[Variant, ...]:
    """`count` different variants, spread evenly over the architectures."""
    models = [(f"model{number:03d}", chance.uniform(0.578, 0.825), chance.uniform(0.02, 2.5)) for number in range(architectures)]
    every = [(device, precision, batch) for device in DEVICES for precision in PRECISIONS for batch in BATCHES]
    found: list[Variant] = []
    for number, (name, accuracy, work_s) in enumerate(models):
        share = count // architectures + (number < count % architectures)
        for device, (precision, quicker, lost), batch in chance.sample(every, share):
            latency_s = {
                size: device.overhead_s + work_s * size**0.93 / (device.speed * quicker) for size in BATCHES if size <= batch
            }
            memory_gib = (0.4 + work_s) * (1.0 + batch / 32.0)
            found.append(
                Variant(
                    id=f"{name}-{device.engine}-{device.hardware}{device.cores}-{precision}-{batch}",
                    architecture=name,
                    engine=device.engine,
                    precision=precision,
                    cores=device.cores,
                    max_batch=batch,
                    accuracy=accuracy - lost,
                    load_s=0.59 + chance.uniform(0.5, 1.5) * min(7.0, memory_gib),
                    latency_s=latency_s,
                    memory_bytes=int(memory_gib * GIB),
                    saturation_rps=batch / latency_s[batch],
                    cost_per_s=device.cost_per_s,
                    hardware=device.hardware,
                    devices={} if device.hardware == CPU else {device.hardware: 0.25 if device.hardware == GPU else 1.0},
                )
            )
    return tuple(found)
