"""When a prediction that refuses requests is doubted.

A prediction that refuses everybody is never measured, and has to be doubted (`latency`). One that batches measure all the time is
corrected by them; whoever asks for less time than his request takes is then refused rightly, and a hundred such requests a second
say nothing about the latency of the others.

    fewer than FEW since an instance came   doubted: the first are cold, and may have taken a hundred times as long as the next
    the last one within QUIET_S             not doubted
    none for so long                        doubted: since then the machine may have become another
"""

from __future__ import annotations

FEW = 5
QUIET_S = 5.0


class Doubts:
    """What one function's batches have measured, by variant and size of the instance: how many, and when the last one ended."""

    __slots__ = ("_measured",)

    def __init__(self) -> None:
        self._measured: dict[tuple[str, int], tuple[int, float]] = {}

    def begin(self) -> None:
        """An instance has come: its first batches are cold."""
        self._measured.clear()

    def measured(self, variant: str, size: int, now_s: float) -> None:
        """A batch has ended, and was compared with its prediction."""
        count, _ = self._measured.get((variant, size), (0, 0.0))
        self._measured[variant, size] = count + 1, now_s

    def are_due(self, variant: str, size: int, now_s: float) -> bool:
        """Whether a refusal by this prediction alone is a reason to doubt it."""
        count, last_s = self._measured.get((variant, size), (0, 0.0))
        return count < FEW or now_s - last_s >= QUIET_S
