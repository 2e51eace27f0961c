"""Which models a deployment brings here by capturing them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gnomon_profiler.repository import DirectoryRepository
from gnomon_server import machine


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
