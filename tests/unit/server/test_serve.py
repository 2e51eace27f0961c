"""The parts of `gnomon serve`: the registry of platforms, its process, and the machine's models."""

import asyncio
import gc
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gnomon_cli.doctor.findings import Level
from gnomon_cli.doctor.machine import memory_and_disk
from gnomon_core.clock import WallClock
from gnomon_core.errors import GnomonError
from gnomon_profiler.repository import DirectoryRepository
from gnomon_server import machine, process
from gnomon_server.machine import LocalBackend
from gnomon_server.platforms import PLATFORMS, Backend, require
from gnomon_server.process import FullCollections, check_disk_space, memory_is_short, next_collection_s, serve_until_signal
from tests.platform_testing import NoModels, NothingBuilt
from tests.refusals import refused
from tests.waiting import TIMEOUT_S, until


@pytest.mark.parametrize("name", PLATFORMS)
def test_every_platform_has_a_backend(name: str) -> None:
    entry = PLATFORMS[name]
    assert issubclass(getattr(importlib.import_module(entry.module), entry.backend), Backend)
    require(name)


@pytest.mark.parametrize(("name", "package"), [("lambda", "boto3"), ("openfaas", "kubernetes")])
def test_a_platform_without_its_package_says_what_to_install(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with refused(code="package_missing", match=f"needs the Python package {package}"):
        require(name)
    require("local")


class Recorded:
    """A service that records its steps; one that stands by never finishes its start."""

    def __init__(self, *, stands_by: bool = False) -> None:
        self.steps: list[str] = []
        self._stands_by = stands_by

    async def start(self) -> None:
        if self._stands_by:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        self.steps.append("started")

    async def stop(self) -> None:
        self.steps.append("stopped")


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """A second signal ends a process at once; this one is the tests'."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_service_runs_until_a_signal_and_is_stopped(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    service = Recorded()

    async def meanwhile(service: Recorded, ended: asyncio.Task[bool]) -> None:
        service.steps.append("serves")
        os.kill(os.getpid(), number)
        await ended

    await serve_until_signal(lambda: service, lambda _: "It serves.", meanwhile)
    assert service.steps == ["started", "serves", "stopped"]
    assert capsys.readouterr().out == "It serves. Ctrl-C stops it.\n"


async def test_a_service_stops_when_its_work_is_done() -> None:
    service = Recorded()

    async def meanwhile(service: Recorded, ended: asyncio.Task[bool]) -> None:
        assert not ended.done()
        service.steps.append("done")

    await serve_until_signal(lambda: service, lambda _: "It serves.", meanwhile)
    assert service.steps == ["started", "done", "stopped"]


async def test_a_signal_ends_a_service_that_has_not_started_yet(capsys: pytest.CaptureFixture[str]) -> None:
    service = Recorded(stands_by=True)
    await serve_until_signal(lambda: service, lambda _: "It serves.")
    assert service.steps == ["stopped"]
    assert capsys.readouterr().out == ""


async def test_twenty_calls_that_block_hold_up_no_other() -> None:
    together = threading.Barrier(21, timeout=TIMEOUT_S)

    async def meanwhile(service: Recorded, ended: asyncio.Task[bool]) -> None:
        del ended
        await asyncio.gather(*(asyncio.to_thread(together.wait) for _ in range(together.parties)))
        service.steps.append("done")

    service = Recorded()
    await serve_until_signal(lambda: service, lambda _: "It serves.", meanwhile)
    assert service.steps == ["started", "done", "stopped"]


class Cycle:
    """Something that keeps itself."""

    def __init__(self) -> None:
        self.itself = self


async def test_garbage_that_outlived_the_small_collections_goes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "COLLECT_EVERY_S", 0.01)
    old = Cycle()
    gone = weakref.ref(old)
    gc.collect()
    gc.disable()  # nobody else collects it
    collections = FullCollections()
    try:
        collections.start()
        del old
        await until(lambda: gone() is None)
    finally:
        collections.stop()
        gc.enable()


@pytest.mark.parametrize(("took_s", "next_s"), [(0.0, 60.0), (0.02, 60.0), (0.2, 200.0)])
def test_a_long_collection_is_followed_by_a_long_pause(took_s: float, next_s: float) -> None:
    assert next_collection_s(took_s) == pytest.approx(next_s)


SIZE, COUNT = 20_000_000, 20
PROGRAM = f"""
from pathlib import Path
from gnomon_server.process import give_back_large_blocks

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def received():
    parts = bytearray()
    while len(parts) < {SIZE}:
        parts += b"x" * (256 << 10)
    return bytes(parts)

give_back_large_blocks()
before, small = resident_bytes(), []
for _ in range(3):
    large = []
    for _ in range({COUNT}):
        large.append(received())
        small.append([bytearray(3000) for _ in range(20)])
    del large
print(resident_bytes() - before)
"""


def test_memory_of_large_bodies_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    # The small ones take 4 MB. Where the allocator keeps what large ones took, it is 60 MB.
    assert int(done.stdout) < SIZE


@pytest.mark.parametrize(
    ("reference", "captured"),
    [
        ("efficientnet-lite0", ["efficientnet-lite0"]),
        ("efficientnet-lite0@1", ["efficientnet-lite0"]),
        ("efficientnet-lite0@99", []),
        ("mine", []),
    ],
)
async def test_only_what_capturing_gives_is_captured(
    reference: str, captured: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that is not there took half a minute to be refused, and left the first one behind."""
    asked: list[str] = []

    def capture(_: Any, name: str, **options: Any) -> None:
        asked.append(name)

    monkeypatch.setattr(machine, "ensure_model", capture)
    await machine.ModelFetcher(DirectoryRepository(tmp_path)).fetch(reference)
    assert asked == captured


async def test_client_that_leaves_does_not_begin_its_capture_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, end = [], threading.Event()

    def capture(_: Any, name: str, **options: Any) -> None:
        begun.append(name)
        end.wait(60)

    monkeypatch.setattr(machine, "ensure_model", capture)
    fetcher = machine.ModelFetcher(DirectoryRepository(tmp_path))
    first = asyncio.ensure_future(fetcher.fetch("efficientnet-lite0"))
    await until(lambda: begun)
    first.cancel()
    again = asyncio.ensure_future(fetcher.fetch("efficientnet-lite0"))
    end.set()
    await again
    assert begun == ["efficientnet-lite0"]


async def test_capture_ends_when_the_server_stops(tmp_path: Path) -> None:
    fetcher = machine.ModelFetcher(DirectoryRepository(tmp_path))
    fetching = asyncio.ensure_future(fetcher.fetch("efficientnet-lite0"))
    await until(lambda: fetcher._processes._started)
    fetcher.end()
    for stopped in (fetching, fetcher.fetch("efficientnet-lite0")):
        with refused(503, "stopping"):
            await stopped


async def test_captures_of_many_models_leave_threads_to_others(tmp_path: Path) -> None:
    """Each held one of the threads that instances are started in and asynchronous calls are stored in, for half a minute."""
    fetcher = machine.ModelFetcher(DirectoryRepository(tmp_path))
    fetches = [asyncio.ensure_future(fetcher.fetch(f"torchvision:resnet{number}")) for number in range(40)]
    captures = await until(lambda: fetcher._processes._started)
    await asyncio.to_thread(os.getpid)
    running = [capture for capture in captures if capture.poll() is None]
    fetcher.end()
    ends = await asyncio.gather(*fetches, return_exceptions=True)
    assert running, "another thread was free only after a capture had ended"
    assert {getattr(end, "code", None) for end in ends} == {"stopping"}


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "available_memory_bytes", lambda: 300_000_000)


