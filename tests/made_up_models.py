"""Profiles of models that nobody has measured, for tests and worked examples: a chain of blocks and a latency for each batch.

made_up_profile([BlockPlan(0.5, 10_000_000), BlockPlan(0.5, 30_000_000)], [0.1, 0.18, 0.26])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gnomon_core.blocks import Block, Layers
from gnomon_core.lambda_pricing import MB_PER_CORE
from gnomon_core.profiles import LatencyTable, Loading, ModelProfile, Network


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """A block of a made-up model: its share of the whole's time and MACs, and its parameters."""

    share: float
    parameter_bytes: int
    splittable: bool = True


def made_up_profile(
    blocks: Sequence[BlockPlan],
    latency_s: Sequence[float],
    *,
    cores: Sequence[int] = (1,),
    serial_fraction: float = 0.0,
    gmacs: float = 1.0,
    border_bytes: int = 0,
    overhead_bytes: int = 0,
    load_s: float = 0.0,
    transfer_seconds_per_byte: float = 0.0,
    network: Network | None = None,
) -> ModelProfile:
    """The profile of a model that is a chain of blocks: `latency_s` for batches of 1, 2, … on one core, Amdahl's law for more.

    Every border carries `border_bytes` per sample, and a Shadow is there after `load_s`, however much it loads.
    """
    names = [f"v{number}" for number in range(len(blocks) + 1)]
    layers = Layers(
        "made-up",
        (names[-1],),
        tuple(
            Block(
                f"block {number}", number, number + 1, (names[number],), (names[number + 1],), (f"w{number}",),
                round(plan.share * gmacs * 1e9), plan.parameter_bytes, plan.splittable,
            )
            for number, plan in enumerate(blocks)
        ),
        dict.fromkeys(names, border_bytes),
    )  # fmt: skip

    def table(share: float) -> LatencyTable:
        def seconds(count: int) -> dict[int, float]:
            factor = share * (serial_fraction + (1 - serial_fraction) / count)
            return {size: whole_s * factor for size, whole_s in enumerate(latency_s, start=1)}

        return LatencyTable({count: seconds(count) for count in cores})

    return ModelProfile(
        model="made-up@1",
        layers=layers,
        whole=table(1.0),
        blocks=tuple(table(plan.share) for plan in blocks),
        loading={mode: Loading(0.0, 0.0) for mode in ("shared", "private")},
        body_start_s=load_s,
        shadow_start_s=load_s,
        overhead_bytes=overhead_bytes,
        transfer_fixed_s=0.0,
        transfer_seconds_per_byte=transfer_seconds_per_byte,
        network=network,
    )


def sold_by_memory(
    one_core_s: Sequence[float], memories_mb: Sequence[int], *, fixed_s: float = 0.0, load_s: float = 0.0
) -> ModelProfile:
    """A model as Lambda serves it: `one_core_s` is the work of batches of 1, 2, …, which any number of cores shares.

    `fixed_s` is waiting that no memory shortens. 1,769 MB are one core, and what instances have that no plan has chosen.
    """

    def row(memory_mb: int) -> dict[int, float]:
        return {size: fixed_s + work_s * MB_PER_CORE / memory_mb for size, work_s in enumerate(one_core_s, start=1)}

    made = made_up_profile(
        [BlockPlan(1.0, 1_000_000)], [row(MB_PER_CORE)[size] for size in range(1, len(one_core_s) + 1)], load_s=load_s
    )
    return replace(made, memories=LatencyTable({memory_mb: row(memory_mb) for memory_mb in memories_mb}))
