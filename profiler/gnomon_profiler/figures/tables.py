"""The numbers behind the figures, and their CSV files.

An increase is what a larger batch adds to a block's latency: t(b) − t(2), on a number of cores. AsyFunc, sections 2.2 and 2.3.
All of them were measured: a profile that lacks batches of 2 or 4 has no figures, one that lacks another has no curve for it.
In a CSV file each field has a column, with its unit in its name.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from gnomon_core.pairs import split_seconds
from gnomon_core.profiles import LatencyTable, ModelProfile

BASE_BATCH = 2
DOUBLED = 4
LARGER_BATCHES = (3, 4, 5)
WEIGHT_MODE = "private"
"""The weight mode of the paper: each instance loads its own weights."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Figure 2: a block's latency increase from a batch of 2 to 4, its parameters, and what it takes to load it."""

    number: int
    block: str
    increase_s: float
    parameter_bytes: int
    load_s: float


@dataclass(frozen=True, slots=True)
class Increase:
    """Figure 3: so large a share of the blocks adds at most this when the batch grows from 2 to `to_batch`."""

    to_batch: int
    increase_s: float
    share_of_blocks: float


@dataclass(frozen=True, slots=True)
class Offloaded:
    """Figure 4: what a batch of 4 takes longer than one of 2 when the added samples of some blocks are computed elsewhere.

    `ideal_s` as the paper draws it, the increase of the blocks that stay; `paired_s` by Eq. 6, with hand-overs and barriers.
    """

    blocks: int
    share_of_blocks: float
    share_of_weights: float
    ideal_s: float
    paired_s: float


@dataclass(frozen=True, slots=True)
class OutputIncrease:
    """Figure 7: by how many bytes a block's output grows when the batch grows from 2 to `to_batch`."""

    number: int
    block: str
    to_batch: int
    increase_bytes: int


@dataclass(frozen=True, slots=True)
class Correlation:
    """Appendix: how a block's latency increase (2 to 4) goes with the size of its parameters; −1 is opposite, 1 together."""

    model: str
    cores: int
    blocks: int
    pearson: float
    spearman: float


def measured_batches(profile: ModelProfile, cores: int = 1) -> tuple[int, ...]:
    """The batch sizes from 2 on for which every block was measured on `cores` cores."""
    rows = [table.seconds.get(cores, {}) for table in profile.blocks]
    return tuple(batch for batch in (BASE_BATCH, *LARGER_BATCHES) if all(batch in row for row in rows))


def drawable(profile: ModelProfile, cores: int = 1) -> bool:
    """True if there are figures of it: batches of 2 and 4 were measured on so many cores."""
    return {BASE_BATCH, DOUBLED} <= set(measured_batches(profile, cores))


def sensitivities(profile: ModelProfile, cores: int = 1) -> list[Sensitivity]:
    """Figure 2. Loading is measured block by block where the profile has that, else it follows from their sizes."""
    loads_s = profile.block_load_s.get(WEIGHT_MODE)
    rows = []
    for number, (block, table) in enumerate(zip(profile.layers.blocks, profile.blocks, strict=True)):
        load_s = loads_s[number] if loads_s else profile.loading[WEIGHT_MODE].seconds(block.parameter_bytes)
        rows.append(Sensitivity(number, block.name, _increase_s(table, cores, DOUBLED), block.parameter_bytes, load_s))
    return rows


def increases(profile: ModelProfile, cores: int = 1) -> list[Increase]:
    """Figure 3, the points of each curve from left to right. A batch that was not measured has none."""
    rows: list[Increase] = []
    for batch in (each for each in measured_batches(profile, cores) if each > BASE_BATCH):
        increases_s = sorted(_increase_s(table, cores, batch) for table in profile.blocks)
        rows += [Increase(batch, seconds, (rank + 1) / len(increases_s)) for rank, seconds in enumerate(increases_s)]
    return rows


