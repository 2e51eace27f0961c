"""Where a system answers, and how it is asked: the same for every kind of load."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.workloads import body_of, content_type


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One function of one system."""

    system: str
    url: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})

    @staticmethod
    def of(system: str, url: str, workload: str) -> Endpoint:
        """A function that takes the workload's own body."""
        return Endpoint(system, url, body_of(workload), {"Content-Type": content_type(workload)})

    def ask(self) -> bytes:
        """One answer.

        Raises:
            OSError: there is none, or it is not 200.

        """
        request = urllib.request.Request(self.url, self.body, dict(self.headers), method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            data: bytes = answer.read()
        return data

    def wait_for_answer(self, limit_s: float = 60.0) -> bytes:
        """The first answer of a function that is just starting.

        Raises:
            OSError: none came in time.

        """
        end_s = time.monotonic() + limit_s
        while True:
            try:
                return self.ask()
            except OSError:
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.05)
