"""`gnomon models figures` draws what was measured, and says what to measure where that is too little."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gnomon_cli.main import gnomon
from gnomon_core.profiles import LatencyTable, ModelProfile

PROFILES = Path(__file__).parents[3] / "profiles"


def drawn(output: Path, file: Path, *options: str) -> Result:
    return CliRunner().invoke(gnomon, ["models", "figures", str(file), "--output", str(output), "--tables-only", *options])


@pytest.mark.parametrize(("name", "batches"), [("resnet50", {"3", "4", "5"}), ("vit_b_16", {"4"})])
def test_the_published_profiles_have_curves_of_the_batches_they_were_measured_in(
    name: str, batches: set[str], tmp_path: Path
) -> None:
    result = drawn(tmp_path, PROFILES / f"{name}.json")
    assert result.exit_code == 0, result.output
    with (tmp_path / f"{name}-figure-3.csv").open(encoding="utf-8") as file:
        assert {row["to_batch"] for row in csv.DictReader(file)} == batches


def test_a_profile_without_the_batches_that_are_compared_is_refused(tmp_path: Path) -> None:
    profile = ModelProfile.from_json(json.loads((PROFILES / "resnet50.json").read_bytes()))

    def two_only(table: LatencyTable) -> LatencyTable:
        return LatencyTable({1: {2: table.seconds[1][2]}})

    few = replace(profile, whole=two_only(profile.whole), blocks=tuple(map(two_only, profile.blocks)))
    (tmp_path / "few.json").write_text(json.dumps(few.to_json()), encoding="utf-8")
    result = drawn(tmp_path / "figures", tmp_path / "few.json")
    assert result.exit_code != 0
    assert "batches of 2 and 4" in result.output
    assert "--batches 1-8" in result.output
    assert not (tmp_path / "figures").exists()
