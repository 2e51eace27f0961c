"""The profiling run on Lambda: how long a batch takes by memory size and batch size, as BATCH's regression wants to know it.

    for each memory size: publish ▶ one slot ▶ for each batch size: repeats × Invoke ▶ the median of the durations in the reports

Invokes that found no sandbox are left out of the median and kept as cold starts. Every finished cell is written to the file at
once, so that the same command goes on where it was interrupted. What it will cost is estimated before: a run that costs twice as
much as was agreed to stops.

    28 memory sizes × 20 batches × 10 repeats are 5,600 Invokes. At 100 ms for a sample on one core, a batch of 10 costs 1.0 s ·
    1.73 GB · 1.67e-5 = $2.9e-5 whatever the memory size is, since the time shrinks as it grows: $0.17 in all, and 28 starts.

The measurements of `gnomon lambda-profile` become the profile that policies plan by:

    FOLDER/NAME@VERSION/lambda/REGION.json ▶ cells by memory size and batch ▶ ModelProfile.memories

A plan may choose a memory size that was measured for the smallest and the largest of all measured batches (between two batches
times are read on the straight line), that the function's memory limit allows, and no other: sizes are not interpolated.
The function's own size is the one row of `whole`, where it was measured, so that latency is predicted before the function is ever
invoked. Only what was measured of this very program and image counts.
"""

from __future__ import annotations

import json
import logging
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gnomon_core.atomic_files import make_folder, replace_file
from gnomon_core.blocks import Layers
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionSpec
from gnomon_core.profiles import LatencyTable, ModelProfile
from gnomon_core.signature import ModelSignature
from gnomon_core.units import MEGABYTE
from gnomon_core.wire import Frame, Kind, Member
from gnomon_platforms.aws_lambda.invocation import Report
from gnomon_platforms.aws_lambda.recipes import Recipe
from gnomon_platforms.aws_lambda.resources import cores_of, invoke_usd, memory_mb

FORMAT = "gnomon-service-times/1"
OVERSPEND = 2.0
SMALLEST_COST = 0.01
"""Cost in dollars below which no profiling run is stopped."""


@dataclass(frozen=True, slots=True)
class MeasurementPlan:
    """The measurements to make: memory sizes with batches, in this order.

    `sample_s` is what one sample is taken to last on one core, for the estimate alone.
    """

    cells: tuple[tuple[int, int], ...]
    repeats: int
    sample_s: float = 0.1


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a memory size and batch: `seconds` is the median, `spread` the interquartile range divided by it."""

    memory_mb: int
    batch: int
    seconds: float
    spread: float
    billed_s: float
    used_mb: int
    runs_s: tuple[float, ...]
    cold_s: tuple[float, ...] = ()


@dataclass(slots=True)
class Table:
    """The measured cells of one model in one region, in a file. `identity` says what they are of."""

    path: Path
    identity: Mapping[str, Any]
    cells: dict[tuple[int, int], Measured] = field(default_factory=dict)
    cost: float = 0.0
    """Dollars, over all runs that wrote to this file."""
    counted: Mapping[str, Any] | None = None

    @staticmethod
    def open(path: Path, identity: Mapping[str, Any]) -> Table:
        """The table in a file; an empty one where the file is of something else."""
        table = Table(path, identity)
        try:
            document = json.loads(path.read_bytes())
            if document.get("format") == FORMAT and document.get("identity") == dict(identity):
                table.cost = float(document["cost"])
                for row in document["cells"]:
                    cell = Measured(**row | {"runs_s": tuple(row["runs_s"]), "cold_s": tuple(row["cold_s"])})
                    table.cells[cell.memory_mb, cell.batch] = cell
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return Table(path, identity)
        return table

    def add(self, cell: Measured) -> None:
        """Keep a cell; it is on disk when this returns."""
        self.cells[cell.memory_mb, cell.batch] = cell
        self.write()

    def to_json(self) -> dict[str, Any]:
        """`measured` are the cells as `gnomon plan --sizes` reads them, `cells` everything that is known of them."""
        ordered = [cell for _, cell in sorted(self.cells.items())]
        brief = [{"memory_mb": cell.memory_mb, "batch": cell.batch, "ms": 1000 * cell.seconds} for cell in ordered]
        rows = [asdict(cell) for cell in ordered]
        document = {"format": FORMAT, "identity": dict(self.identity), "cost": self.cost, "measured": brief, "cells": rows}
        return document | ({"cloudwatch": dict(self.counted)} if self.counted is not None else {})

    def write(self) -> None:
        """Replace the table's file atomically."""
        make_folder(self.path.parent)
        replace_file(self.path, json.dumps(self.to_json(), indent=1) + "\n", durable=True)


def estimate(plan: MeasurementPlan, cells: Iterable[tuple[int, int]]) -> float:
    """Estimated dollars for these measurements, including a warm-up Invoke for each memory size.

    A batch is taken to last in proportion to its size and to the inverse of the memory size.
    """
    todo = list(cells)
    runs = sum(plan.repeats * invoke_usd(_estimated_s(plan, memory, batch), memory) for memory, batch in todo)
    return runs + sum(invoke_usd(10.0, memory) for memory in {memory for memory, _ in todo})


def zeros(signature: ModelSignature, batch: int, batch_id: int) -> Frame:
    """A batch of zeros: a layer program's execution time does not depend on values."""
    head = json.dumps({"kind": "tensors", "inputs": [spec.to_json() for spec in signature.inputs]}).encode()
    sample = bytes(sum(spec.sample_bytes for spec in signature.inputs))
    return Frame(Kind.BATCH, batch_id, 1, 0.0, head, [Member(0, 1, b"", sample)] * batch)


