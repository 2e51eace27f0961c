"""Who leads: the rules of a Lease as values, without a clock and without a cluster.

A candidate takes a Lease that nobody holds, or whose holder has not renewed it for as long as it says. How long that is, each
candidate measures by itself, from when it saw the last renewal: the times that are written in a Lease are for people, because
clocks differ.

A leader may write until `renew_deadline_s` after it *sent* its last renewal that succeeded. Others count from when they saw
that renewal, which is later, and wait for longer. They look again at the moment when that is over. With the defaults:

    sent 0 s ─ written 0.1 s ─ seen by others 2.0 s ─ the leader writes nothing from 10 s on ─ others may take it from 17 s on

The epoch is one more than how often the Lease has changed hands, so every leader has its own, and a later one has a larger. A
Lease that was removed and made anew, with its installation, says nothing of how often. Where somebody remembers the epochs of the
one before, as nodes do, it counts from a number that grows with time (`seconds_to_count_from`), which no count catches up with:

    made in the second 200,000,000, led three times ─ epochs up to 200,000,003 ─ removed ─ made 60 s later ─ epoch 200,000,061

A Lease that was removed counts as held for as long as it would have been, also by its holder: whoever has seen it makes it anew
only then. Where it went with its installation, those who saw it are gone by that time, and nothing of it stays behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gnomon_core.errors import bad_request

ADDRESS_ANNOTATION = "gnomon/address"
"""On the Lease: where the gateway that leads is reached by the others."""
YEAR_2020_S = 1_577_836_800
"""When 2020 began, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """How long a Lease lasts, how long its holder may write without renewing it, and how often it is renewed or looked at."""

    duration_s: int = 15
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0.0 < self.retry_s < self.renew_deadline_s < self.duration_s:
            raise bad_request(
                "lease_timing",
                f"A Lease of {self.duration_s} s, to be renewed within {self.renew_deadline_s:g} s, every {self.retry_s:g} s.",
                "Each must be shorter than the one before it.",
            )


def seconds_to_count_from(since_1970_s: float) -> int:
    """Where a new Lease begins to count, if it must not fall behind an earlier one, which changed hands less than once a second.

    A Lease counts in 32 bits, with a sign: seconds since 2020 fit until 2088.
    """
    return max(0, int(since_1970_s) - YEAR_2020_S)


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What a Lease says. `address` is where its holder is reached, empty where it does not say.

    `transitions` is -1 where nobody has had it yet.
    """

    holder: str
    duration_s: float
    transitions: int
    resource_version: str
    address: str = ""

    @property
    def epoch(self) -> int:
        return self.transitions + 1


def lease_record(document: dict[str, Any]) -> LeaseRecord:
    """Read a Lease."""
    spec = document.get("spec") or {}
    transitions = spec.get("leaseTransitions")
    return LeaseRecord(
        str(spec.get("holderIdentity") or ""),
        float(spec.get("leaseDurationSeconds") or 0),
        -1 if transitions is None else int(transitions),
        str(document["metadata"].get("resourceVersion", "")),
        str((document["metadata"].get("annotations") or {}).get(ADDRESS_ANNOTATION, "")),
    )


class Observer:
    """What one process has seen of a Lease, and when."""

    def __init__(self) -> None:
        self._record: LeaseRecord | None = None
        self._last: LeaseRecord | None = None
        self._changed_s = 0.0
        self._transitions = -1

    @property
    def record(self) -> LeaseRecord | None:
        """What the Lease said when it was looked at last; None where there was none then."""
        return self._record

    def see(self, record: LeaseRecord | None, now_s: float) -> None:
        """This is what the Lease says now; None where there is none."""
        self._record = record
        if record is None:
            return
        if self._last is None or record.resource_version != self._last.resource_version:
            self._changed_s = now_s
        self._last = record
        self._transitions = max(self._transitions, record.transitions)

    @property
    def removed(self) -> bool:
        """Whether there was a Lease and there is none now."""
        return self._record is None and self._last is not None

    def left_s(self, identity: str, now_s: float) -> float:
        """Until the Lease can be taken, if its holder stays silent; 0 where it is nobody's, ours, over, or was never seen."""
        last = self._last
        if last is None or last.holder == "" or (last.holder == identity and not self.removed):
            return 0.0
        return max(0.0, self._changed_s + last.duration_s - now_s)

    def may_take(self, identity: str, now_s: float) -> bool:
        """Whether the Lease can be taken now."""
        return self.left_s(identity, now_s) <= 0.0

    def transitions_if_taken(self, identity: str, counts_from: int = 0) -> int:
        """How often it will have changed hands when we have it. One that was deleted goes on counting, as far as we have seen it.

        One that nobody has had, as far as anybody says, begins at `counts_from`.
        """
        if self._transitions < 0:
            return counts_from
        record = self._record
        return self._transitions + (0 if record is not None and record.holder == identity else 1)
