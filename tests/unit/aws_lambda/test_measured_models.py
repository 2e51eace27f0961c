"""What `gnomon lambda-profile` measured is the profile that plans are made by; of this model and region alone."""

import json
import os
from pathlib import Path

import pytest

from gnomon_core.profiles import LatencyTable, ModelProfile
from gnomon_platforms.aws_lambda.profiling import Measured, MeasuredModels, Table, Wanted, path_of
from tests.made_up_models import sold_by_memory

IDENTITY = {"model": "net@1", "program": "abc", "region": "eu-west-1", "image": "image:1"}
WANTED = Wanted("net@1", "abc", "image:1", 1769, 1)


def cell(memory_mb: int, batch: int, *, cold_s: tuple[float, ...] = ()) -> Measured:
    seconds = batch * 0.1 * 1769 / memory_mb
    return Measured(memory_mb, batch, seconds, 0.02, seconds, 300, (seconds,), cold_s)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    table = Table.open(path_of(tmp_path, "net@1", "eu-west-1"), IDENTITY)
    for memory_mb in (885, 1769, 3538):
        for batch in (1, 4):
            table.add(cell(memory_mb, batch, cold_s=(0.8,) if batch == 1 else ()))
    table.add(cell(7076, 1))
    return tmp_path


def found(folder: Path, wanted: Wanted = WANTED, region: str = "eu-west-1") -> ModelProfile | None:
    return MeasuredModels(folder).find(wanted, region)


def test_every_size_with_both_ends_of_the_batches_is_there_and_the_own_one_foretells_the_function(folder: Path) -> None:
    profile = found(folder)
    assert profile is not None
    assert set(profile.memories.seconds) == {885, 1769, 3538}, "7,076 MB have not been measured for a batch of 4"
    assert profile.at(3538, 4) == pytest.approx(0.2)
    assert profile.at(885, 2) == pytest.approx(0.4, rel=0.01), "between two measured batches on the line between them"
    assert profile.at(1, 4) == pytest.approx(0.4), "by cores it is the own size"
    assert profile.at(2, 1) is None
    assert profile.body_start_s == 0.8
    assert profile.provenance["region"] == "eu-west-1"


def test_sizes_that_were_measured_with_other_batches_in_between_stay(folder: Path) -> None:
    """As `gnomon lambda-profile --grid` does after a run without."""
    table = Table.open(path_of(folder, "net@1", "eu-west-1"), IDENTITY)
    table.add(cell(1769, 2))
    for batch in (1, 3, 4):
        table.add(cell(2048, batch))
    profile = found(folder)
    assert profile is not None
    assert set(profile.memories.seconds) == {885, 1769, 2048, 3538}
    assert profile.at(885, 3) == pytest.approx(0.3 * 1769 / 885)
    assert profile.at(1, 2) == pytest.approx(0.2), "by cores it is the own size"


def test_memory_sizes_are_kept_with_a_profile_on_disk() -> None:
    profile = sold_by_memory((0.1, 0.2), (885, 1769, 3538))
    again = ModelProfile.from_json(json.loads(json.dumps(profile.to_json())))
    assert again == profile
    assert again.at(3538, 2) == pytest.approx(0.1)


def test_an_own_size_that_was_not_measured_leaves_the_function_to_be_learned(folder: Path) -> None:
    profile = found(folder, Wanted("net@1", "abc", "image:1", 2048, 1))
    assert profile is not None
    assert profile.whole == LatencyTable({})
    assert set(profile.memories.seconds) == {885, 1769, 3538}


def test_less_than_the_function_s_limit_is_not_offered(folder: Path) -> None:
    profile = found(folder, Wanted("net@1", "abc", "image:1", 1769, 1, least_mb=1024))
    assert profile is not None
    assert set(profile.memories.seconds) == {1769, 3538}
    assert found(folder, Wanted("net@1", "abc", "image:1", 4096, 1, least_mb=4096)) is None


@pytest.mark.parametrize(
    ("wanted", "region"),
    [
        (Wanted("net@2", "abc", "image:1", 1769, 1), "eu-west-1"),
        (Wanted("net@1", "other", "image:1", 1769, 1), "eu-west-1"),
        (Wanted("net@1", "abc", "image:2", 1769, 1), "eu-west-1"),
        (WANTED, "us-east-1"),
    ],
)
def test_measurements_of_anything_else_are_left_alone(folder: Path, wanted: Wanted, region: str) -> None:
    assert found(folder, wanted, region) is None


def test_a_file_that_is_measured_on_is_read_again_and_one_that_is_none_is_none(folder: Path) -> None:
    models = MeasuredModels(folder)
    assert models.find(WANTED, "eu-west-1") is not None
    path = path_of(folder, "net@1", "eu-west-1")
    table = Table.open(path, IDENTITY)
    table.add(cell(7076, 4))
    profile = models.find(WANTED, "eu-west-1")
    assert profile is not None
    assert 7076 in profile.memories.seconds
    path.write_text("{")
    os.utime(path, (1, 1))
    assert models.find(WANTED, "eu-west-1") is None
    assert MeasuredModels(None).find(WANTED, "eu-west-1") is None
