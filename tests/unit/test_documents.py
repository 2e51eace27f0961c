"""Documents as their readers follow them: links, applied objects, cited figures, and the flows of docs/architecture.md."""

import ast
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from tests.cluster.settings import REGISTRY as TEST_REGISTRY
from tests.cluster.settings import TAG as TEST_TAG

ROOT = Path(__file__).parents[2]
HOWTO = ROOT / "docs" / "howto"
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?[^)]*\)")
REGISTRY = "registry.example/team"
HEAVY = shutil.ignore_patterns("__pycache__", "*.whl")
# Where a page has another one build some of its images, by the sentence that links to it.
BUILT_ELSEWHERE = {
    "run-on-knative.md": ["models-on-kubernetes.md"],
    "shadows-on-kubernetes.md": ["models-on-kubernetes.md"],
}


def commands(page: str) -> str:
    """The commands that a page tells its reader to type."""
    found = FENCED.findall((HOWTO / page).read_text(encoding="utf-8"))
    return "\n".join(text for _, language, text in found if language in ("", "sh"))


INSTALLING = [page.name for page in sorted(HOWTO.glob("*.md")) if "kubectl apply -k deploy/" in commands(page.name)]


@cache
def modules() -> list[str]:
    """The paths of all modules; environments lie in hidden folders."""
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [f"{folder}/{name}" for name in files if name.endswith(".py")]
    return found


def anchors(page: Path) -> set[str]:
    """The headings of a page, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{target} of {page.name}"
        assert not anchor or anchor in anchors(there), f"{target}#{anchor} of {page.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_module_that_a_page_names_is_there(page: Path) -> None:
    """A module is named by its path, or by the end of one: `dispatch/latency.py`."""
    for module in set(re.findall(r"`([\w./-]+\.py)`", page.read_text(encoding="utf-8"))):
        assert any(path.endswith(f"/{module}") for path in modules()), f"{module} of {page.name}"
    for module in set(re.findall(r"`((?:gnomon_\w+)(?:\.[a-z_]\w*)+)`", page.read_text(encoding="utf-8"))):
        ends = (f"/{module.replace('.', '/')}.py", f"/{module.replace('.', '/')}/__init__.py")
        assert any(path.endswith(ends) for path in modules()), f"{module} of {page.name}"


def test_every_page_is_found_from_the_list_of_pages() -> None:
    listed = {target for target, _ in LINK.findall((ROOT / "docs" / "README.md").read_text(encoding="utf-8"))}
    assert {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").glob("**/*.md") if page.parent == HOWTO} <= listed


def tagged(page: str) -> set[str]:
    return set(re.findall(r'--tag "\$REGISTRY/([\w-]+):', commands(page)))


@pytest.mark.parametrize("page", INSTALLING)
def test_every_built_image_is_pushed(page: str) -> None:
    assert set(re.findall(r'docker push "\$REGISTRY/([\w-]+):', commands(page))) == tagged(page)


def images(folder: Path) -> set[str]:
    """The images, without tags, that `kubectl apply -k` of this folder would have pods run."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    found: set[str] = set()
    for resource in kustomization.get("resources", []):
        path = folder / resource
        found |= (
            images(path)
            if path.is_dir()
            else set(re.findall(r"^ *(?:- )?image: ([^\s:]+)", path.read_text("utf-8"), re.MULTILINE))
        )
    named = {image["name"]: image["newName"] for image in kustomization.get("images", [])}
    return {named.get(image, image) for image in found}


@pytest.mark.parametrize("page", INSTALLING)
def test_every_applied_image_was_built(page: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=HEAVY)
    built = {f"{REGISTRY}/{name}" for name in set.union(*map(tagged, [page, *BUILT_ELSEWHERE.get(page, [])]))}
    applied = 0
    for line in commands(page).splitlines():
        if line.strip().startswith("sed -i"):
            subprocess.run(["bash", "-euc", line], cwd=tmp_path, env={"REGISTRY": REGISTRY, "PATH": "/usr/bin:/bin"}, check=True)
        for folder in re.findall(r"kubectl apply -k (deploy/\S+)", line):
            wanted = images(tmp_path / folder)
            assert wanted, folder
            assert wanted <= built, f"{folder} of {page} runs images that nobody was told to build or name"
            applied += 1
    assert applied


def test_on_the_cluster_for_tests_images_have_its_names(tmp_path: Path) -> None:
    """There archives take the place of a registry, and the other pages' commands name the images."""
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=HEAVY)
    typed = commands("test-on-kubernetes.md")
    assert f"export REGISTRY={TEST_REGISTRY}\n" in typed
    for line in [line for line in typed.splitlines() if line.startswith("sed -i")]:
        subprocess.run(["bash", "-euc", line], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, check=True)
    kustomizations = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in tmp_path.rglob("kustomization.yaml")]
    assert {image["newTag"] for each in kustomizations for image in each.get("images", [])} == {TEST_TAG}


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


PAGE = ROOT / "docs" / "architecture.md"
ROW = re.compile(r"^\| \d+ \| (?P<what>[^|]+) \| `(?P<file>[^`|]+)` \| `(?P<function>[^`|]+)` \| ?(?P<via>[^|]*) ?\|$")


@dataclass(frozen=True)
class Step:
    """A row of a flow's table. `via` are the names by which the step reaches the next one."""

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
