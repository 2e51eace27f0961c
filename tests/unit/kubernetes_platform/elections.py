"""Processes that stand for one Lease, on a machine whose boot-time clock a test moves."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from gnomon_core.clock import VirtualClock
from gnomon_platforms.kubernetes.client import Refused, Unreachable
from gnomon_platforms.kubernetes.lease import Leader, Tenure
from gnomon_platforms.kubernetes.resources import LEASES
from gnomon_platforms.kubernetes.writes import Target, Writer

LEASE = Target(LEASES, "openfaas", "gnomon")


class Machine:
    """A boot-time clock that a test moves, alone of all clocks when a process is frozen."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Leases:
    """The API server's side: one Lease, with versions. Writes during `lost_answers` are carried out unheard."""

    def __init__(self) -> None:
        self.document: dict[str, Any] | None = None
        self.away = False
        self.lost_answers = 0
        self.hanging: Machine | None = None
        """The clock of a machine whose next request gets no answer."""
        self.written: list[str] = []
        self.version = 0

    def call(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        if request["fence"] is not None:
            request["fence"]()
        if self.away:
            raise Unreachable("nobody answers")
        if self.hanging is not None:
            self.hanging.now_s += request["timeout_s"]
            self.hanging = None
            raise Unreachable("no answer in time")
        if method == "GET":
            if self.document is None:
                raise Refused(404, "NotFound", path)
            return self.document
        body = request["body"]
        if method == "POST" and self.document is not None:
            raise Refused(409, "AlreadyExists", path)
        if method == "PUT" and (self.document is None or body["metadata"]["resourceVersion"] != str(self.version)):
            raise Refused(409, "Conflict", path)
        self.version += 1
        self.document = {**body, "metadata": {**body["metadata"], "uid": "u", "resourceVersion": str(self.version)}}
        self.written.append(body["spec"]["holderIdentity"])
        if self.lost_answers:
            self.lost_answers -= 1
            raise Unreachable("no answer")
        return self.document


class Candidate:
    """A process: a leader with its tenure, and what became of it."""

    def __init__(self, name: str, leases: Leases, boot_s: Machine, counts_from: Callable[[], int] = lambda: 0) -> None:
        self.gone: list[str] = []
        self.tenure = Tenure(self.gone.append, boot_s)
        clock = VirtualClock()
        unfenced: Any = leases
        self.renewals = Writer(unfenced, clock, random.Random(1))
        self.writes = Writer(unfenced, clock, random.Random(1), self.tenure.check)
        self.leader = Leader(self.renewals, LEASE, name, self.tenure, clock, boot_s=boot_s, counts_from=counts_from)
