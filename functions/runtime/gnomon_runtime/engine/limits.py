"""How much a program may use before it is refused."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that hold before an operation allocates.

    `max_elements` bounds one value (1 Gi elements: 4 GiB of float32), `max_live_bytes` the values that are alive together,
    weights and inputs not counted. ResNet50 at batch 16 needs 0.2 GiB.
    """

    max_elements: int = 1 << 30
    max_live_bytes: int = 16 << 30
