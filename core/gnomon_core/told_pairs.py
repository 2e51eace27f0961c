"""What a Body's Shadows do, as JSON: from the leader to the replicas that make batches, and from a Body with each of its answers.

    {"cores": 2, "blocks": [3, 4], "split": [0, 1, 1, 2], "node": null}

The head of a result has a list of these under "shadows", in the order of their rows, each with its Shadow's name; that of a Body
that works alone has none. So whoever sends it batches knows how the next one will be computed, also where nobody else tells.

A Body runs a user's code: what it says is read within bounds, and what breaks them counts as said by a Body alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnomon_core.pairs import MAX_SHADOWS, Pair
from gnomon_core.wire import Frame, WireError

SHADOWS = "shadows"
_NAMED = b'"shadows"'
"""As every head has it that names some. The heads of all other batches need not be read."""
ELSEWHERE = "elsewhere"
"""The node of a Shadow that is not on its Body's, as the Body says it: which one it is, it does not know."""
_MOST_HEAD_BYTES = 1 << 16
"""Eight Shadows take some two thousand. What is longer is not read: it would keep the event loop."""
_MOST_CORES, _MOST_NUMBERS = 1 << 10, 1 << 10


def told(pair: Pair) -> dict[str, Any]:
    """What one Shadow does, whatever others do."""
    return {"cores": pair.shadow_cores, "blocks": pair.blocks, "split": pair.split, "node": pair.node}


def heard(document: Mapping[str, Any]) -> Pair:
    """The same, read.

    Raises:
        KeyError, TypeError, ValueError: this is no such thing.

    """
    node = document["node"]
    blocks, split = (tuple(map(int, document[name])) for name in ("blocks", "split"))
    return Pair(int(document["cores"]), blocks, split, None if node is None else str(node))


def shadows_of(result: Frame) -> dict[str, Pair]:
    """The Shadows that a Body names with this result, and what each of them does."""
    if _NAMED not in result.head or len(result.head) > _MOST_HEAD_BYTES:
        return {}
    try:
        said = result.head_json().get(SHADOWS, [])
        found = {str(one["shadow"]): heard(one) for one in said}
    except (WireError, RecursionError, LookupError, TypeError, ValueError, OverflowError):
        return {}
    return found if len(found) <= MAX_SHADOWS and all(map(_possible, found.values())) else {}


def _possible(pair: Pair) -> bool:
    """Whether a Shadow could do this."""
    few = max(len(pair.blocks), len(pair.split)) <= _MOST_NUMBERS
    return few and 1 <= pair.shadow_cores <= _MOST_CORES and min((0, *pair.blocks, *pair.split)) == 0
