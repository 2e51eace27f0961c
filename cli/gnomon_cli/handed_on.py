"""What the leader's autoscaler has learned, handed on to the replicas that may lead after it: a little with each question.

    leader: windows and policy states of some functions ─ with each question ─▶ replica keeps the newest ─▶ it leads, and goes on

A thousand functions that nothing happens to are told of within fifteen seconds, a function in the midst of its load takes some
twenty kilobytes, and is told of each time that its turn comes.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from gnomon_autoscaler.controller import Autoscaler

MOST, ENOUGH_BYTES = 20, 8192
"""Functions with one question; fewer once they take so much. That is a millisecond or two of the event loop."""


class HandedOn:
    """Both sides of one replica. `leads` says which one it is."""

    def __init__(self, autoscaler: Autoscaler, leads: Callable[[], bool]) -> None:
        self._autoscaler, self._leads = autoscaler, leads
        self._last: dict[str, str] = {}
        """By address, the function that it was told of last."""

    def next(self, address: str) -> Mapping[str, Any] | None:
        """What whoever is at this address is told of next; None where there is nothing, or another one leads."""
        names = self._autoscaler.known() if self._leads() else []
        if not names:
            return None
        begin = bisect_right(names, self._last.get(address, ""))
        told: dict[str, Any] = {}
        size_bytes = 0
        for name in (names[begin:] + names[:begin])[:MOST]:
            self._last[address] = name
            state = cast("dict[str, Any]", self._autoscaler.export_state([name])["functions"])
            told |= state
            size_bytes += len(json.dumps(state))
            if size_bytes >= ENOUGH_BYTES:
                break
        return {**self._autoscaler.export_state([]), "functions": told}

    def keep(self, addresses: Collection[str]) -> None:
        """There is nobody at any other address."""
        for address in self._last.keys() - addresses:
            del self._last[address]

    def take(self, document: Mapping[str, Any]) -> None:
        """The leader tells of some.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: this is no state of an autoscaler.

        """
        if not self._leads():
            self._autoscaler.import_state(dict(document))
