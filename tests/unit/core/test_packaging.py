"""What a hint says to install can be installed: in the clone, by an extra that there is."""

import re
import tomllib
from pathlib import Path

from gnomon_core.packaging import how_to_install

ROOT = Path(__file__).parents[3]
PARTS = (
    "autoscaler",
    "cli",
    "coordinator",
    "core",
    "functions",
    "gateway-plugin",
    "planner",
    "platforms",
    "profiler",
    "simulator",
)
NAMED = re.compile(r"how_to_install\(['\"](\w+)['\"]\)")


def sources() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for part in PARTS for path in (ROOT / part).rglob("*.py")}


def test_each_extra_that_is_named_is_one_of_the_projects() -> None:
    there = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {extra for text in sources().values() for extra in NAMED.findall(text)}
    assert len(named) > 5, "nothing names one"
    assert named <= set(there)
    assert how_to_install("models").endswith("pip install '.[models]'.")


def test_extra_is_named_only_where_the_package_is_ours() -> None:
    assert not [path for path, text in sources().items() if "gnomon[" in text]
