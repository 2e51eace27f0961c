"""Functions of this machine: which models are captured for them, and what happens with little memory or disk."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gnomon_cli.doctor.findings import Level
from gnomon_cli.doctor.machine import room
from gnomon_core.clock import WallClock
from gnomon_core.errors import GnomonError
from gnomon_platforms.testing import NoModels, NothingBuilt
from gnomon_profiler.repository import DirectoryRepository
from gnomon_server import machine, process
from gnomon_server.machine import LocalBackend
from gnomon_server.process import check_room, memory_is_short


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

    def capture(_: Any, name: str) -> None:
        asked.append(name)

    monkeypatch.setattr(machine, "ensure_model", capture)
    await machine.ModelFetcher(DirectoryRepository(tmp_path)).fetch(reference)
    assert asked == captured


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_available_memory_bytes", lambda: 300_000_000)


@pytest.mark.usefixtures("little_memory")
def test_little_memory_refuses_nothing_and_is_told(tmp_path: Path) -> None:
    check_room(tmp_path)
    assert memory_is_short().startswith("0.3 GB of memory are free")
    level, text, _ = room(tmp_path)
    assert (level, text) == (Level.WARN, memory_is_short())


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("short", [True, False])
def test_libraries_of_models_are_loaded_early_only_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, short: bool
) -> None:
    if not short:
        monkeypatch.setattr(process, "_available_memory_bytes", lambda: 8_000_000_000)
    made: dict[str, Any] = {}
    monkeypatch.setattr(machine, "LocalPlatform", lambda *_, **options: made.update(options))
    options = SimpleNamespace(state=tmp_path, images=None, cores=None, pool=1, reserved_cores=0.0, model_folder=tmp_path)
    LocalBackend(cast("Any", options), NoModels(), NothingBuilt(), WallClock())
    assert made["preload_torch"] is not short


def test_want_of_disk_refuses(tmp_path: Path) -> None:
    with pytest.raises(GnomonError) as refused:
        check_room(tmp_path, disk_bytes=1 << 60)
    assert refused.value.code == "no_disk"
