"""Profiles of models on Lambda."""

import asyncio
import json
import os
from itertools import product
from pathlib import Path
from threading import Event
from typing import Any, cast

import numpy as np
import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import read_deployment
from gnomon_core.interfaces import InstanceRequest, ModelRepository
from gnomon_core.profiles import LatencyTable, ModelProfile
from gnomon_planner.plans import LAMBDA
from gnomon_platforms.aws_lambda.invocation import Report
from gnomon_platforms.aws_lambda.platform import LambdaPlatform
from gnomon_platforms.aws_lambda.profiling import (
    Measured,
    MeasuredModels,
    Table,
    Wanted,
    Wishes,
    check_budget,
    estimate,
    measured,
    path_of,
)
from gnomon_platforms.aws_lambda.resources import LambdaOptions, invoke_usd
from gnomon_platforms.images import BuiltImages
from gnomon_platforms.testing import Recorder
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
    assert profile.whole == LatencyTable({})
    assert set(profile.memories.seconds) == {885, 1769, 3538}


def test_less_than_the_function_s_limit_is_not_offered(folder: Path) -> None:
    profile = found(folder, Wanted("net@1", "abc", "image:1", 1769, 1, least_mb=1024))
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
    assert 7076 in profile.memories.seconds
    path.write_text("{")
    os.utime(path, (1, 1))
    assert models.find(WANTED, "eu-west-1") is None
    assert MeasuredModels(None).find(WANTED, "eu-west-1") is None


def report(ms: float, *, init_ms: float = 0.0) -> Report:
    return Report(ms, -(-ms // 1), 1769, 100, init_ms)


def test_the_planner_s_price_is_the_platform_s() -> None:
    planned = LAMBDA["x86"].per_call(1769, np.array([0.106]))[0]
    assert invoke_usd(0.106, 1769) == pytest.approx(planned)


def test_the_example_of_the_docstring_costs_about_seventeen_cents() -> None:
    wishes = Wishes(tuple(product(range(1024, 10_240, 342), range(1, 21))), 10)
    assert 0.1 < estimate(wishes, wishes.cells) < 0.4


def test_nothing_left_to_measure_costs_nothing() -> None:
    assert estimate(Wishes(((1769, 1),), 10), []) == 0.0


def test_cold_starts_are_kept_apart() -> None:
    cell = measured(1769, 4, [report(900, init_ms=700), report(100), report(110), report(120)])
    assert (cell.seconds, cell.cold_s) == (0.11, (0.7,))
    assert cell.runs_s == (0.1, 0.11, 0.12)
    with pytest.raises(GnomonError, match="no Invoke found a warm sandbox"):
        measured(1769, 4, [report(900, init_ms=700)])


def test_a_table_is_gone_on_with_only_where_it_is_of_the_same(tmp_path: Path) -> None:
    path, identity = tmp_path / "times.json", {"model": "net@1", "region": "us-east-1"}
    table = Table.open(path, identity)
    table.cost = 0.5
    table.add(Measured(1769, 1, 0.1, 0.02, 0.1, 90, (0.1, 0.1), ()))
    again = Table.open(path, identity)
    assert (again.cells, again.cost) == (table.cells, 0.5)
    assert Table.open(path, {**identity, "model": "net@2"}).cells == {}
    path.write_text("{")
    assert Table.open(path, identity).cells == {}


def test_a_run_that_costs_twice_what_was_expected_stops() -> None:
    said: list[str] = []
    check_budget(0.009, 0.001, said.append)
    check_budget(0.19, 0.1, said.append)
    with pytest.raises(GnomonError, match="twice"):
        check_budget(0.21, 0.1, said.append)
    assert len(said) == 1


STANDS_STILL_S = 5.0
"""Only an event loop that waits for the repository does not turn within it."""
SPEC = read_deployment({"service": "fn", "image": "gnomon/body:latest", "annotations": {"gnomon/model": "m@1"}})


class Slow:
    """A repository that answers when the event loop has done something else, and has nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self.turned = loop, list[bool]()

    def get(self, reference: str) -> Any:
        turned = Event()
        self._loop.call_soon_threadsafe(turned.set)
        self.turned.append(turned.wait(STANDS_STILL_S))
        raise GnomonError(404, "model_not_found", f"There is no {reference}.")


class NothingBuilt:
    def resolve(self, image: str) -> None:
        del image


@pytest.fixture
def region(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ACCESS_KEY_ID", "testing"), ("SECRET_ACCESS_KEY", "testing"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.mark.usefixtures("region")
async def test_the_event_loop_goes_on_while_a_slots_model_is_read() -> None:
    repository = Slow(asyncio.get_running_loop())
    options = LambdaOptions("arn:aws:iam::123456789012:role/gnomon")
    platform = LambdaPlatform(options, cast("ModelRepository", repository), cast("BuiltImages", NothingBuilt()))
    platform._listener = Recorder()
    for order in (platform.create(InstanceRequest(SPEC, 1, 1, None, {})), platform.prepare(SPEC)):
        with pytest.raises(GnomonError, match=r"no m@1"):
            await order
    await platform.stop()
    assert repository.turned == [True, True]
