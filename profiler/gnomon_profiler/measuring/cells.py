"""The cells of a profiling run: each is either finished or not, and can be measured again by itself.

A latency cell is one batch size on one number of cores; the others are the model's loading in one weight mode, its memory after
the largest batch, its starts, and the machine's hand-over of tensors, through memory and over TCP.

Lines through measured points: a fixed part and a part for each byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnomon_core.blocks import Layers
from gnomon_core.engines import PROGRAM, ChosenEngine

WEIGHT_MODES = ("shared", "private")
TRANSFER_BYTES = (4096, 65536, *(size * 10**6 for size in (1, 2, 4, 8, 16, 32, 64)))
NOISY = 0.05
"""A relative interquartile range above which a cell is measured again."""
TRIES = 3
_MOST_TIMES = 4
_BUDGET_S = 0.2
"""Budget in seconds for each requested repeat of a quick batch, which is repeated up to four times as often within it."""
_LOADING_REPEATS = 7
_TRANSFER_REPEATS = 15
_START_REPEATS = 11
_SHARES = (0.25, 0.5, 0.75, 1.0)
_FIXED_COST = 4.0
"""Cost of a cell without a batch, in batches of one on one core: a guess, used for the remaining time only."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A measurement. `cores`, `batch` and `mode` are set for the kinds of cells that have them."""

    kind: str
    cores: int = 0
    batch: int = 0
    mode: str = ""

    @property
    def key(self) -> str:
        """The cell's name in a journal: "latency/2/4", "loading/shared", "memory/8"."""
        parts = (str(part) for part in (self.kind, self.cores or "", self.batch or "", self.mode))
        return "/".join(part for part in parts if part)

    @property
    def cost(self) -> float:
        """The estimated duration relative to other cells."""
        return self.batch / self.cores if self.cores else _FIXED_COST

    def __str__(self) -> str:
        if self.kind == "latency":
            return f"{self.cores} core{'s' if self.cores > 1 else ''}, batch {self.batch}"
        return f"{self.kind} {self.mode}".strip()


@dataclass(frozen=True, slots=True)
class Subject:
    """The model to measure: its three files and its blocks. `name` is NAME@VERSION."""

    name: str
    program: Path
    weights: Path
    layers_file: Path
    layers: Layers
    sha256: Mapping[str, str]
    details: Mapping[str, Any]
    engine: ChosenEngine = field(default_factory=ChosenEngine)
    engine_version: str = ""

    @property
    def label(self) -> str:
        """The model, and the engine where that is not the layer program's."""
        return self.name if self.engine.name == PROGRAM else f"{self.name} on {self.engine.name}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run: cores, batches, the minimum repeats of each batch, and the available CPUs.

    A noisy cell is measured up to `tries` times.
    """

    cores: tuple[int, ...]
    batches: tuple[int, ...]
    repeats: int
    cpus: tuple[int, ...]
    tries: int = TRIES
    largest: int = 0
    """The largest batch of earlier cells, besides those of this plan."""

    def cells(self) -> Iterator[Cell]:
        """All cells, the most important ones first."""
        for cores in sorted(self.cores):
            for batch in sorted(self.batches):
                yield Cell("latency", cores, batch)
        for mode in WEIGHT_MODES:
            yield Cell("loading", mode=mode)
        yield self.memory_cell
        for kind in ("starts", "transfer", "network"):
            yield Cell(kind)

    @property
    def memory_cell(self) -> Cell:
        """The memory after the largest batch: with larger ones it is another cell."""
        return Cell("memory", batch=max(*self.batches, self.largest))

    def cpus_for(self, cores: int) -> list[int]:
        """The CPUs for this number of cores: the last ones, because the kernel's own work tends to run on the first."""
        return list(self.cpus[-cores:])


def order_for(cells: Sequence[Cell], subject: Subject, plan: Plan) -> dict[str, Any]:
    """The order by which these cells are measured: one cell, or latency cells of the same cores."""
    first = cells[0]
    order: dict[str, Any] = {
        "measure": first.kind,
        "program": str(subject.program),
        "weights": str(subject.weights),
        "layers": str(subject.layers_file),
    }
    if subject.engine.files:
        order |= {"engine": subject.engine.name, "graph": {file: str(path) for file, path in subject.engine.files.items()}}
    if first.kind == "latency":
        most = {"most_repeats": _MOST_TIMES * plan.repeats, "budget_s": _BUDGET_S * plan.repeats}
        repeats = {"repeats": plan.repeats} | most
        batches = [cell.batch for cell in cells]
        return order | repeats | {"cores": first.cores, "cpus": plan.cpus_for(first.cores), "batches": batches}
    if first.kind == "loading":
        return order | {"mode": first.mode, "sets": loading_sets(subject.layers), "repeats": _LOADING_REPEATS}
    if first.kind == "memory":
        return order | {"batch": first.batch}
    if first.kind == "starts":
        return order | {"cpus": plan.cpus_for(1), "repeats": _START_REPEATS}
    return order | {"sizes_bytes": list(TRANSFER_BYTES), "repeats": _TRANSFER_REPEATS, "cpus": list(plan.cpus)}


def loading_sets(layers: Layers) -> list[list[int]]:
    """Each block that has weights, and then the first quarter, half, three quarters and all of them."""
    numbers = [number for number, block in enumerate(layers.blocks) if block.weights]
    growing = [numbers[: max(1, round(share * len(numbers)))] for share in _SHARES] if numbers else []
    return [*([number] for number in numbers), *growing]


def fixed_and_per_unit(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Least squares of seconds = fixed + per_unit·size, relative errors counting, neither part negative.

    Absolute errors would let the largest size decide alone, and the fixed part come out as whatever is left. Where a part would
    be negative it is 0, and the other one is fitted alone.

    Example: sizes 0, 1, 2 in 1, 3, 5 s give (1, 2).

    Raises:
        ValueError: no points, or a time that is not above 0.

    """
    if not sizes or len(sizes) != len(seconds) or min(seconds) <= 0:
        raise ValueError("a line needs points with times above 0")
    weights = [1 / value**2 for value in seconds]
    total = sum(weights)
    mean_size = sum(w * x for w, x in zip(weights, sizes, strict=True)) / total
    mean_s = sum(w * y for w, y in zip(weights, seconds, strict=True)) / total
    above = sum(w * (x - mean_size) * (y - mean_s) for w, x, y in zip(weights, sizes, seconds, strict=True))
    below = sum(w * (x - mean_size) ** 2 for w, x in zip(weights, sizes, strict=True))
    per_unit = above / below if below else 0.0
    fixed = mean_s - per_unit * mean_size
    if per_unit < 0:
        return mean_s, 0.0
    if fixed < 0:
        through_zero = sum(w * x * y for w, x, y in zip(weights, sizes, seconds, strict=True))
        return 0.0, through_zero / sum(w * x**2 for w, x in zip(weights, sizes, strict=True))
    return fixed, per_unit
