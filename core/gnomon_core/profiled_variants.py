"""Profiled variants: what was measured of each engine and precision of a model on a machine, and the file that holds it.

    benchmarks/results/variants.json, written by `python -m benchmarks.variants`
        machine, versions, when, weights, what accuracies are of
        not_offered      architecture ─▶ engine and precision ─▶ reason
        engines          model, engine, cores ─▶ accuracy, loading, latency by batch, spread, memory, saturation

An engine on some cores makes a variant for each batch size as its largest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon_core.engines import split_name
from gnomon_core.variants import Variant

FORMAT = "gnomon-variants/1"
DISTURBED = 0.2
"""Above this relative interquartile range of a batch's times the machine was used by something else."""


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """One engine and precision of a model on some cores. `spread` is the largest interquartile range of a batch, relative."""

    model: str
    engine: str
    cores: int
    accuracy: float | None
    load_s: float
    latency_s: Mapping[int, float]
    spread: float
    memory_bytes: int
    saturation_rps: float
    versions: Mapping[str, str]

    @property
    def disturbed(self) -> bool:
        """Return whether something else used the machine."""
        return self.spread > DISTURBED

    def variants(self) -> Iterator[Variant]:
        """A variant for each batch size as its largest one."""
        engine, precision = split_name(self.engine)
        for batch in sorted(self.latency_s):
            sizes = {size: seconds for size, seconds in self.latency_s.items() if size <= batch}
            yield Variant(
                id=f"{self.model}/{engine}/{precision}/{self.cores}/{batch}",
                architecture=self.model.partition("@")[0],
                engine=engine,
                precision=precision,
                cores=self.cores,
                max_batch=batch,
                accuracy=self.accuracy or 0.0,
                load_s=self.load_s,
                latency_s=sizes,
                memory_bytes=self.memory_bytes,
                saturation_rps=self.saturation_rps if batch == max(self.latency_s) else batch / sizes[batch],
                cost_per_s=float(self.cores),
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "engine": self.engine,
            "cores": self.cores,
            "accuracy": self.accuracy,
            "load_s": self.load_s,
            "latency_s": {str(batch): seconds for batch, seconds in sorted(self.latency_s.items())},
            "spread": self.spread,
            "disturbed": self.disturbed,
            "memory_bytes": self.memory_bytes,
            "saturation_rps": self.saturation_rps,
            "versions": dict(self.versions),
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> MeasuredEngine:
        """The measurements in a document.

        Raises:
            KeyError, TypeError, ValueError: the document is not of this form.

        """
        accuracy = document["accuracy"]
        return MeasuredEngine(
            str(document["model"]),
            str(document["engine"]),
            int(document["cores"]),
            None if accuracy is None else float(accuracy),
            float(document["load_s"]),
            {int(batch): float(seconds) for batch, seconds in document["latency_s"].items()},
            float(document["spread"]),
            int(document["memory_bytes"]),
            float(document["saturation_rps"]),
            {str(name): str(version) for name, version in document["versions"].items()},
        )


def read_profiled(path: Path) -> tuple[MeasuredEngine, ...]:
    """The measurements in a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds none.

    """
    document = json.loads(path.read_bytes())
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{path} is not {FORMAT}")
    try:
        return tuple(MeasuredEngine.from_json(engine) for engine in document["engines"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} holds no variants: {type(error).__name__}: {error}") from None
