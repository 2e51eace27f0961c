"""What the tests of an ingress class came to: by stage, as Knative tells stable tests from those that may still change."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from typing import Any

from deploy.test_cluster import records, suites

BETA, ALPHA = ("host-rewrite", "headers/tags"), ("httpoption",)
STABLE, STABLE_COUNT = "stable", 22


def stage(name: str) -> str:
    """What Knative calls a test: stable, beta or alpha."""
    return "beta" if name in BETA else "alpha" if name in ALPHA else STABLE


def stable(found: Sequence[suites.Result]) -> list[suites.Result]:
    """Those that an ingress class has to pass."""
    return [one for one in found if stage(one.name) == STABLE]


def passed(found: Sequence[suites.Result]) -> list[suites.Result]:
    """Those that did."""
    return [one for one in found if one.outcome == "PASS"]


def good(found: Sequence[suites.Result], *, only_some: bool) -> bool:
    """Whether none failed; and none of the stable ones is missing, unless only some were asked for."""
    complete = only_some or len(stable(found)) == STABLE_COUNT
    return bool(found) and complete and all(one.outcome != "FAIL" for one in found)


def record(found: Sequence[suites.Result], *, parallel: int, haproxy: str) -> dict[str, Any]:
    """The document that is kept. A stable test that did not end has no line in `tests`, and is not among `passed`."""
    return {
        **records.provenance("knative_ingress_conformance", haproxy=haproxy),
        "parallel": parallel,
        "class": "gnomon",
        "stable": {"tests": STABLE_COUNT, "passed": len(passed(stable(found)))},
        "tests": {one.name: {"stage": stage(one.name), "outcome": one.outcome, "seconds": one.seconds} for one in found},
    }


def haproxy_version() -> str:
    """That of the program that carries the requests."""
    said = subprocess.run(["haproxy", "-v"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"version (\S+)", said)
    return found[1] if found else said.strip()
