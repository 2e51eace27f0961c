"""Which Bodies have Shadows, as the leader tells the replicas that make their batches.

    leader: `told` ─ with each question ─▶ replica: `follow` ─▶ the dispatcher makes batches for both, or for the Body alone

The whole table each time: a Body that is not in it any more is alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gnomon_core import told_pairs
from gnomon_core.pairs import Pair, together
from gnomon_gateway.serving.function_runtime import FunctionRuntime

RuntimeOf = Callable[[str], FunctionRuntime | None]
"""The function of an instance that is known here."""


def told(table: Mapping[str, Sequence[Pair]]) -> dict[str, list[dict[str, Any]]]:
    """The table as JSON."""
    return {body: list(map(told_pairs.told, pairs)) for body, pairs in table.items()}


class FollowedPairs:
    """What was told last."""

    def __init__(self, runtime_of: RuntimeOf) -> None:
        self._runtime_of = runtime_of
        self._paired: set[str] = set()

    def follow(self, document: Mapping[str, Any]) -> None:
        """The leader says which Bodies have Shadows.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: this is no table.

        """
        table = {str(body): tuple(map(told_pairs.heard, pairs)) for body, pairs in document.items()}
        for body in self._paired - table.keys():
            self._set(body, None)
        for body, pairs in table.items():
            self._set(body, together(pairs))
        self._paired = set(table)

    def _set(self, body: str, pair: Pair | None) -> None:
        runtime = self._runtime_of(body)
        if runtime is not None:
            runtime.pair_changed(body, pair)
