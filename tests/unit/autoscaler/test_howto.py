"""docs/howto/add-a-policy.md is executed as a reader would follow it."""

import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnomon_autoscaler.registry import SCALING, scaling_policy
from gnomon_core.errors import GnomonError
from gnomon_core.settings import read_settings
from gnomon_gateway.scheduling.registry import SCHEDULING, scheduling_policy

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "add-a-policy.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(PAGE.read_text()) if kind == language]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The files of the page, as an installed package."""
    names = []
    for text in blocks("python"):
        name = text.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(text)
        names.append(name.removesuffix(".py"))
    (points,) = (tomllib.loads(text)["project"]["entry-points"] for text in blocks("toml"))
    installed = tmp_path / "backlog-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: backlog\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "\n".join(f"{name} = {value}" for name, value in entries.items()) for group, entries in points.items()
    ]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", ["test_backlog", "test_few"])
def test_the_pages_tests_pass(name: str) -> None:
    module = importlib.import_module(name)
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()


@pytest.mark.usefixtures("package")
def test_the_pages_policies_are_found_when_they_are_named_and_only_then() -> None:
    assert {"backlog", "few"}.isdisjoint(SCALING.with_named([]) | SCHEDULING.with_named([]))
    assert {"backlog", "few"}.isdisjoint(sys.modules)
    names = ["backlog", "few"]
    settings = read_settings({}, {"gnomon/autoscaler": "backlog", "gnomon/backlog.per-instance": "20", "gnomon/scheduler": "few"})
    assert scaling_policy("backlog", settings, SCALING.with_named(names)).name == "backlog"
    assert scheduling_policy("few", settings, SCHEDULING.with_named(names)).name == "few"
    wrong = read_settings({}, {"gnomon/backlog.per-instance": "0"})
    with pytest.raises(GnomonError, match="must be a whole number from 1 to 1000"):
        scaling_policy("backlog", wrong, SCALING.with_named(names))
