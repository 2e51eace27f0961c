"""`python -m deploy.test_cluster.ingress_conformance`: Knative's conformance tests for ingress classes, against ours.

    compile the tests and their six images ▶ load the images ▶ HAProxy and controller on the node ▶ run ▶ a line for each test

It needs the cluster of `make cluster`, root for ports 80 and 443 of the cluster's own address, and Debian's haproxy. The stable
tests are 22; beta and alpha ones are run as well, and reported. Ends with 1 if one fails, and with 3 where something is missing
for it, which it names.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deploy.test_cluster import ingress, records, suites
from deploy.test_cluster.ingress_conformance.record import good, haproxy_version, passed, record, stable, stage
from deploy.test_cluster.phases import CANNOT_BE_HAD, CannotBeHad, Phases, Trouble
from deploy.test_cluster.settings import HERE

IMAGES = ("grpc-ping", "httpproxy", "retry", "runtime", "timeout", "wsserver")
SUITE = suites.Suite(
    "ingress-conformance",
    [f"knative.dev/networking/test/test_images/{name}" for name in IMAGES],
    {"ingress": "."},
    sources=[HERE / "ingress_conformance" / "ingress_test.go"],
)
UNDER = "TestIngressConformance/"


def results(said: str) -> list[suites.Result]:
    """The tests that ended, by name; their parts are not tests of their own."""
    return suites.results(said, depth=1, under=UNDER)


def main() -> int:
    """Run it, and say what each test came to."""
    parser = argparse.ArgumentParser(prog="python -m deploy.test_cluster.ingress_conformance", description=__doc__)
    parser.add_argument("--parallel", type=int, default=4, help="tests at once")
    parser.add_argument("--only", default="", help="a pattern of tests, as `go test -run` takes it")
    parser.add_argument("--stable", action="store_true", help="leave beta and alpha tests out")
    parser.add_argument("--keep", type=Path, help="write the results to this file")
    asked = parser.parse_args()
    arguments = [f"-test.parallel={asked.parallel}", "-ingressClass=gnomon"]
    arguments += [f"-test.run={UNDER}{asked.only}"] if asked.only else []
    arguments += [] if asked.stable else ["-enable-beta", "-enable-alpha"]
    try:
        found = conformance(arguments)
    except Trouble as trouble:
        print(f"ingress conformance: {trouble}", file=sys.stderr)
        return CANNOT_BE_HAD if isinstance(trouble, CannotBeHad) else 1
    for one in found:
        print(f"{one.outcome}  {stage(one.name):6}  {one.name:30} {one.seconds:7.1f} s")
    print(f"{len(passed(stable(found)))} of {len(stable(found))} stable tests passed")
    if asked.keep:
        records.keep(record(found, parallel=asked.parallel, haproxy=haproxy_version()), asked.keep)
    return 0 if good(found, only_some=bool(asked.only)) else 1


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
