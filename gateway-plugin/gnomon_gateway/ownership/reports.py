"""Reports of load between replicas: given to whoever leads when it asks, or at once, and heard by the one that leads.

    leader ─{"leader", "heard", "pairs"}─▶ replica          replica ─{…, "report"}─▶ leader, where a request waits for an instance

The number of the last report that was heard goes with each question, by address, so that only what is new is told; and so does
what replicas must know of instances that only the leader knows: their Shadows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gnomon_core.errors import bad_request


class ReportSource(Protocol):
    """What this replica tells of itself."""

    def report(self, heard: int) -> dict[str, Any]:
        """What has changed since the report of this number; its own is under `number`."""
        ...


Heard = Callable[[str, Mapping[str, Any]], None]
"""Takes a report, and which replica it is of. It raises KeyError, TypeError or ValueError for what is none."""


@dataclass(slots=True)
class Reports:
    """Both sides of one replica. `heard` is what it knows of others as the leader, `told` what a leader has heard of it."""

    source: ReportSource | None = None
    listener: Heard | None = None
    heard: dict[str, int] = field(default_factory=dict)
    """By address: another process there counts from its own beginning, and says so by a smaller number."""
    told: int = 0
    pairs: Callable[[], Mapping[str, Any] | None] = dict
    """As the leader: which Bodies have Shadows; None as long as it does not know, and what was said before holds."""
    follow_pairs: Callable[[Mapping[str, Any]], None] | None = None
    """Takes what a leader says of that. It raises as `listener` does."""

    def hear_pairs(self, document: Any) -> None:
        """The leader says which Bodies have Shadows.

        Raises:
            GnomonError: 400 `invalid_pairs`.

        """
        if self.follow_pairs is None or document is None:
            return
        try:
            self.follow_pairs(document)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise bad_request("invalid_pairs", f"These are no pairs: {error!r}.") from None

    def tell(self) -> dict[str, Any] | None:
        """What the leader has not heard yet."""
        return None if self.source is None else self.source.report(self.told)

    def hear(self, replica: str, report: Any, address: str) -> None:
        """A replica has reported.

        Raises:
            GnomonError: 400 `invalid_report`.

        """
        if self.listener is None or report is None:
            return
        try:
            number = int(report["number"])
            self.listener(replica, report)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise bad_request("invalid_report", f"This is no report of a replica: {error!r}.") from None
        self.heard[address] = number
