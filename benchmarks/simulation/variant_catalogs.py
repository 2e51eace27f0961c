"""Catalogs of variants, for tests, benchmarks and simulations: those that were profiled, and some that were made up.

`profiled_variants` are real: each was run on the machine that the file names. The others are made up.

The ranges are those of INFaaS (section 1 and Table 2): accuracies from 0.566 to 0.825, loading from 0.59 to 11 s, one sample from
1.5 ms to 5.7 s, and three kinds of hardware whose prices differ by a factor of about 50. Within an architecture a faster device
costs more, whatever runs on it. A larger batch answers later and sustains more, a lower precision is quicker and less accurate.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from benchmarks.profiled_variants import read_profiled
from gnomon_core.variants import CPU, Variant

INFERENTIA, GPU = "inferentia", "gpu"
BATCHES = (1, 2, 4, 8, 16, 32, 64)
ARCHITECTURES = 22
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Device:
    """Device of a catalog's variants: speed, price, and resources besides memory."""

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


def made_up_variants(count: int, rng: random.Random, *, architectures: int = ARCHITECTURES) -> tuple[Variant, ...]:
    """`count` different variants, spread evenly over the architectures."""
    models = [(f"model{number:03d}", rng.uniform(0.578, 0.825), rng.uniform(0.02, 2.5)) for number in range(architectures)]
    combinations = [(device, precision, batch) for device in DEVICES for precision in PRECISIONS for batch in BATCHES]
    variants: list[Variant] = []
    for number, (name, accuracy, work_s) in enumerate(models):
        variant_count = count // architectures + (number < count % architectures)
        for device, (precision, speedup, accuracy_loss), batch in rng.sample(combinations, variant_count):
            latency_s = {
                size: device.overhead_s + work_s * size**0.93 / (device.speed * speedup) for size in BATCHES if size <= batch
            }
            memory_gib = (0.4 + work_s) * (1.0 + batch / 32.0)
            variants.append(
                Variant(
                    id=f"{name}-{device.engine}-{device.hardware}{device.cores}-{precision}-{batch}",
                    architecture=name,
                    engine=device.engine,
                    precision=precision,
                    cores=device.cores,
                    max_batch=batch,
                    accuracy=accuracy - accuracy_loss,
                    load_s=0.59 + rng.uniform(0.5, 1.5) * min(7.0, memory_gib),
                    latency_s=latency_s,
                    memory_bytes=int(memory_gib * GIB),
                    saturation_rps=batch / latency_s[batch],
                    cost_per_s=device.cost_per_s,
                    hardware=device.hardware,
                    devices={} if device.hardware == CPU else {device.hardware: 0.25 if device.hardware == GPU else 1.0},
                )
            )
    return tuple(variants)


def profiled_variants(path: Path, *, disturbed: bool = False) -> tuple[Variant, ...]:
    """The variants in a file of `benchmarks.variants`. Those whose measurement was disturbed are left out unless they are wanted.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds none.

    """
    measured = read_profiled(path)
    return tuple(
        variant for measurement in measured if disturbed or not measurement.disturbed for variant in measurement.variants()
    )


@dataclass(frozen=True, slots=True)
class Architecture:
    """A published network: its family, top-1 accuracy on ImageNet, GFLOPs of one sample, and megabytes of weights."""

    name: str
    family: str
    accuracy: float
    gflops: float
    weights_mb: float


NETWORKS = (
    Architecture("mobilenetv1", "mobilenet", 0.706, 0.57, 17),
    Architecture("mobilenetv2", "mobilenet", 0.718, 0.48, 14),
    Architecture("alexnet", "alexnet", 0.566, 0.72, 244),
    Architecture("densenet121", "densenet", 0.750, 2.9, 32),
    Architecture("densenet169", "densenet", 0.762, 3.4, 57),
    Architecture("densenet201", "densenet", 0.773, 4.3, 80),
    Architecture("resnet18", "resnet", 0.698, 1.8, 47),
    Architecture("resnet34", "resnet", 0.733, 3.7, 87),
    Architecture("resnet50", "resnet", 0.761, 4.1, 102),
    Architecture("resnet101", "resnet", 0.774, 7.8, 178),
    Architecture("resnet152", "resnet", 0.783, 11.6, 241),
    Architecture("resnext50", "resnet", 0.776, 4.3, 100),
    Architecture("resnext101", "resnet", 0.793, 16.5, 355),
    Architecture("vgg16", "vgg", 0.716, 15.5, 528),
    Architecture("vgg19", "vgg", 0.724, 19.6, 548),
    Architecture("inceptionv1", "inception", 0.698, 1.5, 27),
    Architecture("inceptionv3", "inception", 0.779, 5.7, 109),
    Architecture("inceptionv4", "inception", 0.802, 12.3, 171),
    Architecture("inceptionresnetv2", "inception", 0.804, 13.2, 224),
    Architecture("nasnetmobile", "nasnet", 0.740, 0.56, 21),
    Architecture("nasnetlarge", "nasnet", 0.825, 23.8, 356),
    Architecture("gnmt", "gnmt", 0.610, 3.8, 640),
)
"""The 22 architectures of INFaaS's Table 6. The accuracy of the translation model is made up: only classifiers have one here."""
VARIANTS_OF_FAMILY = {
    "mobilenet": 13,
    "alexnet": 9,
    "densenet": 22,
    "resnet": 61,
    "vgg": 30,
    "inception": 25,
    "nasnet": 6,
    "gnmt": 9,
}
RESNET50_GFLOPS = 4.1