def offloaded(profile: ModelProfile, cores: int = 1) -> list[Offloaded]:
    """Figure 4: the blocks with the largest increase go first. Blocks that cannot be split stay."""
    blocks = profile.layers.blocks
    by_block = [_increase_s(table, cores, DOUBLED) for table in profile.blocks]
    order = sorted(
        (number for number, block in enumerate(blocks) if block.splittable), key=lambda number: by_block[number], reverse=True
    )
    left_s = list(accumulate((-by_block[number] for number in order), initial=sum(by_block)))
    weights = profile.layers.parameter_bytes() or 1
    rows = []
    for count, ideal_s in enumerate(left_s):
        chosen = order[:count]
        rows.append(
            Offloaded(
                count,
                count / len(blocks),
                profile.layers.parameter_bytes(chosen) / weights,
                ideal_s,
                _paired_increase_s(profile, cores, chosen),
            )
        )
    return rows


def output_increases(profile: ModelProfile) -> Iterator[OutputIncrease]:
    """Figure 7. An output counts that is read by a later block or is one of the model's."""
    for number, block in enumerate(profile.layers.blocks):
        sample_bytes = sum(profile.layers.value_bytes[name] for name in block.makes)
        for batch in LARGER_BATCHES:
            yield OutputIncrease(number, block.name, batch, (batch - BASE_BATCH) * sample_bytes)


def correlation(profile: ModelProfile, cores: int = 1) -> Correlation:
    """Appendix, for one model."""
    rows = sensitivities(profile, cores)
    gains = [row.increase_s for row in rows]
    sizes = [float(row.parameter_bytes) for row in rows]
    return Correlation(profile.model, cores, len(rows), pearson(gains, sizes), pearson(_ranks(gains), _ranks(sizes)))


def pearson(first: Sequence[float], second: Sequence[float]) -> float:
    """Pearson's correlation; nan where one of them does not vary.

    Example: (1, 2, 3) with (6, 4, 2) gives −1.
    """
    first_mean, second_mean = math.fsum(first) / len(first), math.fsum(second) / len(second)
    together = math.fsum((x - first_mean) * (y - second_mean) for x, y in zip(first, second, strict=True))
    variance_product = math.fsum((x - first_mean) ** 2 for x in first) * math.fsum((y - second_mean) ** 2 for y in second)
    return together / math.sqrt(variance_product) if variance_product else math.nan


def _ranks(values: Sequence[float]) -> list[float]:
    """1 for the smallest; equal values share the mean of their ranks."""
    ordered = sorted(values)
    first = {value: rank for rank, value in reversed(list(enumerate(ordered, 1)))}
    last = dict(zip(ordered, range(1, len(ordered) + 1), strict=True))
    return [(first[value] + last[value]) / 2 for value in values]


def _increase_s(table: LatencyTable, cores: int, batch: int) -> float:
    row = table.seconds.get(cores)
    if row is None:
        raise ValueError(f"{cores} cores were not measured")
    if not {BASE_BATCH, batch} <= set(row):
        raise ValueError(f"batches of {BASE_BATCH} and {batch} were not measured")
    return row[batch] - row[BASE_BATCH]


def _paired_increase_s(profile: ModelProfile, cores: int, chosen: Sequence[int]) -> float:
    runs = profile.layers.runs(chosen)
    paired_s = split_seconds(profile, (cores, cores), runs, DOUBLED, DOUBLED - BASE_BATCH)
    base_s = profile.whole.at(cores, BASE_BATCH)
    if paired_s is None or base_s is None:
        raise ValueError(f"{cores} cores were not measured")
    return paired_s - base_s


APPENDIX = "anti-correlation"


def short_name(profile: ModelProfile) -> str:
    """A model's name for files and titles: "torchvision:resnet50@1" is "resnet50"."""
    return profile.model.partition("@")[0].rpartition(":")[2]


def write_tables(profiles: Sequence[ModelProfile], folder: Path, cores: int = 1) -> list[Path]:
    """Write `MODEL-figure-N.csv` for each model and figure, and one table of the appendix for all."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for profile in profiles:
        tables: dict[int, Iterable[Any]] = {
            2: sensitivities(profile, cores),
            3: increases(profile, cores),
            4: offloaded(profile, cores),
            7: output_increases(profile),
        }
        for number, rows in tables.items():
            written.append(_write(folder / f"{short_name(profile)}-figure-{number}.csv", rows))
    written.append(_write(folder / f"{APPENDIX}.csv", [correlation(profile, cores) for profile in profiles]))
    return written


def _write(path: Path, rows: Iterable[Any]) -> Path:
    documents = [dataclasses.asdict(row) for row in rows]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(documents[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(documents)
    return path
