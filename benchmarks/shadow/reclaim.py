"""The reserved core of a full node: a Shadow gets it, and then a Body that fits nowhere else (AsyFunc, section 3.4).

Of two cores one is a Body's and the other is held for Shadows. In turn: a Shadow is decided on and gets it; the Shadow is ended,
and as soon as it has gone a Body is decided on and gets it; the Body is ended, and the core is reserve again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.report import Figure
from benchmarks.shadow.models import StoredModel
from benchmarks.shadow.node import Node, started
from benchmarks.shadow.samples import at_quantile, in_mode
from gnomon_core.pairs import Pair

BATCH = 2


@dataclass(frozen=True, slots=True)
class Turn:
    """Milliseconds of one turn: until the Shadow works, from its end until the Body is ready, until the core is free again."""

    shadow_ms: float
    body_ms: float
    free_ms: float


async def figures(model: StoredModel, pair: Pair, count: int) -> list[Figure]:
    """So many turns on a node of two cores, one of them reserved."""
    async with started(cores=2, reserved_cores=1.0) as node:
        spec = await node.function(model, "full")
        serving = await node.serving(spec, model, BATCH)
        turns = []
        for _ in range(count):
            shadow_ms = await _shadow(node, serving.instance.id, pair)
            began_s = time.perf_counter()
            body, _ = await node.body(spec)
            body_ms = _ms_since(began_s)
            began_s = time.perf_counter()
            await node.end(body.id)
            turns.append(Turn(shadow_ms, body_ms, _ms_since(began_s)))
    return _figures(turns)


async def _shadow(node: Node, body_id: str, pair: Pair) -> float:
    """A Shadow that works, and has gone when this returns."""
    began_s = time.perf_counter()
    shadow = await node.platform.create_shadow(body_id, pair)
    await node.told.until(lambda: shadow.id in node.told.paired or shadow.id in node.told.gone)
    if shadow.id in node.told.gone:
        raise RuntimeError(f"no Shadow: {node.told.gone[shadow.id][1]}")
    took_ms = _ms_since(began_s)
    await node.end(shadow.id)
    return took_ms


def _ms_since(began_s: float) -> float:
    return 1e3 * (time.perf_counter() - began_s)


def _figures(turns: Sequence[Turn]) -> list[Figure]:
    found = [
        at_quantile("full node: a Shadow in the reserve, working", [turn.shadow_ms for turn in turns], "ms"),
        at_quantile("full node: a Body in the reserve that the Shadow left", [turn.body_ms for turn in turns], "ms"),
        at_quantile("full node: the reserve again after the Body's end", [turn.free_ms for turn in turns], "ms"),
    ]
    return in_mode(found)
