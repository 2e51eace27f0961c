"""`python -m deploy.test_cluster.ingress_conformance`: Knative's conformance tests for ingress classes, against ours.

    compile the tests and their six images ▶ load the images ▶ HAProxy and controller on the node ▶ run ▶ a line for each test

Nothing of the tests is in this repository: they are compiled from the module knative.dev/networking, in the version that
`programs/go.mod` pins, with the libraries of the cluster's programs, which Go has compiled already. It needs the cluster of `make
cluster`, root for ports 80 and 443 of the cluster's own address, and Debian's haproxy. The stable tests are 22; beta and alpha
ones are run as well, and reported. Ends with 1 if one fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from deploy.test_cluster import build, cluster
from deploy.test_cluster.images import Image
from deploy.test_cluster.phases import CannotBeHad, Phases, Trouble
from deploy.test_cluster.settings import NODE_ADDRESS, REGISTRY, TAG, Folders, folders, image

HERE = Path(__file__).resolve().parent
NAMESPACE, TESTS_NAMESPACE = "gnomon-ingress-test", "serving-tests"
TEST_IMAGES = ("grpc-ping", "httpproxy", "retry", "runtime", "timeout", "wsserver")
MODULE = "knative.dev/networking/test/test_images"
RESULT = re.compile(r"^    --- (PASS|FAIL|SKIP): TestIngressConformance/(\S+) \(([\d.]+)s\)", re.MULTILINE)
BETA, ALPHA = ("host-rewrite", "headers/tags"), ("httpoption",)
STABLE_COUNT = 22
LIMIT_S = 1500.0
START_S = 60.0


@dataclass(frozen=True)
class Result:
    """One test of the suite: PASS, FAIL or SKIP, and how long it took."""

    name: str
    outcome: str
    seconds: float

    @property
    def stage(self) -> str:
        """What Knative calls it."""
        return "beta" if self.name in BETA else "alpha" if self.name in ALPHA else "stable"


def compiled(kept: Folders, phases: Phases) -> Path:
    """The folder with the tests and the programs of their images, compiled if need be."""
    folder = kept.cache / "ingress-conformance" / build.digest(build.SOURCES)
    programs = folder / "programs"
    if (programs / "ingress.test").exists():
        return programs
    shutil.rmtree(folder, ignore_errors=True)
    programs.mkdir(parents=True)
    pinned = (build.SOURCES / "go.mod").read_text()
    tools = "".join(f"\t{MODULE}/{name}\n" for name in TEST_IMAGES)
    given = re.sub(r"^tool \(\n.*?^\)", f"tool (\n{tools})", pinned, flags=re.MULTILINE | re.DOTALL)
    (folder / "go.mod").write_text(re.sub(r"^module .*", "module gnomon/ingress-conformance", given, flags=re.MULTILINE))
    shutil.copy(build.SOURCES / "go.sum", folder / "go.sum")
    shutil.copy(HERE / "ingress_test.go", folder)
    with phases.phase("compiling the tests' images"):
        _go(folder, "build", "-mod=mod", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", f"{programs}/", "tool")
    with phases.phase("compiling the tests"):
        _go(folder, "test", "-mod=mod", "-c", "-trimpath", "-o", str(programs / "ingress.test"), ".")
    return programs


def load_images(running: cluster.Running, programs: Path) -> None:
    """The tests' images into the node."""
    for name in TEST_IMAGES:
        archive = Image(image(name), {name: programs / name}, [f"/{name}"]).write(programs / f"{name}.tar")
        running.node.import_image(archive)
        archive.unlink()


@contextmanager
def ingress(running: cluster.Running, folder: Path, log: Path) -> Iterator[None]:
    """Our ingress class on the node, with the Services that lead to it; gone afterwards."""
    text = (HERE / "services.yaml").read_text().replace("ADDRESS", NODE_ADDRESS)
    running.kubectl.apply(list(yaml.safe_load_all(text)))
    balancer = f'{{"status":{{"loadBalancer":{{"ingress":[{{"ip":"{NODE_ADDRESS}"}}]}}}}}}'
    running.kubectl("patch", "service", "gnomon-ingress", "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", balancer)
    binds = {"http": 80, "https": 443, "local": 8081}
    options = [f"--{name}={NODE_ADDRESS}:{port}" for name, port in binds.items()]
    options += [
        f"--folder={folder}",
        f"--namespace={NAMESPACE}",
        f"--kubeconfig={running.folders.kubeconfig}",
        "--alone",
        "--drain=2",
    ]
    with log.open("w") as stream:
        command = [sys.executable, "-m", "gnomon_platforms.knative.ingress", *options]
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
    try:
        _until_serving(process, folder, log)
        yield
    finally:
        process.terminate()
        process.wait(30)
        running.kubectl("delete", "namespace", TESTS_NAMESPACE, NAMESPACE, "--wait=false")


