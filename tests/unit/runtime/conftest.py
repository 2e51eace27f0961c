"""Handlers as their authors write them."""

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnomon_core.launch import Launch
from gnomon_runtime.application import Application
from gnomon_runtime.handler import load_application
from tests.unit.runtime.handlers import Make


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    def build(source: str, files: dict[str, str] | None = None, **environment: str) -> Application:
        folder = tmp_path / "any-name"
        folder.mkdir()
        for name, text in {"handler.py": source, **(files or {})}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(textwrap.dedent(text))
        return load_application(Launch("handler", "echo", "echo-1", 2, 8, environment, {"folder": str(folder)}))

    forget_handlers()
    yield build
    forget_handlers()


def forget_handlers() -> None:
    """A process has one handler for its life; this one has had others, also those of tests in other folders."""
    for name in list(sys.modules):  # other threads import meanwhile
        if name == "function" or name.startswith("function."):
            del sys.modules[name]
