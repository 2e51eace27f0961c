"""What is installed has time to start: imports take a minute on a busy node that promises a twentieth of a core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[3] / "deploy"
START_S = 300


def containers() -> list[Any]:
    """All that have a liveness probe, which kills."""
    found = []
    for path in sorted(DEPLOY.rglob("*.yaml")):
        if DEPLOY / "charts" in path.parents:
            continue  # templates; a test on a cluster compares them with these
        for document in yaml.safe_load_all(path.read_text()):
            if document and document.get("kind") in ("Deployment", "DaemonSet"):
                listed = document["spec"]["template"]["spec"]["containers"]
                found += [pytest.param(one, id=f"{path.stem}-{one['name']}") for one in listed if "livenessProbe" in one]
    return found


@pytest.mark.parametrize("container", containers())
def test_a_container_that_may_be_killed_has_five_minutes_to_start(container: Any) -> None:
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= START_S
    # It is seen soon, too.
    assert probe["periodSeconds"] == 1


def test_each_part_is_looked_at() -> None:
    assert len(containers()) == 5