def run(running: cluster.Running, programs: Path, log: Path, arguments: list[str]) -> list[Result]:
    """The suite; everything it says is in `log`."""
    flags = [f"-kubeconfig={running.folders.kubeconfig}", f"-dockerrepo={REGISTRY}", f"-tag={TAG}", "-ingressClass=gnomon"]
    command = [str(programs / "ingress.test"), "-test.v", f"-test.timeout={LIMIT_S:.0f}s", *flags, *arguments]
    with log.open("w") as stream:
        subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, check=False, cwd=programs, env={**os.environ})
    return results(log.read_text(errors="replace"))


def results(said: str) -> list[Result]:
    """The tests that ended, by name."""
    return sorted((Result(name, outcome, float(took)) for outcome, name, took in RESULT.findall(said)), key=lambda one: one.name)


def main() -> int:
    """Run it, and say what each test came to."""
    parser = argparse.ArgumentParser(prog="python -m deploy.test_cluster.ingress_conformance", description=__doc__)
    parser.add_argument("--parallel", type=int, default=4, help="tests at once")
    parser.add_argument("--only", default="", help="a pattern of tests, as `go test -run` takes it")
    parser.add_argument("--stable", action="store_true", help="leave beta and alpha tests out")
    asked = parser.parse_args()
    arguments = [f"-test.parallel={asked.parallel}"]
    arguments += [f"-test.run=TestIngressConformance/{asked.only}"] if asked.only else []
    arguments += [] if asked.stable else ["-enable-beta", "-enable-alpha"]
    try:
        found = conformance(arguments)
    except Trouble as trouble:
        print(f"ingress conformance: {trouble}")
        return 0 if isinstance(trouble, CannotBeHad) else 1
    for one in found:
        print(f"{one.outcome}  {one.stage:6}  {one.name:30} {one.seconds:7.1f} s")
    stable = [one for one in found if one.stage == "stable"]
    passed = [one for one in stable if one.outcome == "PASS"]
    print(f"{len(passed)} of {len(stable)} stable tests passed")
    complete = bool(asked.only) or len(stable) == STABLE_COUNT
    return 0 if complete and all(one.outcome != "FAIL" for one in found) else 1


def conformance(arguments: list[str]) -> list[Result]:
    """Everything that is needed for it, and the suite."""
    if shutil.which("haproxy") is None:
        raise CannotBeHad("there is no haproxy here: apt-get install haproxy")
    running = cluster.runs(folders())
    if not running:
        raise CannotBeHad("no cluster runs: make cluster")
    phases = Phases()
    programs = compiled(folders(), phases)
    with phases.phase("loading the tests' images"):
        load_images(running, programs)
    logs = running.folders.logs
    state = running.folders.state / "ingress"
    with ingress(running, state, logs / "ingress.log"), phases.phase("the tests"):
        found = run(running, programs, logs / "ingress-conformance.log", arguments)
    print(f"what they said: {logs / 'ingress-conformance.log'}; what the ingress said: {logs / 'ingress.log'}")
    return found


def _until_serving(process: subprocess.Popen[bytes], folder: Path, log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while not (folder / "master.sock").exists():
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise Trouble(f"the ingress does not start: {log.read_text()[-1000:]}")
        time.sleep(0.1)


def _go(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["env", "CGO_ENABLED=0", "go", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = "\n".join(done.stderr.strip().splitlines()[-5:])
        kind = CannotBeHad if build.REFUSED.search(done.stderr) else Trouble
        raise kind(f"go {arguments[0]} failed in {folder}:\n{reason}")


if __name__ == "__main__":
    sys.exit(main())
