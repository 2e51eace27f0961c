"""Models whose package is not installed are left out of a benchmark, and named: YOLOv8x has an extra of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from benchmarks.pace import step
from benchmarks.report import Figure
from gnomon_core.errors import GnomonError

T = TypeVar("T")


def unless_missing(name: str, have: Callable[[], T]) -> T | None:
    """What `have` gives; None where the model's package is not installed, which is said.

    Raises:
        GnomonError: it cannot be had for another reason.

    """
    try:
        return have()
    except GnomonError as error:
        if error.code != "model_package_missing":
            raise
        step(f"{name} is skipped. {error.message} {error.hint}")
        return None


def left_out(names: Sequence[str]) -> list[Figure]:
    """The models that were not measured, as a figure; nothing where all were."""
    return [Figure("models left out", len(names), "models", detail=f"not installed: {', '.join(names)}")] if names else []