def measured(memory_mb: int, batch: int, reports: Sequence[Report]) -> Measured:
    """A cell of the durations in Lambda's reports.

    Raises:
        GnomonError: 503 `nothing_measured`: every Invoke found no sandbox, or said nothing of itself.

    """
    warm = [report for report in reports if not report.init_ms]
    if not warm:
        raise GnomonError(
            503, "nothing_measured", f"{memory_mb} MB, batch {batch}: no Invoke found a warm sandbox.", "Try again."
        )
    runs = sorted(report.duration_ms / 1000 for report in warm)
    middle = statistics.median(runs)
    quartiles = statistics.quantiles(runs, n=4) if len(runs) > 1 else (middle, middle, middle)
    return Measured(
        memory_mb,
        batch,
        middle,
        (quartiles[2] - quartiles[0]) / middle if middle else 0.0,
        statistics.median(report.billed_ms for report in warm) / 1000,
        max(report.used_mb for report in reports),
        tuple(runs),
        tuple(report.init_ms / 1000 for report in reports if report.init_ms),
    )


def check_budget(spent: float, agreed: float, note: Callable[[str], None]) -> None:
    """Stop a run that has cost twice the agreed amount, in dollars.

    Raises:
        GnomonError: 402 `too_expensive`. What was measured is kept.

    """
    if spent > max(SMALLEST_COST, OVERSPEND * agreed):
        note(f"The run has cost ${spent:.4f}; the estimate was ${agreed:.4f}.")
        raise GnomonError(
            402, "too_expensive", "The run has cost more than twice the estimate.", "State the time of one sample: --sample-ms N."
        )


def _estimated_s(plan: MeasurementPlan, memory_mb: int, batch: int) -> float:
    return plan.sample_s * batch / cores_of(memory_mb)


SUBFOLDER = "lambda"
_LOG = logging.getLogger(__name__)
_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class FunctionNeeds:
    """The needs of a function: its model and program, its image, its own size and cores, and at least `least_mb`."""

    model: str
    program_sha256: str
    image: str | None
    memory_mb: int
    cores: int
    least_mb: int = 0


class LambdaProfiles:
    """A cache of the profiles below a folder, valid while their files are unchanged; empty without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._read: dict[Path, tuple[_Stamp, Table | None]] = {}

    def of(self, spec: FunctionSpec, recipe: Recipe, region: str) -> ModelProfile | None:
        """The profile of a function that is made like this; None for one without a model, or without measurements of it."""
        if recipe.signature is None:
            return None
        cores, least_mb = spec.settings.cores, math.ceil((spec.memory_bytes or 0) / MEGABYTE)
        model, program = f"{recipe.signature.model}@{recipe.signature.version}", recipe.files["program"].sha256
        return self.find(FunctionNeeds(model, program, recipe.image, memory_mb(spec, cores), cores, least_mb), region)

    def find(self, needs: FunctionNeeds, region: str) -> ModelProfile | None:
        """The profile of a model in this region; None where none was measured of this program and image."""
        if self._folder is None:
            return None
        table = self._table(path_of(self._folder, needs.model, region))
        if table is None:
            return None
        measured_of = {"model": needs.model, "program": needs.program_sha256, "region": region, "image": needs.image}
        return profile_of(table, needs) if dict(table.identity) == measured_of else None

    def _table(self, path: Path) -> Table | None:
        try:
            status = path.stat()
        except OSError:
            return None
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        known = self._read.get(path)
        if known is None or known[0] != stamp:
            known = self._read[path] = stamp, _table_in(path)
        return known[1]


def path_of(folder: Path, model: str, region: str) -> Path:
    """Path of the measurements of NAME@VERSION in a region."""
    return folder / model / SUBFOLDER / f"{region}.json"


def profile_of(table: Table, needs: FunctionNeeds) -> ModelProfile | None:
    """The cells as a profile; None where no size has the smallest and the largest measured batch."""
    batches = {batch for _, batch in table.cells}
    # Sizes need not have the same batches between these: `--grid` measures others than a run before it.
    ends = {min(batches, default=1), max(batches, default=1)}
    rows = {size_mb: row for size_mb, row in _rows(table.cells).items() if ends <= row.keys()}
    whole = {size_mb: row for size_mb, row in rows.items() if size_mb >= needs.least_mb}
    if not whole:
        return None
    own = rows.get(needs.memory_mb)
    cold_s = [seconds for cell in table.cells.values() for seconds in cell.cold_s]
    return ModelProfile(
        model=needs.model,
        layers=Layers(needs.program_sha256, (), ()),
        whole=LatencyTable({needs.cores: own} if own is not None else {}),
        blocks=(),
        loading={},
        body_start_s=statistics.median(cold_s) if cold_s else 0.0,
        shadow_start_s=0.0,
        overhead_bytes=max(cell.used_mb for cell in table.cells.values()) * MEGABYTE,
        transfer_fixed_s=0.0,
        transfer_seconds_per_byte=0.0,
        spread={f"{size_mb}/{batch}": cell.spread for (size_mb, batch), cell in table.cells.items()},
        provenance={key: str(value) for key, value in table.identity.items()},
        memories=LatencyTable(whole),
    )


def _rows(cells: Mapping[tuple[int, int], Measured]) -> dict[int, dict[int, float]]:
    rows: dict[int, dict[int, float]] = {}
    for (size_mb, batch), cell in sorted(cells.items()):
        rows.setdefault(size_mb, {})[batch] = cell.seconds
    return rows


def _table_in(path: Path) -> Table | None:
    try:
        document: Any = json.loads(path.read_bytes())
        identity = dict(document["identity"]) if document["format"] == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _LOG.warning("the measurements %s cannot be read: %s", path, error)
        return None
    return None if identity is None else Table.open(path, identity)
