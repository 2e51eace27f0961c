"""What is kept of a run of a suite: when and where it was, and by which versions; docs/conformance has those of ours."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from deploy.test_cluster import build

MODULES = ("knative.dev/serving", "knative.dev/networking", "k8s.io/kubernetes")


def provenance(name: str, **more: str) -> dict[str, Any]:
    """The head of such a document; `more` are versions of what else took part."""
    return {
        "name": name,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "versions": {**{module: build.version(module) for module in MODULES}, "gnomon": version("gnomon"), **more},
    }


def keep(document: dict[str, Any], path: Path) -> None:
    """Write it, one value a line, so that two of them can be compared."""
    path.write_text(json.dumps(document, indent=1) + "\n")