@pytest.mark.usefixtures("little_memory")
def test_little_memory_refuses_nothing_and_is_told(tmp_path: Path) -> None:
    check_disk_space(tmp_path)
    assert memory_is_short().startswith("0.3 GB of memory are free")
    level, text, _ = memory_and_disk(tmp_path)
    assert (level, text) == (Level.WARN, memory_is_short())


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(("short", "pool", "early"), [(True, 1, False), (False, 1, True), (False, 0, False)])
def test_libraries_of_models_are_loaded_early_only_for_a_pool_and_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, short: bool, pool: int, early: bool
) -> None:
    if not short:
        monkeypatch.setattr(process, "available_memory_bytes", lambda: 8_000_000_000)
    made: dict[str, Any] = {}
    monkeypatch.setattr(machine, "LocalPlatform", lambda *_, **options: made.update(options))
    options = SimpleNamespace(
        state=tmp_path, images=None, cores=None, pool=pool, reserved_cores=0.0, lend_cores=False, model_folder=tmp_path, store=""
    )
    LocalBackend(cast("Any", options), NoModels(), NothingBuilt(), WallClock())
    assert made["preload_torch"] is early


def test_want_of_disk_refuses(tmp_path: Path) -> None:
    with pytest.raises(GnomonError) as refused:
        check_disk_space(tmp_path, disk_bytes=1 << 60)
    assert refused.value.code == "no_disk"
