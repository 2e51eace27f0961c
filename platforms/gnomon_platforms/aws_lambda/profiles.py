"""What `gnomon lambda-profile` measured of a model, as the profile that policies plan by.

    FOLDER/NAME@VERSION/lambda/REGION.json ▶ cells by memory size and batch ▶ ModelProfile.memories

A plan may choose a memory size that was measured for the smallest and the largest of all measured batches (between two batches
times are read on the straight line), that the function's memory limit allows, and no other: between two sizes nobody has looked.
The function's own size is the one row of `whole`, where it was measured, so that a function is foretold before it was ever
invoked. Only what was measured of this very program and image counts.
"""

from __future__ import annotations

import json
import logging
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon_core.blocks import Layers
from gnomon_core.functions import FunctionSpec
from gnomon_core.profiles import LatencyTable, ModelProfile
from gnomon_core.units import MEGABYTE
from gnomon_platforms.aws_lambda.profiling import FORMAT, Measured, Table
from gnomon_platforms.aws_lambda.recipes import Recipe
from gnomon_platforms.aws_lambda.resources import memory_mb

SUBFOLDER = "lambda"
_LOG = logging.getLogger(__name__)
_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a function needs: its model and program, the image it runs in, its own size and cores, and no less than `least_mb`."""

    model: str
    program_sha256: str
    image: str | None
    memory_mb: int
    cores: int
    least_mb: int = 0


class MeasuredModels:
    """The profiles below a folder, kept while their files stay the same; without a folder there are none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._read: dict[Path, tuple[_Stamp, Table | None]] = {}

    def of(self, spec: FunctionSpec, recipe: Recipe, region: str) -> ModelProfile | None:
        """The profile of a function that is made like this; None for one without a model, or without measurements of it."""
        if recipe.signature is None:
            return None
        cores, least_mb = spec.settings.cores, math.ceil((spec.memory_bytes or 0) / MEGABYTE)
        model, program = f"{recipe.signature.model}@{recipe.signature.version}", recipe.files["program"].sha256
        return self.find(Wanted(model, program, recipe.image, memory_mb(spec, cores), cores, least_mb), region)

    def find(self, wanted: Wanted, region: str) -> ModelProfile | None:
        """The profile of a model in this region; None where none was measured of this program and image."""
        if self._folder is None:
            return None
        table = self._table(path_of(self._folder, wanted.model, region))
        if table is None:
            return None
        measured_of = {"model": wanted.model, "program": wanted.program_sha256, "region": region, "image": wanted.image}
        return profile_of(table, wanted) if dict(table.identity) == measured_of else None

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
    """Where the measurements of NAME@VERSION in a region lie."""
    return folder / model / SUBFOLDER / f"{region}.json"


def profile_of(table: Table, wanted: Wanted) -> ModelProfile | None:
    """The cells as a profile; None where no size has the smallest and the largest measured batch."""
    batches = {batch for _, batch in table.cells}
    # Sizes need not have the same batches between these: `--grid` measures others than a run before it.
    ends = {min(batches, default=1), max(batches, default=1)}
    rows = {size_mb: row for size_mb, row in _rows(table.cells).items() if ends <= row.keys()}
    whole = {size_mb: row for size_mb, row in rows.items() if size_mb >= wanted.least_mb}
    if not whole:
        return None
    own = rows.get(wanted.memory_mb)
    cold_s = [seconds for cell in table.cells.values() for seconds in cell.cold_s]
    return ModelProfile(
        model=wanted.model,
        layers=Layers(wanted.program_sha256, (), ()),
        whole=LatencyTable({wanted.cores: own} if own is not None else {}),
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
