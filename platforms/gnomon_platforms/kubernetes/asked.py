"""What was asked of an API server and how it was answered, counted for whoever operates us.

A resize is a PATCH of `pods/resize`, a placement one of `pods`, a scale-in one of `deployments/scale`; a write that was refused
has the status of its refusal, one that the Lease did not allow any more was `fenced`, and what nobody answered is `unanswered`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

FENCED, UNANSWERED = "fenced", "unanswered"


class Asked:
    """By verb, resource and outcome. Any thread may count."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._heard_s = now_s()

    def count(self, verb: str, path: str, outcome: int | str) -> None:
        """A request to this path was answered with this status, or was `fenced` or `unanswered`."""
        with self._lock:
            self._counts[verb, resource_of(path), str(outcome)] += 1
            if isinstance(outcome, int):
                self._heard_s = self._now_s()

    @property
    def counts(self) -> Mapping[tuple[str, str, str], int]:
        """All there were."""
        with self._lock:
            return dict(self._counts)

    @property
    def silence_s(self) -> float:
        """How long ago the API server answered anything; since the start where it never did."""
        return self._now_s() - self._heard_s


def resource_of(path: str) -> str:
    """`pods`, `pods/resize`: what kind of object a path is about, without whose."""
    parts = path.strip("/").split("/")
    parts = parts[3:] if parts[0] == "apis" else parts[2:]
    if parts[:1] == ["namespaces"] and len(parts) > 2:  # noqa: PLR2004 - /namespaces/NAME is a namespace itself
        parts = parts[2:]
    return "/".join((*parts[:1], *parts[2:3]))
