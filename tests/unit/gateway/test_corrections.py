"""Corrections of a profile are restored after a restart, and for no other profile or machine."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gnomon_core.blocks import Block, Layers
from gnomon_core.profiles import LatencyTable, Loading, ModelProfile
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.profiles import SAVE_EVERY_S, Corrections, ProfiledLatency
from tests.virtual_clock import VirtualClock

BLOCK = Block("all", 0, 1, ("x",), ("y",), ("w",), 1000, 8, splittable=True)
WHOLE = LatencyTable({cores: {batch: 0.01 * batch / cores for batch in (1, 2, 4, 8)} for cores in (1, 2)})
LOADING = {"shared": Loading(0.0, 0.0)}
PROFILE = ModelProfile("m@1", Layers("digest", ("y",), (BLOCK,), {"x": 1}), WHOLE, (WHOLE,), LOADING, 0.02, 0.01, 1, 0.0, 0.0)


class Life:
    """A life of a gateway on a machine."""

    def __init__(self, file: Path, machine: str = "this", profile: ModelProfile = PROFILE) -> None:
        self.clock = VirtualClock()
        self._foretold = ProfiledLatency()
        self.latency = LearnedLatency(self._foretold)
        self.corrections = Corrections(file, machine, self.latency, self.clock)
        self.corrections.load()
        self.deploy(profile)

    def deploy(self, profile: ModelProfile) -> None:
        self._foretold.put("m", profile)
        self.corrections.begin("m", profile)

    def serve(self, batch: int, seconds: float, times: int = 40) -> None:
        for _ in range(times):
            self.latency.observe("m", 1, batch, seconds)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "corrections.json"


def test_corrections_are_restored(file: Path) -> None:
    before = Life(file)
    before.serve(4, 0.06)  # half as long again as foretold
    before.corrections.save()
    after = Life(file)
    assert after.latency.seconds("m", 1, 8) == pytest.approx(0.12, rel=0.01)
    assert after.latency.corrections(["m"]) == pytest.approx({1: 1.5}, rel=0.01)
    # Of two cores nothing was measured.
    assert after.latency.seconds("m", 2, 8) == pytest.approx(0.04)


def test_a_machine_that_is_quicker_now_is_believed_soon(file: Path) -> None:
    before = Life(file)
    before.serve(4, 0.12)
    before.corrections.save()
    after = Life(file)
    after.serve(4, 0.04, times=10)
    assert after.latency.seconds("m", 1, 4) == pytest.approx(0.04, rel=0.05)
    after.serve(4, 0.04, times=60)
    assert after.latency.corrections(["m"])[1] == pytest.approx(1.0, abs=0.06)


def test_two_restarts_without_a_request_between_them_lose_nothing(file: Path) -> None:
    before = Life(file)
    before.serve(4, 0.06)
    before.corrections.save()
    Life(file).corrections.save()
    assert Life(file).latency.corrections(["m"]) == pytest.approx({1: 1.5}, rel=0.01)


def test_a_model_that_is_not_served_in_between_is_remembered(file: Path) -> None:
    before = Life(file)
    before.serve(4, 0.06)
    before.corrections.save()
    idle = Corrections(file, "this", LearnedLatency(), VirtualClock())
    idle.load()
    idle.save()
    assert Life(file).latency.corrections(["m"]) == pytest.approx({1: 1.5}, rel=0.01)


def test_another_machine_and_a_profile_measured_again_begin_afresh(file: Path) -> None:
    before = Life(file)
    before.serve(4, 0.06)
    before.corrections.save()
    assert Life(file, machine="another").latency.corrections(["m"]) == {}
    again = replace(PROFILE, whole=LatencyTable({1: {1: 0.015, 8: 0.12}}))
    assert Life(file, profile=again).latency.seconds("m", 1, 8) == pytest.approx(0.12)


def test_too_few_batches_are_not_remembered(file: Path) -> None:
    before = Life(file)
    before.serve(4, 0.5, times=2)  # cold ones
    before.corrections.save()
    assert Life(file).latency.seconds("m", 1, 4) == pytest.approx(0.04)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"format": "gnomon-corrections/1", "machine": "this", "variants": {"m": 5}}',
        b'{"format": "gnomon-corrections/1", "machine": "this", "variants": []}',
    ],
)
def test_a_file_that_cannot_be_read_is_none(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert Life(file).latency.corrections(["m"]) == {}


def test_impossible_corrections_are_left_alone(file: Path) -> None:
    before = Life(file)
    before.serve(4, 0.06)
    before.corrections.save()
    document = json.loads(file.read_bytes())
    for wrong in ([0, 1], [-1, 1], [1, float("inf")], [1], ["1", "1"], None):
        document["variants"]["m"]["cores"] = {"1": wrong}
        file.write_text(json.dumps(document))
        assert Life(file).latency.corrections(["m"]) == {}, wrong


def test_a_file_that_cannot_be_written_ends_nothing(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    life = Life(file)
    life.serve(4, 0.06)
    file.mkdir()  # no file can take its place, root's neither
    life.corrections.save()
    assert "cannot be saved" in caplog.text
    file.rmdir()
    life.corrections.save()
    assert Life(file).latency.corrections(["m"]) == pytest.approx({1: 1.5}, rel=0.01)


async def test_corrections_are_saved_every_few_seconds(file: Path) -> None:
    life = Life(file)
    task = asyncio.create_task(life.corrections.run())
    life.serve(4, 0.06)
    await life.clock.advance(SAVE_EVERY_S)
    # The next sleep begins once the thread has written.
    async with asyncio.timeout(10):
        while not life.clock._sleepers:  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(0.01)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert Life(file).latency.corrections(["m"]) == pytest.approx({1: 1.5}, rel=0.01)
