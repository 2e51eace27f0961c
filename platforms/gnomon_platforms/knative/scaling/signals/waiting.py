"""How many requests wait at an activator, or in our gateway, by a Prometheus page: `kn_revision_request_queued` of each Revision.

The page is there while `metrics-protocol` is `prometheus` in `config-observability`. The number goes up when a request comes and
down when a pod takes it, so whoever looks while one waits sees it.

The gateway tells by the same figure, and the same page, of all requests that it has and no pod tells of: queue-proxy counts a
batch as one request, so of a batch of eight that runs the gateway tells seven. By a second figure, which counts up, it tells how
many requests have gone to pods in batches beyond one for each: what queue-proxies have not counted as arrivals.

Only this figure is asked for. The whole page has several histograms for each Revision: 0.5 MB with ten Revisions, which
costs the activator 6 ms and us 2 ms each time; of the one figure it is 2 and 0.3 ms. Who does not know the word sends all.
"""

from __future__ import annotations

from collections.abc import Mapping

from gnomon_core.functions import FunctionKey
from gnomon_platforms.knative.scaling.signals.figures import labels_of, lines_of, read

FIGURE = "kn_revision_request_queued"
BESIDE = "gnomon_revision_requests_beside_total"
PAGE = f"/metrics?name[]={FIGURE}"
MOST_BYTES = 8 << 20
"""A Revision's line has about 200 bytes, so that is 40,000 of them; of the whole page it is 160."""

_LINES = {figure: lines_of(figure) for figure in (FIGURE, BESIDE)}


def told(counts: Mapping[FunctionKey, int], beside: Mapping[FunctionKey, int]) -> str:
    """The page of a gateway, as activators write it: requests that no pod tells of, and those that none has counted."""
    return _lines(FIGURE, "gauge", counts) + _lines(BESIDE, "counter", beside)


def waiting(page: str) -> dict[FunctionKey, float]:
    """The requests that wait, by Revision; those without any are left out."""
    return _read(FIGURE, page)


def beside(page: str) -> dict[FunctionKey, float]:
    """The requests, ever since their gateway began, that no pod has counted, by Revision."""
    return _read(BESIDE, page)


def _lines(figure: str, kind: str, counts: Mapping[FunctionKey, int]) -> str:
    lines = [f"{figure}{{{labels_of(key)}}} {count}" for key, count in counts.items()]
    return "\n".join([f"# TYPE {figure} {kind}", *lines, ""])


def _read(figure: str, page: str) -> dict[FunctionKey, float]:
    found: dict[FunctionKey, float] = {}
    for _, key, _, count in read(_LINES[figure], page):
        if count > 0.0:
            found[key] = found.get(key, 0.0) + count
    return found
