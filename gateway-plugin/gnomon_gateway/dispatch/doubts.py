"""When a prediction that refuses requests is doubted.

A prediction that refuses everybody is never measured, and has to be doubted (`latency`). One that batches measure all the time is
corrected by them; whoever asks for less time than his request takes is then refused rightly, and a hundred such requests a second
say nothing about the latency of the others.

    fewer than FEW of its size since an instance came   doubted: the first are cold, and may have taken a hundred times as long
    the last one within QUIET_S                         measured, and not doubted
    none for so long                                    doubted: since then the machine may have become another

Of a size that is not measured, smaller ones say that it takes no less than they do. Example: 1 sample takes 30 ms a hundred times
a second, 8 samples are foretold 800 ms and never sent. Who allows 8 samples 100 ms doubts that; who allows them 20 does not.
"""

from __future__ import annotations

FEW = 5
QUIET_S = 5.0


class Doubts:
    """What one function's batches have measured, by variant and size of the instance: how many of each size, when the last."""

    __slots__ = ("_measured",)

    def __init__(self) -> None:
        self._measured: dict[tuple[str, int], dict[int, tuple[int, float]]] = {}

    def begin(self) -> None:
        """An instance has come: its first batches are cold."""
        self._measured.clear()

    def measured(self, variant: str, size: int, batch: int, now_s: float) -> None:
        """A batch of so many samples has ended, and was compared with its prediction."""
        known = self._measured.setdefault((variant, size), {})
        count, _ = known.get(batch, (0, 0.0))
        known[batch] = count + 1, now_s

    def lately(self, variant: str, size: int, now_s: float) -> list[int]:
        """The batch sizes that are measured; of the others the prediction may be doubted."""
        known = self._measured.get((variant, size), {})
        return [batch for batch, (count, last_s) in known.items() if count >= FEW and now_s - last_s < QUIET_S]
