"""`gnomon models`: what it says of a model's blocks, which version it adds, and what it does not take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gnomon_cli.main import gnomon
from gnomon_profiler.repository import DirectoryRepository
from tests.contracts.small_models import files, two_blocks, with_layers


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
