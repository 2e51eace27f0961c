"""CPU usage as OpenFaaS states it: thousandths of a core since the last time someone asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gnomon_core.functions import FunctionKey
from gnomon_core.seam_values import Usage


class UsageMeter:
    """Turns cumulative CPU seconds into a rate; the first question has no interval yet and is answered 0."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._last: dict[FunctionKey, tuple[float, float]] = {}

    def document(self, key: FunctionKey, usage: Usage) -> Mapping[str, float]:
        """OpenFaaS's FunctionUsage."""
        now_s = self._now_s()
        last_s, last_cpu_s = self._last.get(key, (now_s, usage.cpu_s))
        self._last[key] = (now_s, usage.cpu_s)
        interval_s = now_s - last_s
        # 0.25 CPU seconds in an interval of 1 s are 250 thousandths of a core.
        cpu = 1000 * max(0.0, usage.cpu_s - last_cpu_s) / interval_s if interval_s > 0 else 0.0
        return {"cpu": round(cpu, 3), "totalMemoryBytes": usage.memory_bytes}

    def forget(self, key: FunctionKey) -> None:
        self._last.pop(key, None)
