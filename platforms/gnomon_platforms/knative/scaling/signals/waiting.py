"""How many requests wait at an activator, by its Prometheus page: `kn_revision_request_queued`, for each Revision.

The page is there while `metrics-protocol` is `prometheus` in `config-observability`. The number goes up when a request comes and
down when a pod takes it, so whoever looks while one waits sees it.
"""

from __future__ import annotations

import re

from gnomon_core.functions import FunctionKey

_LINE = re.compile(r"^kn_revision_request_queued\{([^}]*)\} ([0-9.eE+-]+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def waiting(page: str) -> dict[FunctionKey, float]:
    """The requests that wait, by Revision; those without any are left out."""
    found: dict[FunctionKey, float] = {}
    for labels_text, number in _LINE.findall(page):
        try:
            count = float(number)
        except ValueError:
            continue
        labels = dict(_LABEL.findall(labels_text))
        name, namespace = labels.get("kn_revision_name"), labels.get("k8s_namespace_name")
        if name and namespace and count > 0.0:
            key = FunctionKey(name, namespace)
            found[key] = found.get(key, 0.0) + count
    return found
