"""gnomon models and gnomon plan."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gnomon_cli.commands.lambda_profile import grid_of
from gnomon_cli.commands.planning import sizes_of_file, timeouts_of
from gnomon_cli.main import gnomon
from gnomon_core.profiles import LatencyTable, ModelProfile
from gnomon_planner.service_time import Measured, fitted
from gnomon_profiler.repository import DirectoryRepository
from tests.contracts.small_models import files, two_blocks, with_layers
from tests.refusals import refused


@pytest.fixture
def repository(tmp_path: Path) -> DirectoryRepository:
    return DirectoryRepository(tmp_path)


def models(folder: Path, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(gnomon, ["models", command, *arguments, "--models", str(folder)])


def test_blocks_are_shown_and_in_the_document_as_well(repository: DirectoryRepository, tmp_path: Path) -> None:
    repository.put("two", "1", two_blocks()[0])
    shown = models(tmp_path, "show", "two", "--blocks")
    assert [line.split()[:2] for line in shown.output.splitlines() if line[:2] in ("0 ", "1 ")] == [
        ["0", "first"],
        ["1", "second"],
    ]
    document = json.loads(models(tmp_path, "show", "two", "--blocks", "--json").output)
    found = [(block["number"], block["name"], block["input_bytes"], block["output_bytes"]) for block in document["blocks"]]
    assert found == [(0, "first", 4, 4), (1, "second", 4, 4)]
    assert [block["parameter_bytes"] for block in document["blocks"]] == [4 * 72, 4 << 19]
    assert "blocks" not in json.loads(models(tmp_path, "show", "two", "--json").output)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_model_without_blocks_says_so(repository: DirectoryRepository, tmp_path: Path, options: tuple[str, ...]) -> None:
    repository.put("scale", "1", files())
    shown = models(tmp_path, "show", "scale", "--blocks", *options)
    assert (shown.exit_code, "has no layer blocks" in shown.output) == (1, True)


def test_a_version_is_that_of_a_model_of_the_catalog_too(repository: DirectoryRepository, tmp_path: Path) -> None:
    repository.put("efficientnet-lite0", "2", with_layers(files()))
    added = models(tmp_path, "add", "efficientnet-lite0", "--version", "2", "--json")
    assert (added.exit_code, json.loads(added.output)["version"]) == (0, "2")
    assert [entry.version for entry in repository.list()] == ["2"]


def test_shapes_of_a_model_that_has_its_own_are_refused(tmp_path: Path) -> None:
    added = models(tmp_path, "add", "efficientnet-lite0", "--shape", "3x8x8")
    assert (added.exit_code, "--from" in added.output) == (2, True)


def test_a_damaged_model_is_broken_and_the_others_are_whole(repository: DirectoryRepository, tmp_path: Path) -> None:
    repository.put("scale", "1", files())
    entry = repository.put("two", "1", two_blocks()[0])
    assert models(tmp_path, "verify").output == "scale@1: whole\ntwo@1: whole\n"
    entry.weights.chmod(0o644)
    entry.weights.write_bytes(entry.weights.read_bytes()[:-1])
    told = models(tmp_path, "verify", "scale@1", "two@1")
    assert (told.exit_code, "scale@1: whole\ntwo@1: broken\n" in told.output) == (1, True)


def test_the_catalog_is_told_without_a_repository(tmp_path: Path) -> None:
    told = models(tmp_path / "nowhere", "list", "--catalog")
    assert told.output.splitlines()[0] == "efficientnet-lite0"
    assert not (tmp_path / "nowhere").exists()


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


def test_a_grid_is_less_than_three_per_cent_of_the_cells_and_holds_a_model_of_all_of_them() -> None:
    cells = grid_of((128, 3008), (1, 20))
    assert len(cells) < 0.03 * 46 * 20
    assert {(128, 1), (128, 20), (3008, 1), (3008, 20)} <= set(cells)
    assert all((size - 128) % 64 == 0 for size, _ in cells)

    def seconds(size: int, batch: int) -> float:
        return (0.01 + 0.02 * batch) * 1769 / size

    model = fitted([Measured(size, batch, seconds(size, batch)) for size, batch in cells], whole=1769)
    assert model.seconds(960, 11) == pytest.approx(seconds(960, 11), rel=0.01)


def test_too_few_cells_for_a_model_are_refused() -> None:
    with refused(code="too_few_cells"):
        grid_of((1024, 1152), (1, 4))


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
