"""Our images are built from their own Dockerfiles, and built again when anything of theirs has changed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deploy.test_cluster.__main__ import sizes
from deploy.test_cluster.recipes import DEBIAN, RECIPES, Recipe, assembled, digest

DOCKERFILES = sorted({recipe.context / "Dockerfile" for recipe in RECIPES.values()})


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A template as gnomon-shadow is: its Dockerfile is a link."""
    other, folder = tmp_path / "other", tmp_path / "template"
    for made in (other, folder / "function"):
        made.mkdir(parents=True)
    (other / "Dockerfile").write_text("FROM scratch\n")
    (folder / "Dockerfile").symlink_to("../other/Dockerfile")
    (folder / "function" / "handler.py").write_text("theirs\n")
    (folder / "function" / "handler_test.py").write_text("theirs\n")
    return folder


def test_a_context_has_no_links_and_the_users_handler(context: Path, tmp_path: Path) -> None:
    handler = tmp_path / "mine"
    handler.mkdir()
    (handler / "handler.py").write_text("mine\n")
    with assembled(Recipe(context, handler)) as made:
        assert not (made / "Dockerfile").is_symlink()
        assert (made / "Dockerfile").read_text() == "FROM scratch\n"
        assert (made / "function" / "handler.py").read_text() == "mine\n"
        assert not (made / "function" / "handler_test.py").exists()
    assert not made.exists()
    assert (context / "function" / "handler.py").read_text() == "theirs\n"


def test_another_byte_or_mode_is_another_image(context: Path) -> None:
    before = digest(context)
    assert digest(context) == before
    (context / "function" / "handler.py").write_text("other\n")
    changed = digest(context)
    assert changed != before
    (context / "function" / "handler.py").chmod(0o755)
    assert digest(context) != changed


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_what_is_shipped_is_pinned_unprivileged_and_without_what_installs(dockerfile: Path) -> None:
    text = dockerfile.read_text()
    assert "ARG PYTHON_IMAGE=python:3.12-slim\n" in text
    shipped = text.rpartition("\nFROM ")[2]
    assert shipped.startswith("${PYTHON_IMAGE}")
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", shipped, re.MULTILINE)
    assert not re.search(r"pip install|apt-get|gcc|build-essential", shipped)
    installs = re.findall(r"pip install (.*)", text)
    assert installs[0].startswith("--require-hashes --only-binary :all:")
    assert "pip uninstall --yes pip" in text


def test_each_archive_is_told_with_its_size(tmp_path: Path) -> None:
    for name, size in (("gnomon-a.tar", 1_600_000), ("gnomon-b.tar", 400_000_000)):
        with (tmp_path / name).open("wb") as archive:
            archive.truncate(size)
    told = sizes([tmp_path / "gnomon-a.tar", tmp_path / "gnomon-b.tar"])
    assert [line.rpartition(": ")[2] for line in told.splitlines()] == ["2 MB", "400 MB"]


@pytest.mark.parametrize("name", ["gateway", "coordinator"])
def test_what_our_programs_install_is_locked_by_hash(name: str) -> None:
    lock = (RECIPES[f"gnomon-{name}"].context / "requirements.txt").read_text()
    lines = [line for line in lock.replace("\\\n", " ").splitlines() if not line.startswith("#")]
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+==\S+( ; .*?)?( +--hash=sha256:[0-9a-f]{64})+", line), line
    names = {line.partition("==")[0] for line in lines}
    assert {"click", "pyyaml", "urllib3"} <= names
    assert not {"gnomon", "uv", "torch"} & names


def test_the_debian_base_is_nothing_but_what_was_made() -> None:
    assert "FROM scratch\nADD root.tar /\n" in (DEBIAN / "Dockerfile").read_text()
