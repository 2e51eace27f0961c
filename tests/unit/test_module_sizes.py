"""A module of what is shipped can be read in one sitting: at most 300 lines, as CONTRIBUTING.md says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]


def test_no_module_of_a_shipped_package_is_longer_than_contributors_are_told() -> None:
    [most] = re.findall(r"at most (\d+) lines", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    lengths = {
        path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines())
        for package in WHEEL["packages"]
        for path in (ROOT / package).rglob("*.py")
    }
    assert len(lengths) > len(WHEEL["packages"])
    assert {str(path): length for path, length in lengths.items() if length > int(most)} == {}