@dataclass(frozen=True, slots=True)
class Accelerated:
    """Latency of ResNet50 on a device: `overhead_s` for a batch and `sample_s` for each sample, in proportion to the GFLOPs."""

    hardware: str
    engine: str
    cores: int
    overhead_s: float
    sample_s: float
    cost_per_s: float
    load_s: float
    batches: tuple[int, ...]


TABLE_2_DEVICES = (
    Accelerated(CPU, "tensorflow", 4, 0.005, 0.195, 1.0, 0.6, (1, 2, 4, 8)),
    Accelerated(INFERENTIA, "neuron", 1, 0.004, 0.008, 3.0, 3.0, (1, 2, 4, 8)),
    Accelerated(GPU, "tensorrt", 1, 0.003, 0.001, 16.0, 2.0, (1, 2, 4, 8, 16, 32, 64)),
)
"""The devices of Table 2: four CPUs answer 5 samples per second, an Inferentia core 100 (2 in 20 ms), a V100 800 (12 in 15)."""
FURTHER_DEVICES = (
    Accelerated(CPU, "caffe2", 2, 0.005, 0.40, 0.5, 0.6, (1, 2, 4, 8)),
    Accelerated(CPU, "pytorch", 4, 0.005, 0.22, 1.0, 0.8, (1, 2, 4, 8)),
    Accelerated(GPU, "tensorflow", 1, 0.006, 0.003, 16.0, 3.0, (1, 2, 4, 8, 16, 32, 64)),
)


def table_6_variants(rng: random.Random) -> tuple[Variant, ...]:
    """The 175 variants of INFaaS's Table 6, with the costs and times of Table 2 in proportion to published GFLOPs.

    Every architecture has the CPU, Inferentia and GPU variant of Table 2 with the least batch; which others it has is random.
    Each instance has an accelerator, or an Inferentia core, to itself: that is what Table 2's costs pay for. A load takes 0.6 to
    11 s, as in section 1.
    """
    variants: list[Variant] = []
    for family, count in VARIANTS_OF_FAMILY.items():
        networks = [network for network in NETWORKS if network.family == family]
        combinations = [(device, batch) for device in (*TABLE_2_DEVICES, *FURTHER_DEVICES) for batch in device.batches]
        required = [(device, device.batches[0]) for device in TABLE_2_DEVICES]
        for number, network in enumerate(networks):
            variant_count = count // len(networks) + (number < count % len(networks))
            extra = rng.sample(
                [variant for variant in combinations if variant not in required], max(0, variant_count - len(required))
            )
            variants += [scaled_variant(network, device, batch) for device, batch in (required + extra)[:variant_count]]
    return tuple(variants)


def scaled_variant(network: Architecture, device: Accelerated, max_batch: int) -> Variant:
    """A network on a device, in proportion to ResNet50 there."""
    sample_s = device.sample_s * network.gflops / RESNET50_GFLOPS
    sizes = sorted({size for size in BATCHES if size < max_batch} | {max_batch})
    latency_s = {size: device.overhead_s + sample_s * size for size in sizes}
    return Variant(
        id=f"{network.name}-{device.engine}-{device.hardware}{device.cores}-{max_batch}",
        architecture=network.name,
        engine=device.engine,
        precision="fp32",
        cores=device.cores,
        max_batch=max_batch,
        accuracy=network.accuracy,
        load_s=min(11.0, device.load_s + network.weights_mb / 100.0),
        latency_s=latency_s,
        memory_bytes=int(3e6 * network.weights_mb),
        saturation_rps=max_batch / latency_s[max_batch],
        cost_per_s=device.cost_per_s,
        hardware=device.hardware,
        devices={} if device.hardware == CPU else {device.hardware: 1.0},
    )


def table_2_variants() -> tuple[Variant, ...]:
    """ResNet50 as in Table 2: A (4 CPUs, 200 ms, 5/s, 1 $/s), B (Inferentia, 20 ms, 100/s, 3 $/s), C (V100, 15 ms, 800/s, 16)."""
    [resnet50] = [network for network in NETWORKS if network.name == "resnet50"]
    return tuple(scaled_variant(resnet50, device, batch) for device, batch in zip(TABLE_2_DEVICES, (1, 2, 12), strict=True))
