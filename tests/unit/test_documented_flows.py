"""The flows in docs/architecture.md: every file and function exists, and every step leads to the next one as the page says."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
ROW = re.compile(r"^\| \d+ \| (?P<what>[^|]+) \| `(?P<file>[^`|]+)` \| `(?P<function>[^`|]+)` \| ?(?P<via>[^|]*) ?\|$")


@dataclass(frozen=True)
class Step:
    """One row of a flow's table. `via` are the names by which the step reaches the next one."""

    file: str
    function: str
    via: tuple[str, ...]


def flows() -> dict[str, list[Step]]:
    """The tables under "Three flows", by their headings."""
    section = PAGE.read_text(encoding="utf-8").split("\n## Three flows\n", 1)[1].split("\n## ", 1)[0]
    found: dict[str, list[Step]] = {}
    title = ""
    for line in section.splitlines():
        if line.startswith("### "):
            title = line.removeprefix("### ")
        elif row := ROW.match(line):
            step = Step(row["file"], row["function"], tuple(re.findall(r"`([^`]+)`", row["via"])))
            found.setdefault(title, []).append(step)
    return found


FLOWS = flows()
LINKS = [
    pytest.param(step, following, id=f"{title}: {step.function} → {following.function}")
    for title, steps in FLOWS.items()
    for step, following in pairwise(steps)
]


@cache
def functions(file: str) -> dict[str, str]:
    """The source of each function, method and class of a file, by qualified name."""
    source = (ROOT / file).read_text(encoding="utf-8")
    found: dict[str, str] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found[prefix + child.name] = ast.get_source_segment(source, child) or ""
                visit(child, f"{prefix}{child.name}.")
            else:
                visit(child, prefix)

    visit(ast.parse(source), "")
    return found


def mentions(source: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", source) is not None


def test_the_page_describes_three_flows() -> None:
    assert len(FLOWS) == 3
    assert all(len(steps) >= 5 for steps in FLOWS.values())


@pytest.mark.parametrize("step", [step for steps in FLOWS.values() for step in steps], ids=lambda step: step.function)
def test_every_step_names_a_function_that_exists(step: Step) -> None:
    assert (ROOT / step.file).is_file(), f"{step.file} does not exist"
    assert step.function in functions(step.file), f"{step.file} defines no {step.function}"


@pytest.mark.parametrize(("step", "following"), LINKS)
def test_every_step_leads_to_the_next(step: Step, following: Step) -> None:
    """The step's source names the next function, or each name in `via`, which the next step's file has, too."""
    caller, callee = functions(step.file)[step.function], following.function.rsplit(".", 1)[-1]
    if not step.via:
        assert mentions(caller, callee), f"{step.function} does not mention {callee}"
    for name in step.via:
        assert mentions(caller, name), f"{step.function} does not mention {name}"
        there = (ROOT / following.file).read_text(encoding="utf-8")
        assert mentions(there, name), f"{following.file} does not mention {name}"
