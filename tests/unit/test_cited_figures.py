"""A figure that a document cites is the one that was measured last: `[12.1](…/benchmarks/results/noop.json "times_mlserver")`.

The link's title is the figure's key; the number is rounded as it is written.
"""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CITED = re.compile(r'\[([0-9][0-9.,]*)\]\([./]*benchmarks/results/(\w+)\.json "([^"]+)"\)')
CITATIONS = [
    (path.relative_to(ROOT), *cited)
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    for cited in CITED.findall(path.read_text(encoding="utf-8"))
]


def test_the_readme_cites_figures() -> None:
    assert {str(path) for path, *_ in CITATIONS} >= {"README.md"}


@pytest.mark.parametrize(("path", "written", "name", "key"), CITATIONS)
def test_a_cited_figure_is_what_was_measured(path: Path, written: str, name: str, key: str) -> None:
    document = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    [value] = [figure["value"] for figure in document["figures"] if figure["key"] == key]
    number = written.replace(",", "")
    decimals = len(number.partition(".")[2])
    assert f"{value:.{decimals}f}" == number, f"{path}: {key} of {name}.json is {value}"
