"""Data that cannot be made again, or that a client relies on, is on disk when its writer returns."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gnomon_cli.credentials import config_file, remember
from gnomon_coordinator.node.api import Epochs
from gnomon_platforms.aws_lambda.profiling import Measured, Table
from gnomon_platforms.local.builder.builder import ImageIndex
from gnomon_platforms.local.recipes import Users
from gnomon_profiler.measuring.cells import Cell
from gnomon_profiler.measuring.session import Journal
from gnomon_profiler.measuring.store import ProfileStore
from gnomon_profiler.repository import ObjectFolder
from tests.made_up_models import BlockPlan, made_up_profile
from tests.on_disk import Disk

DIGEST = "ab" * 32


def obeyed_epoch(folder: Path) -> Path:
    Epochs(folder / "epoch").obey(7)
    return folder / "epoch"


def user_of_a_function(folder: Path) -> Path:
    Users(folder).uid("a.openfaas-fn")
    return folder / "users.json"


def name_of_an_image(folder: Path) -> Path:
    ImageIndex(folder / "images.json").put("a:1", DIGEST)
    return folder / "images.json"


def profile(folder: Path) -> Path:
    return ProfileStore(folder).put("net@1", "here", made_up_profile((BlockPlan(1.0, 20),), (0.1,)))


def measured_cell(folder: Path) -> Path:
    Journal(folder / "net.journal", {"program": "abc"}).add(Cell("memory"), {"busy_bytes": 1})
    return folder / "net.journal"


def cell_measured_on_lambda(folder: Path) -> Path:
    table = Table.open(folder / "net.json", {"model": "net@1"})
    table.add(Measured(1769, 1, 0.1, 0.02, 0.1, 300, (0.1,), ()))
    return table.path


def login(folder: Path) -> Path:
    environment = {"OPENFAAS_CONFIG": str(folder)}
    remember("http://here", "ada", "word", environment)
    return config_file(environment)


def file_of_a_model(folder: Path) -> Path:
    objects = ObjectFolder(folder)
    with objects.writing():
        objects.publish(b"weights", objects.path(DIGEST))
    return objects.path(DIGEST)


WRITERS = (
    obeyed_epoch,
    user_of_a_function,
    name_of_an_image,
    profile,
    measured_cell,
    cell_measured_on_lambda,
    login,
    file_of_a_model,
)


@pytest.mark.parametrize("write", WRITERS)
def test_written_file_survives_a_power_failure(
    write: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    assert disk.keeps(write(tmp_path), tmp_path)


MODES = {file_of_a_model: 0o444, login: 0o600, profile: 0o644}


@pytest.mark.parametrize("write", WRITERS)
def test_written_file_has_the_intended_permissions(write: Callable[[Path], Path], tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        written = write(tmp_path)
    finally:
        os.umask(before)
    assert written.stat().st_mode & 0o777 == MODES.get(write, 0o644), "as the usual umask leaves it, unless it says so"
