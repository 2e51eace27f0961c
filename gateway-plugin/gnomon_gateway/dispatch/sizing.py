"""How many samples an instance takes at once.

AsyFunc (section 5.1) knows each instance by its largest supported batch: the largest b whose latency meets the objective,

    b_max = max { b | t_l(b) ≤ t_SLO },    1 ≤ b ≤ gnomon/max-batch

A Body with a Shadow is quicker, so that its largest batch may be larger than when it is alone: that is how a Shadow carries a
burst. Example: SLO 100 ms, alone t(4) = 90 and t(5) = 110 ms, with its Shadow t(8) = 95 ms: 4 alone, 8 together.

Tensors and events of a model, its variants, take different times: of those that are called the slowest decides; before the first
request, of all. What batches take corrects only what is called: a variant that nobody calls, or that was tried once, would hold
the others to the profile, or to one cold batch, for ever. One is called for five minutes after its last batch.

Where nothing is foretold, and where not even one sample meets the objective (small batches would only make that worse), an
instance takes as many as it is said to. As served latencies correct what was foretold, instances are sized again.
"""

from __future__ import annotations

from collections.abc import Sequence

from gnomon_core.pairs import Pair
from gnomon_gateway.dispatch.latency import LiveLatency

QUIET_S = 300.0


class Sizing:
    """Sizes the instances of one function by the latency of these variants; with none, it leaves them as they are."""

    __slots__ = ("_called", "_latency", "_revision", "_slo_s", "_variants")

    def __init__(self, latency: LiveLatency, slo_s: float, variants: tuple[str, ...]) -> None:
        self._latency = latency
        self._slo_s = slo_s
        self._variants = variants
        self._revision = latency.revision
        self._called: dict[str, float] = {}
        """When that was seen last."""

    def bound(self, slo_s: float, variants: tuple[str, ...] | None = None) -> None:
        """Another objective; other variants, where they are given."""
        self._slo_s = slo_s
        if variants is not None:
            self._variants = variants

    def called(self, variant: str, now_s: float) -> None:
        """Requests of this variant come, or are answered."""
        self._called[variant] = now_s

    def quiet(self, now_s: float) -> list[str]:
        """Those that were called once, and have not been for so long."""
        return [variant for variant, last_s in self._called.items() if now_s - last_s >= QUIET_S]

    def forget(self, variant: str) -> None:
        """It is not called any more."""
        del self._called[variant]

    def counted(self, variants: Sequence[str]) -> Sequence[str]:
        """Those of these variants that are called; all of them before any is."""
        return [variant for variant in variants if variant in self._called] or variants

    def largest(self, cores: int, most: int, pair: Pair | None) -> int:
        """The largest batch up to `most` that meets the objective."""
        sizes = [self._meets(variant, cores, most, pair) for variant in self.counted(self._variants)]
        return min(sizes, default=most)

    @property
    def outdated(self) -> bool:
        """Whether what is known about latency has changed since this was last asked."""
        if not self._variants or self._latency.revision == self._revision:
            return False
        self._revision = self._latency.revision
        return True

    def _meets(self, variant: str, cores: int, most: int, pair: Pair | None) -> int:
        for batch in range(most, 0, -1):
            seconds = self._latency.seconds(variant, cores, batch, pair)
            if seconds is None or seconds <= self._slo_s:
                return batch
        return most
