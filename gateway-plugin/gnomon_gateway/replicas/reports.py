"""Reports of load between replicas: given to whoever leads when it asks, or at once, and heard by the one that leads.

    leader ─{"leader", "heard", "pairs", "plans", "learned"}─▶ replica
    replica ─{…, "report"}─▶ leader, where a request waits for an instance

The number of the last report that was heard goes with each question, by address, so that only what is new is told; and so does
what replicas must know and only the leader does: instances' Shadows, the plans of functions' buffers, and a part of what its
autoscaler has learned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gnomon_core.errors import bad_request


class ReportSource(Protocol):
    """What this replica tells of itself."""

    def report(self, heard: int) -> dict[str, Any]:
        """What has changed since the report of this number; its own is under `number`."""
        ...


Heard = Callable[[str, Mapping[str, Any]], None]
"""Takes a report, and which replica it is of. It raises one of `UNREADABLE` for what is none."""
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


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

    plans: Callable[[], Mapping[str, Any] | None] = dict
    """As the leader: the plans of functions' buffers; None as above."""
    follow_plans: Callable[[Mapping[str, Any]], None] | None = None
    """Takes what a leader says of those. It raises as `listener` does."""

    learned: Callable[[str], Mapping[str, Any] | None] = lambda _: None
    """As the leader: what whoever is at this address is to know next of what was learned of functions."""
    keep_learned: Callable[[Collection[str]], None] = lambda _: None
    """As the leader: there is nobody at any other than these addresses."""
    follow_learned: Callable[[Mapping[str, Any]], None] | None = None
    """Takes what a leader says of that. It raises as `listener` does."""

    def keep(self, addresses: Collection[str]) -> None:
        """Nobody is at any other address: each new pod has one of its own, over months hundreds."""
        for address in self.heard.keys() - addresses:
            del self.heard[address]
        self.keep_learned(addresses)

    def say(self, address: str) -> dict[str, Any]:
        """What the leader tells with its question."""
        return {"pairs": self.pairs(), "plans": self.plans(), "learned": self.learned(address)}

    def follow(self, said: Mapping[str, Any]) -> None:
        """The leader has told this with its question.

        Raises:
            GnomonError: 400 `invalid_pairs`, `invalid_plans`, `invalid_learned`.

        """
        followed = (("pairs", self.follow_pairs), ("plans", self.follow_plans), ("learned", self.follow_learned))
        for name, take in followed:
            document = said.get(name)
            if take is None or document is None:
                continue
            try:
                take(document)
            except UNREADABLE as error:
                raise bad_request(f"invalid_{name}", f"This is not what is told of {name}: {error!r}.") from None

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
        except UNREADABLE as error:
            raise bad_request("invalid_report", f"This is no report of a replica: {error!r}.") from None
        self.heard[address] = number
