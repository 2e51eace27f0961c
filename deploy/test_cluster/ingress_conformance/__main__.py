"""`python -m deploy.test_cluster.ingress_conformance`: Knative's conformance tests for ingress classes, against ours.

    compile the tests and their six images ▶ load the images ▶ HAProxy and controller on the node ▶ run ▶ a line for each test

It needs the cluster of `make cluster`, root for ports 80 and 443 of the cluster's own address, and Debian's haproxy. The stable
tests are 22; beta and alpha ones are run as well, and reported. Ends with 1 if one fails.
"""

from __future__ import annotations

import argparse
import sys

from deploy.test_cluster import ingress, suites
from deploy.test_cluster.phases import CannotBeHad, Phases, Trouble
from deploy.test_cluster.settings import HERE

IMAGES = ("grpc-ping", "httpproxy", "retry", "runtime", "timeout", "wsserver")
SUITE = suites.Suite(
    "ingress-conformance",
    [f"knative.dev/networking/test/test_images/{name}" for name in IMAGES],
    {"ingress": "."},
    sources=[HERE / "ingress_conformance" / "ingress_test.go"],
)
UNDER = "TestIngressConformance/"
BETA, ALPHA = ("host-rewrite", "headers/tags"), ("httpoption",)
STABLE_COUNT = 22


def stage(name: str) -> str:
    """What Knative calls a test: stable, beta or alpha."""
    return "beta" if name in BETA else "alpha" if name in ALPHA else "stable"


def results(said: str) -> list[suites.Result]:
    """The tests that ended, by name; their parts are not tests of their own."""
    return suites.results(said, depth=1, under=UNDER)


def main() -> int:
    """Run it, and say what each test came to."""
    parser = argparse.ArgumentParser(prog="python -m deploy.test_cluster.ingress_conformance", description=__doc__)
    parser.add_argument("--parallel", type=int, default=4, help="tests at once")
    parser.add_argument("--only", default="", help="a pattern of tests, as `go test -run` takes it")
    parser.add_argument("--stable", action="store_true", help="leave beta and alpha tests out")
    asked = parser.parse_args()
    arguments = [f"-test.parallel={asked.parallel}", "-ingressClass=gnomon"]
    arguments += [f"-test.run={UNDER}{asked.only}"] if asked.only else []
    arguments += [] if asked.stable else ["-enable-beta", "-enable-alpha"]
    try:
        found = conformance(arguments)
    except Trouble as trouble:
        print(f"ingress conformance: {trouble}")
        return 0 if isinstance(trouble, CannotBeHad) else 1
    for one in found:
        print(f"{one.outcome}  {stage(one.name):6}  {one.name:30} {one.seconds:7.1f} s")
    stable = [one for one in found if stage(one.name) == "stable"]
    passed = [one for one in stable if one.outcome == "PASS"]
    print(f"{len(passed)} of {len(stable)} stable tests passed")
    complete = bool(asked.only) or len(stable) == STABLE_COUNT
    return 0 if complete and all(one.outcome != "FAIL" for one in found) else 1


def conformance(arguments: list[str]) -> list[suites.Result]:
    """Everything that is needed for it, and the suite."""
    ingress.check()
    phases = Phases()
    running, made = suites.prepared(SUITE, phases)
    logs = running.folders.logs
    log = logs / "ingress-conformance.log"
    with ingress.ingress(running, running.folders.state / "ingress", logs / "ingress.log"), phases.phase("the tests"):
        found = results(suites.run(made.test("ingress"), running.folders.kubeconfig, log, arguments))
    print(f"what they said: {log}; what the ingress said: {logs / 'ingress.log'}")
    return found


if __name__ == "__main__":
    sys.exit(main())
