"""How long batches take, as a gateway has learned it: a figure of its page for each Revision and size of batch, and their spread.

    gnomon_revision_batch_seconds{k8s_namespace_name="default",kn_revision_name="classify-00001",batch_size="4"} 0.081
    gnomon_revision_batch_spread{k8s_namespace_name="default",kn_revision_name="classify-00001"} 0.05

The spread is how far batches have lately been from what was foretold of them, as a share of that. Plans are made of these
(`batch`), and policies that know how much an instance carries (`od`, `lv`, `mark`, `target-tracking`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gnomon_core.functions import FunctionKey
from gnomon_platforms.knative.scaling.signals.figures import labels_of, lines_of, read

SECONDS, SPREAD = "gnomon_revision_batch_seconds", "gnomon_revision_batch_spread"
PAGE = f"/metrics?name[]={SECONDS}"
MOST_BYTES = 8 << 20
MOST_BATCH = 1024

_LINES = lines_of(SECONDS, SPREAD)
_SIZE = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Learned:
    """Seconds of batches of 1, 2, …, and their spread."""

    latency_s: tuple[float, ...]
    spread: float = 0.0


def together(curves: Sequence[Learned]) -> Learned | None:
    """What several gateways know of one Revision, as one: the mean for each size that all of them know, the widest spread.

    Example: 0.1, 0.2 and 0.3 s for batches of 1, 2, 3 at one, 0.2 and 0.2 s for 1, 2 at the other: 0.15 and 0.2 s.
    """
    if not curves:
        return None
    rows = zip(*(one.latency_s for one in curves), strict=False)
    return Learned(tuple(sum(row) / len(row) for row in rows), max(one.spread for one in curves))


def told(learned: Mapping[FunctionKey, Learned]) -> str:
    """The part of a gateway's page that says so."""
    seconds, spreads = [f"# TYPE {SECONDS} gauge"], [f"# TYPE {SPREAD} gauge"]
    for key, one in learned.items():
        labels = labels_of(key)
        rows = enumerate(one.latency_s, start=1)
        seconds += [f'{SECONDS}{{{labels},batch_size="{size}"}} {latency_s:.6g}' for size, latency_s in rows]
        spreads.append(f"{SPREAD}{{{labels}}} {one.spread:.4g}")
    return "\n".join([*seconds, *spreads, ""])


def learned(page: str) -> dict[FunctionKey, Learned]:
    """By Revision, what a page says; a curve is taken up to the first size that is missing or no time."""
    curves: dict[FunctionKey, dict[int, float]] = {}
    spreads: dict[FunctionKey, float] = {}
    for figure, key, labels, value in read(_LINES, page):
        size = labels.get("batch_size", "0")
        if not 0.0 <= value < float("inf"):
            continue
        if figure == SPREAD:
            spreads[key] = value
        elif value and _SIZE.fullmatch(size) and 1 <= int(size) <= MOST_BATCH:
            curves.setdefault(key, {})[int(size)] = value
    return {key: Learned(_row(curve), spreads.get(key, 0.0)) for key, curve in curves.items() if 1 in curve}


def _row(curve: Mapping[int, float]) -> tuple[float, ...]:
    row: list[float] = []
    while len(row) + 1 in curve:
        row.append(curve[len(row) + 1])
    return tuple(row)
