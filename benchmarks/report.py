"""Figures of benchmarks: one JSON file for each benchmark in `results/`, and the same as a table.

A figure is measured several times. It is met only if the whole 95 % interval of its mean is on the goal's side, and missed only
if the whole interval is on the other side; in between it reads "not resolved". A figure without a goal stands beside others.

`ResultCache` holds what a long benchmark has measured so far, one line of JSON per result in `.cache/benchmarks`, so that an
interrupted run goes on where it was. A line counts only for the code that made it: it carries the digest of every source that
decides the result.

A model whose package is not installed is left out of a benchmark, and named: YOLOv8x has an extra of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import statistics
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.programs import RESULTS, ROOT, step
from gnomon_core.errors import GnomonError

# Two-sided 95 % points of Student's t for 1, 2, … degrees of freedom; beyond the list the normal distribution's will do.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_NORMAL95 = 1.960


@dataclass(frozen=True, slots=True)
class Figure:
    """A published figure. `comparison` is "<=" or ">=" if it has a goal; `met`: "met", "missed", "not resolved", ""."""

    key: str
    value: float
    unit: str
    goal: float | None = None
    comparison: str = ""
    met: str = ""
    detail: str = ""


def measured(
    key: str, values: Sequence[float], unit: str, *, at_most: float | None = None, at_least: float | None = None, detail: str = ""
) -> Figure:
    """A figure from its repeated measurements: their mean, judged by the interval around it."""
    value, half = statistics.fmean(values), half_width(values)
    spread = f"± {half:.3g} (95 %), {min(values):.4g} to {max(values):.4g} in {len(values)} runs" if len(values) > 1 else "1 run"
    detail = f"{spread}; {detail}" if detail else spread
    if at_most is not None:
        return Figure(
            key, value, unit, at_most, "<=", _judged(met=value + half <= at_most, missed=value - half > at_most), detail
        )
    if at_least is not None:
        return Figure(
            key, value, unit, at_least, ">=", _judged(met=value - half >= at_least, missed=value + half < at_least), detail
        )
    return Figure(key, value, unit, detail=detail)


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean; 0 for a single value, which says nothing about its spread."""
    if len(values) <= 1:
        return 0.0
    degrees = len(values) - 1
    point = _T95[degrees - 1] if degrees <= len(_T95) else _NORMAL95
    return point * statistics.stdev(values) / math.sqrt(len(values))


def write(
    name: str,
    figures: Sequence[Figure],
    *,
    repeats: int,
    packages: Iterable[str] = (),
    folder: Path = RESULTS,
    more: Mapping[str, Any] | None = None,
) -> Path:
    """Write `NAME.json`, print it as a table, and say where it is; `more` is what figures alone cannot show."""
    document = {
        "name": name,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {"python": interpreter()} | {package: _version(package) for package in packages},
        "repeats": repeats,
        "figures": [asdict(figure) for figure in figures],
        **(more or {}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(table([document]))
    return path


def table(documents: Iterable[Mapping[str, Any]]) -> str:
    """The table of all figures, unmet goals first."""
    order = {"missed": 0, "not resolved": 1, "met": 2, "": 3}
    rows = [
        [
            str(order[figure["met"]]),
            f"{document['name']}: {figure['key']}",
            f"{figure['value']:.4g} {figure['unit']}".strip(),
            f"{figure['comparison']} {figure['goal']:g}" if figure["goal"] is not None else "",
            figure["met"],
            str(figure["detail"]),
        ]
        for document in documents
        for figure in document["figures"]
    ]
    rows.sort(key=lambda row: row[0])
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(1, 5)]
    return "\n".join("  ".join([*(text.ljust(w) for text, w in zip(row[1:5], widths, strict=True)), row[5]]) for row in rows)


def machine() -> str:
    """The machine that the benchmark ran on, in words."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = f"{os.cpu_count()} cores ({processor()})"
    return f"{cores}, {memory_gib:.0f} GiB, {platform.system()} {platform.release()} {platform.machine()}"


def processor() -> str:
    """The processor's name, as the kernel gives it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "cpu model"):
                return " ".join(value.split())
    return platform.processor() or platform.machine()


def interpreter() -> str:
    """The Python that all of us run on, and how it was built: the same source differs by a quarter in speed.

    Distributions and python.org optimize theirs by a profile, Debian without saying so in its arguments of configure; pyenv and a
    plain `./configure && make` do not.
    """
    optimized = sys.base_prefix == "/usr" or "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return f"{platform.python_version()}, {'optimized build' if optimized else 'built without optimizations'}"


def _judged(*, met: bool, missed: bool) -> str:
    return "met" if met else "missed" if missed else "not resolved"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


FOLDER = ROOT / ".cache" / "benchmarks"


class ResultCache:
    """The results of one kind, by their keys; `sources` are folders and files, from the repository's root."""

    def __init__(self, name: str, sources: Sequence[str]) -> None:
        self.path = FOLDER / f"{name}.jsonl"
        self._code = _digest(sources)
        self._results: dict[str, Any] = {}
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        for line in lines:
            document = json.loads(line) if line.endswith("}") else {}  # the last may be half written
            if document.get("code") == self._code:
                self._results[document["key"]] = document["result"]

    def get(self, key: str) -> Any:
        """The result that was kept under this key, or None."""
        return self._results.get(key)

    def keep(self, key: str, result: Any) -> None:
        """Write a result down at once."""
        self._results[key] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"code": self._code, "key": key, "result": result}) + "\n")

    def forget(self) -> None:
        """Begin afresh."""
        self._results.clear()


def _digest(sources: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        for path in sorted((ROOT / source).rglob("*.py")) or [ROOT / source]:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


T = TypeVar("T")


def unless_missing(name: str, have: Callable[[], T]) -> T | None:
    """The result of `have`; None where the model's package is not installed, which is printed.

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
