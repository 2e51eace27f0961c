"""What is reported of a run of fuzzing, whichever sockets it was at."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.report import Figure
from benchmarks.shadow.samples import counted


def figures_of(cases: Mapping[str, int], goal: float, trouble: str) -> list[Figure]:
    """How many cases there were, of at least so many, and that none of them was trouble: it would have ended the run."""
    detail = "; ".join(f"{name}: {count}" for name, count in sorted(cases.items()))
    return [
        counted("hostile cases", sum(cases.values()), "", at_least=goal, detail=detail),
        counted(trouble, 0, "", at_most=0, detail="any of them would have ended the run"),
    ]
