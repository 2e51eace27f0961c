"""Suites of tests that a Go module brings along: compiled, their images loaded, run, and read.

Nothing of the tests is in this repository. They are compiled from the modules that `programs/go.mod` pins, with the libraries of
the cluster's programs, which Go has compiled already.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.test_cluster import build, cluster
from deploy.test_cluster.images import Image
from deploy.test_cluster.phases import CannotBeHad, Phases, Trouble
from deploy.test_cluster.settings import REGISTRY, TAG, Folders, folders, image

LIMIT_S = 1500.0
FLAGS = ("-trimpath", build.NO_DEBUGGER, "-ldflags", "-s -w")
"""Those of the cluster's own programs, so that Go compiles what both need once."""
TMP_MODE = 0o1777
LINE = re.compile(r"^( *)--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+)s\)", re.MULTILINE)


@dataclass(frozen=True)
class Suite:
    """What is compiled: `images` are packages of programs, named by their last parts; `tests` are packages of tests by name.

    `sources` are files of Go that are a package of tests themselves, ".". `needed` is a file of a module that the tests apply.
    """

    name: str
    images: Sequence[str]
    tests: Mapping[str, str]
    sources: Sequence[Path] = ()
    tags: str = ""
    needed: tuple[str, str] | None = None


@dataclass(frozen=True)
class Result:
    """One test: PASS, FAIL or SKIP, and how long it took. A part of a test is named with what it is a part of."""

    name: str
    outcome: str
    seconds: float


@dataclass(frozen=True)
class Compiled:
    """A folder with the programs: those of images, and one NAME.test for each package of tests."""

    suite: Suite
    programs: Path

    def test(self, name: str) -> Path:
        """The program of a package of tests."""
        return self.programs / f"{name}.test"

    @property
    def needed(self) -> Path:
        """The manifest that the tests want to be applied."""
        assert self.suite.needed is not None
        return self.programs / Path(self.suite.needed[1]).name


def compiled(suite: Suite, kept: Folders, phases: Phases) -> Compiled:
    """The suite's programs, compiled if need be."""
    folder = kept.cache / suite.name / build.digest(build.SOURCES)
    made = Compiled(suite, folder / "programs")
    if (folder / build.DONE).exists():
        return made
    shutil.rmtree(folder, ignore_errors=True)
    made.programs.mkdir(parents=True)
    _module(suite, folder)
    for source in suite.sources:
        shutil.copy(source, folder)
    with phases.phase("compiling the tests' images"):
        go(folder, "build", "-mod=mod", *FLAGS, "-buildvcs=false", "-o", f"{made.programs}/", "tool")
    for name, package in suite.tests.items():
        with phases.phase(f"compiling {name}"):
            go(
                folder, "test", "-mod=mod", "-c", "-vet=off", *FLAGS, f"-tags={suite.tags}", "-o", str(made.test(name)), package,
            )  # fmt: skip
    if suite.needed is not None:
        module, path = suite.needed
        place = go(folder, "list", "-mod=mod", "-m", "-f", "{{.Dir}}", module).strip()
        shutil.copyfile(Path(place, path), made.needed)
    (folder / build.DONE).touch()
    return made


def prepared(suite: Suite, phases: Phases) -> tuple[cluster.Running, Compiled]:
    """The cluster that runs, and the suite compiled, its images on the cluster's node.

    Raises:
        CannotBeHad: no cluster runs.

    """
    running = cluster.runs(folders())
    if not running:
        raise CannotBeHad("no cluster runs: make cluster")
    made = compiled(suite, folders(), phases)
    with phases.phase("loading the tests' images"):
        _load_images(running, made)
    return running, made


def _load_images(running: cluster.Running, made: Compiled) -> None:
    """The tests' images into the node: one static program each, where `ko` puts it, and a /tmp for whoever wants to write."""
    tmp = made.programs / "tmp"
    tmp.mkdir(exist_ok=True)
    tmp.chmod(TMP_MODE)
    for package in made.suite.images:
        name = package.rpartition("/")[2]
        place = f"ko-app/{name}"
        archive = Image(image(name), {place: made.programs / name, "tmp": tmp}, [f"/{place}"]).write(
            made.programs / f"{name}.tar"
        )
        running.node.import_image(archive)
        archive.unlink()


def run(
    program: Path, kubeconfig: Path, log: Path, arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> str:
    """Run a package of tests against a cluster; what they said, which is in `log` as well."""
    flags = [f"-kubeconfig={kubeconfig}", f"-dockerrepo={REGISTRY}", f"-tag={TAG}"]
    command = [str(program), "-test.v", f"-test.timeout={LIMIT_S:.0f}s", *flags, *arguments]
    everything = {**os.environ, **(environment or {})}
    with log.open("w") as stream:
        subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, check=False, cwd=program.parent, env=everything)
    return log.read_text(errors="replace")


def results(said: str, *, depth: int = 0, under: str = "") -> list[Result]:
    """The tests that ended, by name: those of this depth, without what they are `under`."""
    found = [
        Result(name.removeprefix(under), outcome, float(took))
        for indented, outcome, name, took in LINE.findall(said)
        if len(indented) == 4 * depth and name.startswith(under)
    ]
    return sorted(found, key=lambda one: one.name)


def go(folder: Path, *arguments: str) -> str:
    """Go without C, so that programs run in empty images; what it says."""
    done = subprocess.run(["env", "CGO_ENABLED=0", "go", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = "\n".join(done.stderr.strip().splitlines()[-5:])
        kind = CannotBeHad if build.REFUSED.search(done.stderr) else Trouble
        raise kind(f"go {arguments[0]} failed in {folder}:\n{reason}")
    return done.stdout


def _module(suite: Suite, folder: Path) -> None:
    """A module of its own, with the versions that are pinned, whose tools are the images' programs."""
    pinned = (build.SOURCES / "go.mod").read_text()
    tools = "".join(f"\t{package}\n" for package in suite.images)
    given = re.sub(r"^tool \(\n.*?^\)", f"tool (\n{tools})", pinned, flags=re.MULTILINE | re.DOTALL)
    (folder / "go.mod").write_text(re.sub(r"^module .*", f"module gnomon/{suite.name}", given, flags=re.MULTILINE))
    shutil.copy(build.SOURCES / "go.sum", folder / "go.sum")
