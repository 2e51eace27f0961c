"""How long and how large what a client sends may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on receiving.

    A body has `body_s` plus a second for each `body_bytes_per_s` of it that has arrived, so that a large upload over a slow line
    passes and a trickle does not; when the server stops, what is still coming has `last_body_s`. All bodies above 64 KiB that are
    being received hold at most `max_held_bytes` together.
    """

    head_s: float = 10.0
    body_s: float = 30.0
    body_bytes_per_s: float = 1 << 20
    last_body_s: float = 2.0
    idle_s: float = 75.0
    sweep_s: float = 0.5
    head_bytes: int = 64 << 10
    head_lines: int = 128
    max_held_bytes: int = 512 << 20
