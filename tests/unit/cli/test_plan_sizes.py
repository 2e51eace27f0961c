"""What `gnomon plan` chooses from, by the cells that were measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gnomon_cli.commands.planning import sizes_of_file, timeouts_of


def measured(tmp_path: Path, memories_mb: tuple[float, ...], batches: tuple[int, ...]) -> Path:
    """Cells of a model whose work a share of a core divides."""
    cells = [
        {"memory_mb": memory, "batch": batch, "ms": (10 + 20 * batch) * 1769 / memory}
        for memory in memories_mb
        for batch in batches
    ]
    file = tmp_path / "cells.json"
    file.write_text(json.dumps({"measured": cells}))
    return file


def test_measured_memories_may_be_chosen_as_well_as_those_between_them(tmp_path: Path) -> None:
    found = sizes_of_file(measured(tmp_path, (1000, 1100, 1500), (1, 4, 8)), 8, on_lambda=True)
    assert [size.memory_mb for size in found] == [1000, 1064, 1100, 1128, 1192, 1256, 1320, 1384, 1448, 1500]


def test_the_papers_configurations_are_as_many_as_it_has(tmp_path: Path) -> None:
    found = sizes_of_file(measured(tmp_path, (1280, 1792, 2304, 3008), (1, 10, 20)), 20, on_lambda=True)
    assert len(found) * len(found[0].service_s) * len(timeouts_of("10:490:10")) == 27_440


def test_batches_smaller_than_the_measured_ones_take_as_long_as_the_smallest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [*_, largest] = sizes_of_file(measured(tmp_path, (1024, 1536, 2048, 3008), (3, 6, 9)), 4, on_lambda=True)
    assert largest.service_s == pytest.approx([0.07 * 1769 / 3008] * 3 + [0.09 * 1769 / 3008], rel=1e-6)
    assert "Batches of fewer than 3 were not measured" in capsys.readouterr().err
    [*_, alone] = sizes_of_file(measured(tmp_path, (1024, 1536, 2048, 3008), (3, 6, 9)), 1, on_lambda=True)
    assert len(alone.service_s) == 1
