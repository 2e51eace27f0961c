"""The figures' numbers as CSV files, a column for each field, its unit in its name."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gnomon_core.profiles import ModelProfile
from gnomon_profiler.figures.tables import correlation, increases, offloaded, output_increases, sensitivities

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
