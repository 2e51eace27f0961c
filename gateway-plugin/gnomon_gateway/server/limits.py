"""How long and how large what a client sends may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on receiving, and on being received.

    A body has `body_s` plus a second for each `body_bytes_per_s` of it that has arrived, so that a large upload over a slow line
    passes and a trickle does not; a request that is still coming when the server stops has `last_s`. All bodies above 64 KiB that
    are being received hold at most `max_held_bytes` together, all answers that are being taken `max_unsent_bytes`.

    Whoever takes a long answer has `idle_s`, and a second more for each `answer_bytes_per_s` of it that he takes: never more than
    `idle_s` from when he stops. What is taken is seen when the kernel's buffer has room again, up to 1.7 MB later: at
    this rate 26 s, less than any answer has.
    """

    head_s: float = 10.0
    body_s: float = 30.0
    body_bytes_per_s: float = 1 << 20
    last_s: float = 2.0
    idle_s: float = 75.0
    answer_bytes_per_s: float = 64 << 10
    sweep_s: float = 0.5
    head_bytes: int = 64 << 10
    head_lines: int = 128
    max_held_bytes: int = 512 << 20
    max_unsent_bytes: int = 256 << 20
